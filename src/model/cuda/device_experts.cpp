// Implements the feed-forward half of an MoE layer: router, routed and shared experts.
// kernels/cuda/experts/plan.h decides which kernels run; this file launches them.
#include <cmath>

#include "kernels/cuda/experts/columns/columns.h"
#include "kernels/cuda/experts/few/few_experts.h"
#include "kernels/cuda/experts/plan.h"
#include "kernels/cuda/operand_alignment.h"
#include "model/blocks/feed_forward.h"
#include "model/cuda/device_forward.h"

namespace hadal {
namespace {

// Tests the alignment of the weights, of their scales, and of the rows with which they are multiplied. Rows
// of 16 bits have k values.
bool is_aligned(const MatrixWeight& w, int64_t expert_stride, int64_t expert_scale_stride) {
  return cuda::is_aligned(w, expert_stride) && cuda::has_aligned_scales(w, expert_scale_stride) &&
         (has_scales(w.type) || w.k % 8 == 0);
}

cuda::ExpertsShape shape_of(const DeviceMoe& weights, const Router& router, int64_t m, int num_sms) {
  const MatrixWeight& gate_up = weights.experts.gate_up;
  const MatrixWeight& down = weights.experts.down;
  return {.tokens = m,
          .num_experts = weights.num_experts,
          .num_shared = weights.num_shared,
          .top_k = static_cast<int>(router.top_k),
          .num_held = weights.num_local_experts,
          .num_groups = router.gate.num_groups,
          .topk_groups = router.gate.topk_groups,
          .gate_kind = router.gate.kind,
          .hidden = gate_up.k,
          .intermediate = weights.experts.intermediate,
          .gate = weights.gate.type,
          .gate_up = gate_up.type,
          .down = down.type,
          .num_sms = num_sms,
          .gate_aligned = is_aligned(weights.gate, 0, 0),
          .gate_up_aligned = is_aligned(gate_up, weights.gate_up_stride, weights.gate_up_scale_stride),
          .down_aligned = is_aligned(down, weights.down_stride, weights.down_scale_stride)};
}

}  // namespace

// Holds one layer's plan, its inputs and its memory. Only this file uses it.
class ExpertsRun {
 public:
  struct Output {
    Value16* rows = nullptr;  // [num_rows, hidden]
    int32_t* row_of = nullptr;
    float* topk_weights = nullptr;
  };

  ExpertsRun(DeviceForward& forward, const DeviceMoe& weights, const Router& router, const DeviceRows& x,
             const cuda::ExpertsPlan& plan, std::byte* workspace, const Output& out)
      : f_(forward),
        w_(weights),
        plan_(plan),
        memory_(workspace),
        x_(x),
        out_(out),
        hidden_(forward.hidden_),
        intermediate_(weights.experts.intermediate),
        num_rows_(plan.shape.num_rows()) {
    const cuda::ExpertsWorkspace& at = plan.workspace;
    route_ = {.logits = array<float>(at.router_logits),
              .bias = weights.correction_bias,
              .m = plan.shape.tokens,
              .num_experts = weights.num_experts,
              .num_shared = weights.num_shared,
              .top_k = static_cast<int>(router.top_k),
              .first_held = weights.first_expert,
              .num_held = plan.shape.holds_all() ? 0 : weights.num_local_experts,
              .num_groups = router.gate.num_groups,
              .topk_groups = router.gate.topk_groups,
              .kind = router.gate.kind,
              .renormalize = router.gate.renormalize,
              .scaling_factor = router.gate.scaling_factor,
              .topk_ids = array<int32_t>(at.topk_ids),
              .topk_weights = out.topk_weights,
              .expert_offsets = array<int32_t>(at.expert_offsets),
              .token_of = array<int32_t>(at.token_of),
              .row_of = out.row_of,
              .scratch = array<std::byte>(at.route_scratch),
              .arrived = forward.arena_.arrived()};
    sorted_ = rows_at(at.sorted, hidden_);
    activated_ = rows_at(at.activated, intermediate_);
    gate_up_ = array<Value16>(at.gate_up);
    held_offsets_ = route_.expert_offsets + route_.first_held;
    if (route_.num_held > 0) num_used_ = held_offsets_ + route_.num_held;
    const auto routed = static_cast<double>(weights.num_experts);
    const double missed =
        std::pow(1.0 - static_cast<double>(route_.top_k) / routed, static_cast<double>(route_.m));
    hit_ = weights.num_local_experts * (1.0 - missed) + weights.num_shared;
  }

  // Runs the plan; valid and num_distinct are those of RouteParams.
  void run(const int32_t* valid, int32_t* num_distinct) {
    route_.valid = valid;
    route_.num_distinct = num_distinct;
    for (const cuda::ExpertsKernel& kernel : plan_.kernels) launch(kernel);
  }

 private:
  void launch(const cuda::ExpertsKernel& kernel) {
    switch (kernel.op) {
      case cuda::ExpertsOp::kFewRouter:
      case cuda::ExpertsOp::kFewExperts:
        return few(kernel);
      case cuda::ExpertsOp::kRouter:
        return f_.linear(to_string(kernel.op), {.x = x_.x, .x_quantized = {}}, hidden_, w_.gate, nullptr,
                         array<float>(plan_.workspace.router_logits), route_.m, &kernel.choice);
      case cuda::ExpertsOp::kRoute:
        return f_.op(to_string(kernel.op),
                     static_cast<double>(route_.m) * (4.0 * w_.num_experts + 16.0 * plan_.shape.num_slots()),
                     0.0, [&] { cuda::route(route_, kernel.route, f_.launch_); });
      case cuda::ExpertsOp::kSpread:
        return spread(kernel);
      case cuda::ExpertsOp::kPermute:
        return permute(kernel);
      case cuda::ExpertsOp::kGateUp:
        return product(kernel, kernel.gathered ? x_ : sorted_, w_.experts.gate_up, w_.gate_up_stride,
                       w_.gate_up_scale_stride, gate_up_);
      case cuda::ExpertsOp::kGateUpActivated:
        return activated_columns(kernel);
      case cuda::ExpertsOp::kActivate:
        return f_.activate(to_string(kernel.op), gate_up_, num_rows_, intermediate_, activated_, num_used_);
      case cuda::ExpertsOp::kQuantize:
        return f_.quantize(activated_.x, num_rows_, intermediate_, activated_.x_quantized);
      case cuda::ExpertsOp::kDown:
        return product(kernel, activated_, w_.experts.down, w_.down_stride, w_.down_scale_stride, out_.rows);
    }
  }

  void few(const cuda::ExpertsKernel& kernel) {
    const MatrixWeight& first = w_.experts.gate_up;
    const bool is_router = kernel.op == cuda::ExpertsOp::kFewRouter;
    cuda::FewExpertsParams params{
        .x = x_.x,
        .x_stride = hidden_,
        .x_quantized = has_scales(first.type) ? x_.x_quantized : cuda::QuantizedRows{},
        .gate = w_.gate,
        .route = route_,
        .gate_up = first,
        .gate_up_stride = w_.gate_up_stride,
        .gate_up_scale_stride = w_.gate_up_scale_stride,
        .down = w_.experts.down,
        .down_stride = w_.down_stride,
        .down_scale_stride = w_.down_scale_stride,
        .y = out_.rows,
        .scratch = array<std::byte>(plan_.workspace.few_scratch),
        .splits = plan_.kernels.back().choice.splits};
    const auto tokens = static_cast<double>(route_.m);
    const auto rows = static_cast<double>(num_rows_);
    const auto hidden = static_cast<double>(hidden_);
    if (is_router) {
      const double gate = w_.num_experts * hidden;
      return f_.op(to_string(kernel.op), gate * 2.0 + tokens * hidden * 2.0, 2.0 * tokens * gate,
                   [&] { few_experts(params, cuda::FewStage::kRouter, f_.launch_); });
    }
    const double matrices = 1.5 * static_cast<double>(first.n) * hidden;  // of one expert's weights
    f_.op(to_string(kernel.op), hit_ * matrices * element_bytes(first) + rows * hidden * 2.0,
          2.0 * rows * matrices, [&] { few_experts(params, cuda::FewStage::kExperts, f_.launch_); });
  }

  void spread(const cuda::ExpertsKernel& kernel) {
    f_.op(to_string(kernel.op), static_cast<double>((route_.m + kernel.rows) * hidden_) * 2.0, 0.0, [&] {
      cuda::spread_rows({.x = x_.x,
                         .row_of = out_.row_of,
                         .num_slots = plan_.shape.num_slots(),
                         .top_k = route_.top_k,
                         .y = sorted_.x,
                         .m = route_.m,
                         .n = hidden_},
                        f_.launch_);
    });
  }

  void permute(const cuda::ExpertsKernel& kernel) {
    const bool codes = has_scales(w_.experts.gate_up.type);
    f_.op(to_string(kernel.op),
          static_cast<double>(num_rows_ * hidden_) * 2.0 * element_bytes(w_.experts.gate_up), 0.0, [&] {
            cuda::permute_rows({.x = codes ? nullptr : x_.x,
                                .x_quantized = codes ? x_.x_quantized : cuda::QuantizedRows{},
                                .token_of = route_.token_of,
                                .y = sorted_.x,
                                .y_quantized = sorted_.x_quantized,
                                .num_rows = num_rows_,
                                .n = hidden_,
                                .num_used = num_used_},
                               f_.launch_);
          });
  }

  void activated_columns(const cuda::ExpertsKernel& kernel) {
    const MatrixWeight& first = w_.experts.gate_up;
    const double matrix = static_cast<double>(first.n) * static_cast<double>(first.k);
    f_.op(to_string(kernel.op),
          hit_ * matrix * element_bytes(first) +
              static_cast<double>(num_rows_ * (intermediate_ + hidden_)) * 2.0,
          2.0 * static_cast<double>(kernel.rows) * matrix, [&] {
            cuda::expert_columns({.f16 = f_.f16_,
                                  .x = sorted_.x,
                                  .x_stride = hidden_,
                                  .num_x_rows = route_.m * route_.top_k,
                                  .tokens = w_.num_shared > 0 ? x_.x : nullptr,
                                  .tokens_stride = hidden_,
                                  .num_tokens = route_.m,
                                  .direct_from = w_.num_local_experts,
                                  .expert_offsets = held_offsets_,
                                  .num_rows = num_rows_,
                                  .num_experts = plan_.shape.num_held_experts(),
                                  .w = first.data,
                                  .w_row_stride = first.row_stride,
                                  .expert_stride = w_.gate_up_stride,
                                  .n = intermediate_,
                                  .k = hidden_,
                                  .y = activated_.x,
                                  .activated = true},
                                 f_.launch_);
          });
  }

  // Computes y = x · W[e]ᵀ for the rows of each expert e.
  void product(const cuda::ExpertsKernel& kernel, const DeviceRows& x, const MatrixWeight& w, int64_t stride,
               int64_t scale_stride, Value16* y) {
    const double matrix = static_cast<double>(w.n) * static_cast<double>(w.k);
    f_.op(to_string(kernel.op),
          hit_ * matrix * element_bytes(w) + static_cast<double>(num_rows_ * (w.n + w.k)) * 2.0,
          2.0 * static_cast<double>(num_rows_) * matrix, [&] {
            cuda::launch_grouped_linear(
                kernel.choice,
                {.x = x.x,
                 .x_stride = w.k,
                 .x_quantized = has_scales(w.type) ? x.x_quantized : cuda::QuantizedRows{},
                 .token_of = kernel.gathered ? route_.token_of : nullptr,
                 .expert_offsets = held_offsets_,
                 .num_rows = num_rows_,
                 .rows_per_token = plan_.shape.num_slots(),
                 .num_experts = plan_.shape.num_held_experts(),
                 .w = w,
                 .expert_stride = stride,
                 .expert_scale_stride = scale_stride,
                 .y = y,
                 .offsets_settled = kernel.offsets_settled},
                f_.launch_);
          });
  }

  template <typename T>
  T* array(size_t offset) const {
    return offset == cuda::ExpertsWorkspace::kNone ? nullptr : reinterpret_cast<T*>(memory_ + offset);
  }
  // Returns rows of all experts, of n values each.
  DeviceRows rows_at(const cuda::ExpertsWorkspace::Rows& at, int64_t n) const {
    DeviceRows rows{.x = array<Value16>(at.x), .x_quantized = {}};
    if (at.codes == cuda::ExpertsWorkspace::kNone) return rows;
    rows.x_quantized = f_.quantized_shape(num_rows_, n);
    rows.x_quantized.codes = array<fp8_e4m3>(at.codes);
    rows.x_quantized.scales = array<float>(at.scales);
    return rows;
  }
  static double element_bytes(const MatrixWeight& w) {
    return static_cast<double>(weight_element_bytes(w.type));
  }

  DeviceForward& f_;
  const DeviceMoe& w_;
  const cuda::ExpertsPlan& plan_;
  std::byte* const memory_;
  const DeviceRows x_;
  const Output out_;
  const int64_t hidden_;
  const int64_t intermediate_;
  const int64_t num_rows_;
  cuda::RouteParams route_;
  const int32_t* held_offsets_ = nullptr;  // [held experts + 1]
  // The number of used rows, on the device. It is set if some experts belong to another rank; later rows then
  // belong to no expert.
  const int32_t* num_used_ = nullptr;
  DeviceRows sorted_;
  DeviceRows activated_;
  Value16* gate_up_ = nullptr;
  double hit_ = 0.0;  // experts that the tokens are expected to use: each is read once (for the observer)
};

cuda::NormInput DeviceForward::experts(const DeviceMoe& weights, const DeviceRows& x, int64_t m, bool padded,
                                       int32_t* distinct_experts) {
  const Router router = make_router(config_);
  const cuda::ExpertsShape shape = shape_of(weights, router, m, launch_.num_sms);
  const cuda::ExpertsFlags flags{.fusion = exec_.fusion, .reference = launch_.reference};

  // These are the rows that the next norm reads.
  const ExpertsRun::Output out{.rows = arena_.array<Value16>(shape.num_rows() * hidden_),
                               .row_of = arena_.array<int32_t>(shape.num_rows()),
                               .topk_weights = arena_.array<float>(shape.num_rows())};
  const DeviceArena::Scope scope(arena_);
  if (exec_.measure_only) {
    arena_.allocate(cuda::experts_workspace_bytes(shape, exec_.choices, flags));
  } else {
    const cuda::ExpertsPlan plan = cuda::plan_experts(shape, exec_.choices, flags);
    ExpertsRun run(*this, weights, router, x, plan, arena_.allocate(plan.workspace.bytes), out);
    run.run(padded ? step_.num_valid : nullptr, distinct_experts);
  }
  return {
      .expert_rows = out.rows, .row_of = out.row_of, .weights = out.topk_weights, .top_k = shape.num_slots()};
}

DeviceRows DeviceForward::rows_for_experts(const DeviceRows& x, const DeviceMoe& weights) const {
  DeviceRows rows = rows_for(x, weights.experts.gate_up);
  if (has_scales(weights.shared.gate_up.type)) rows.x_quantized = x.x_quantized;
  rows.x = x.x;  // the router reads 16 bits in any case
  return rows;
}

Value16* DeviceForward::shared_rows(const DeviceMoe& weights, const DeviceRows& x, int64_t m) {
  if (weights.shared.intermediate == 0) return nullptr;
  auto* const rows = arena_.array<Value16>(m * hidden_);
  dense_mlp(weights.shared, rows_for(x, weights.shared.gate_up), m, rows);
  return rows;
}

// The shared MLP, where it is a product of its own, is added last, as on the CPU.
void DeviceForward::experts_part(const DeviceMoe& weights, const DeviceRows& x, int64_t m, bool padded,
                                 int32_t* distinct_experts, Value16* out) {
  const bool has_shared = weights.shared.intermediate > 0;
  if (weights.experts.intermediate == 0) {
    // A rank without experts need not route. The count of distinct experts is read from rank 0, which has
    // experts if any rank has.
    if (has_shared) return dense_mlp(weights.shared, rows_for(x, weights.shared.gate_up), m, out);
    return clear(out, m);
  }
  const DeviceArena::Scope scope(arena_);
  const cuda::NormInput own = experts(weights, x, m, padded, distinct_experts);
  Value16* const shared = shared_rows(weights, x, m);
  const double reads = own.top_k + (has_shared ? 1 : 0);
  op("combine_experts", static_cast<double>(m * hidden_) * 2.0 * (reads + 1.0), 0.0, [&] {
    cuda::combine_rows({.experts = own, .added = shared, .y = out, .m = m, .n = hidden_, .f16 = f16_},
                       launch_);
  });
}

}  // namespace hadal
