// Runs the experts of one layer for m tokens as an engine runs them, up to the next norm, which sums the
// experts' rows into the residual. kernels/cuda/experts/plan.h decides which kernels run.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "bench/cuda/experts_models.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/experts/columns/columns.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/few/few_experts.h"
#include "kernels/cuda/experts/plan.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::bench {

// The chain may end after any of these stages.
enum class Stage { kRouter, kRoute, kPermute, kGateUp, kActivation, kDown, kCombine };
inline constexpr std::array<const char*, 6> kStageNames = {
    "us_to_router", "us_to_route", "us_to_permute", "us_to_gate_up", "us_to_activation", "us_to_down"};

// Holds inputs, results and workspace of m tokens.
class Chain {
 public:
  Chain(const Model& model, const Weights& weights, int64_t m, cuda::GemmLibrary& library, CudaStream& stream,
        const cuda::Launch& launch, const cuda::ProductChoices& choices, bool few, int splits)
      : model_(model),
        weights_(weights),
        m_(m),
        input_sets_(m <= 64 ? kInputSets : 2),
        num_rows_(m * model.slots()),
        library_(library),
        launch_(launch),
        choices_(choices) {
    const int64_t hidden = model.hidden;
    const int64_t wide = 2 * model.intermediate;
    x_ = model.is_f16 ? random_f16(input_sets_ * m * hidden, stream)
                      : random_bf16(input_sets_ * m * hidden, stream);
    residual_ = DeviceBuffer(m * hidden * 4);
    fill_device(residual_.data(), 0, residual_.size(), stream.handle());
    logits_ = DeviceBuffer(m * model.routed * 4);
    for (DeviceBuffer* buffer : {&topk_ids_, &topk_weights_, &token_of_, &row_of_})
      *buffer = DeviceBuffer(num_rows_ * 4);
    offsets_ = DeviceBuffer((model.experts() + 1) * 4);
    distinct_ = DeviceBuffer(kInputSets * 4);
    scratch_ = DeviceBuffer(cuda::route_scratch_bytes(m, model.experts()));
    arrived_ = DeviceBuffer(4);
    fill_device(arrived_.data(), 0, arrived_.size(), stream.handle());
    plan_ = cuda::plan_experts(shape(), &choices, {.few = few});
    sorted_ = wants_sorted() || activates() ? DeviceBuffer(num_rows_ * hidden * 2) : DeviceBuffer();
    gate_up_ = DeviceBuffer(num_rows_ * wide * 2);
    activated_ = DeviceBuffer(num_rows_ * model.intermediate * 2);
    out_ = DeviceBuffer(num_rows_ * hidden * 2);
    y_ = DeviceBuffer(m * hidden * 2);
    y_scales_ = DeviceBuffer(hidden / 128 * stride(m) * 4);
    if (model.is_fp8) {
      x_codes_ = DeviceBuffer(input_sets_ * m * hidden);
      x_scales_ = DeviceBuffer(input_sets_ * hidden / 128 * stride(m) * 4);
      sorted_scales_ = DeviceBuffer(hidden / 128 * stride(num_rows_) * 4);
      activated_scales_ = DeviceBuffer(model.intermediate / 128 * stride(num_rows_) * 4);
      for (int i = 0; i < input_sets_; ++i)
        cuda::quantize_rows({.x = x(i), .x_stride = hidden, .m = m, .n = hidden, .y = x_quantized(i)},
                            launch_);
    }
    stream.synchronize();
    splits_ = splits;
    few_ = runs(cuda::ExpertsOp::kFewExperts);
    if (!few_) return;
    const int used = splits > 0 ? splits : plan_.kernels.back().choice.splits;
    few_scratch_ = DeviceBuffer(cuda::few::scratch_bytes(shape(), used));
  }

  bool few() const { return few_; }
  // Copies the inputs of another chain of this model and m.
  void copy_inputs(const Chain& other, CudaStream& stream) const {
    copy_on_device(x_.data(), other.x_.data(), x_.size(), stream.handle());
    if (!model_.is_fp8) return;
    copy_on_device(x_codes_.data(), other.x_codes_.data(), x_codes_.size(), stream.handle());
    copy_on_device(x_scales_.data(), other.x_scales_.data(), x_scales_.size(), stream.handle());
  }
  std::vector<uint16_t> rows_of(int call, CudaStream& stream) const {
    fill_device(out_.data(), 0xff, out_.size(), stream.handle());
    run(call, Stage::kDown);
    std::vector<uint16_t> rows(num_rows_ * model_.hidden);
    copy_to_host(rows.data(), out_.data(), rows.size() * 2, stream.handle());
    stream.synchronize();
    return rows;
  }

  bool wants_sorted() const { return runs(cuda::ExpertsOp::kPermute); }

  // `distinct`, unless null, receives the number of routed experts hit.
  void run(int call, Stage last, int32_t* distinct = nullptr) const {
    const int64_t hidden = model_.hidden;
    const size_t set = call % kWeightSets;
    if (few_) {
      const cuda::FewExpertsParams params = few_params(call, distinct);
      few_experts(params, cuda::FewStage::kRouter, launch_);
      if (distinct == nullptr && (last == Stage::kRouter || last == Stage::kRoute)) return;
      few_experts(params, cuda::FewStage::kExperts, launch_);
      if (last == Stage::kCombine) combine();
      return;
    }
    const auto* gate = weights_.gate.as<uint16_t>() + set * model_.routed * hidden;
    cuda::linear(
        {.x = x(call),
         .x_stride = hidden,
         .w = {.data = gate, .type = gate_type(), .n = model_.routed, .k = hidden, .row_stride = hidden},
         .y_f32 = logits_.as<float>(),
         .y_stride = model_.routed,
         .m = m_},
        library_, launch_);
    if (last == Stage::kRouter) return;
    route(distinct);
    if (last == Stage::kRoute) return;
    const uint16_t* rows = x(call);
    cuda::QuantizedRows fp8_rows = x_quantized(call);
    const int32_t* gather = token_of_.as<int32_t>();
    if (activates()) {
      run_in_columns(call, last);
      return;
    }
    if (wants_sorted()) {
      cuda::QuantizedRows sorted;
      if (model_.is_fp8) sorted = fp8(sorted_, sorted_scales_, num_rows_, hidden);
      uint16_t* sorted_rows = model_.is_fp8 ? nullptr : sorted_.as<uint16_t>();
      cuda::permute_rows({.x = model_.is_fp8 ? nullptr : rows,
                          .x_quantized = fp8_rows,
                          .token_of = gather,
                          .y = sorted_rows,
                          .y_quantized = sorted,
                          .num_rows = num_rows_,
                          .n = hidden},
                         launch_);
      rows = sorted_rows;
      fp8_rows = sorted;
      gather = nullptr;
    }
    if (last == Stage::kPermute) return;
    const int64_t wide = 2 * model_.intermediate;
    grouped(rows, fp8_rows, gather, weights_.gate_up, weights_.gate_up_scales, set, wide, hidden, gate_up_,
            false);
    if (last == Stage::kGateUp) return;
    cuda::QuantizedRows activated;
    if (model_.is_fp8) activated = fp8(activated_, activated_scales_, num_rows_, model_.intermediate);
    cuda::silu_mul({.x = gate_up_.as<uint16_t>(),
                    .m = num_rows_,
                    .n = model_.intermediate,
                    .y = model_.is_fp8 ? nullptr : activated_.as<uint16_t>(),
                    .y_quantized = activated,
                    .f16 = model_.is_f16},
                   launch_);
    if (last == Stage::kActivation) return;
    down_and_combine(set, activated, last);
  }

  // Returns true if gate_up includes the activation, as it does for many rows in 16 bits.
  bool activates() const { return runs(cuda::ExpertsOp::kGateUpActivated); }

  // Returns the mean number of routed experts that a call hits, over `calls` calls.
  double mean_hit(int calls, CudaStream& stream) const {
    const int counted = std::min(calls, kInputSets);
    for (int i = 0; i < counted; ++i) run(i, Stage::kRoute, distinct_.as<int32_t>() + i);
    std::array<int32_t, kInputSets> hit = {};
    copy_to_host(hit.data(), distinct_.data(), counted * 4, stream.handle());
    stream.synchronize();
    double sum = 0.0;
    for (int i = 0; i < counted; ++i) sum += hit[i];
    return sum / counted;
  }

  double bytes(double hit) const {
    const auto hidden = static_cast<double>(model_.hidden);
    const double element = model_.is_fp8 ? 1.0 + 4.0 / (128 * 128) : 2.0;
    const double expert = 3.0 * hidden * static_cast<double>(model_.intermediate) * element;
    const double token =
        4.0 + 8.0;  // x and y (FP8: x in bf16 and codes, y in codes), residual read and written
    return (hit + model_.shared) * expert + 2.0 * model_.routed * hidden +
           static_cast<double>(m_) * hidden * token;
  }
  double flop() const {
    const auto rows = static_cast<double>(num_rows_);
    return 6.0 * rows * static_cast<double>(model_.hidden * model_.intermediate) +
           2.0 * static_cast<double>(m_ * model_.routed * model_.hidden);
  }

 private:
  static constexpr int kInputSets = 16;

  static int64_t stride(int64_t rows) { return cuda::round_up(rows, 4); }
  WeightType gate_type() const { return model_.is_f16 ? WeightType::kF16 : WeightType::kBF16; }
  WeightType type() const { return model_.is_fp8 ? WeightType::kFp8Block : gate_type(); }
  const uint16_t* x(int call) const { return x_.as<uint16_t>() + call % input_sets_ * m_ * model_.hidden; }
  cuda::QuantizedRows x_quantized(int call) const {
    if (!model_.is_fp8) return {};
    const int64_t set = call % input_sets_;
    return {.codes = x_codes_.as<fp8_e4m3>() + set * m_ * model_.hidden,
            .scales = x_scales_.as<float>() + set * (model_.hidden / 128) * stride(m_),
            .stride = model_.hidden,
            .scale_stride = stride(m_),
            .power_of_two = false};
  }
  static cuda::QuantizedRows fp8(const DeviceBuffer& codes, const DeviceBuffer& scales, int64_t rows,
                                 int64_t width) {
    return {.codes = codes.as<fp8_e4m3>(),
            .scales = scales.as<float>(),
            .stride = width,
            .scale_stride = stride(rows),
            .power_of_two = false};
  }

  cuda::ExpertsShape shape() const {
    return {.tokens = m_,
            .num_experts = model_.routed,
            .num_shared = model_.shared,
            .top_k = model_.top_k,
            .num_groups = model_.num_groups,
            .topk_groups = model_.topk_groups,
            .gate_kind = model_.kind,
            .hidden = model_.hidden,
            .intermediate = model_.intermediate,
            .gate = gate_type(),
            .gate_up = type(),
            .down = type(),
            .num_sms = launch_.num_sms};
  }
  bool runs(cuda::ExpertsOp op) const {
    return std::any_of(plan_.kernels.begin(), plan_.kernels.end(),
                       [&](const cuda::ExpertsKernel& kernel) { return kernel.op == op; });
  }

  // Runs the chain on the columns kernel, starting with the sorting of rows.
  void run_in_columns(int call, Stage last) const {
    const int64_t hidden = model_.hidden;
    const size_t set = call % kWeightSets;
    cuda::spread_rows({.x = x(call),
                       .row_of = row_of_.as<int32_t>(),
                       .num_slots = model_.slots(),
                       .top_k = model_.top_k,
                       .y = sorted_.as<uint16_t>(),
                       .m = m_,
                       .n = hidden},
                      launch_);
    if (last == Stage::kPermute) return;
    const int64_t expert = 2 * model_.intermediate * hidden;
    cuda::expert_columns({.f16 = model_.is_f16,
                          .x = sorted_.as<uint16_t>(),
                          .x_stride = hidden,
                          .num_x_rows = m_ * model_.top_k,
                          .tokens = model_.shared > 0 ? x(call) : nullptr,
                          .tokens_stride = hidden,
                          .num_tokens = m_,
                          .direct_from = model_.routed,
                          .expert_offsets = offsets_.as<int32_t>(),
                          .num_rows = num_rows_,
                          .num_experts = model_.experts(),
                          .w = weights_.gate_up.as<uint16_t>() + set * model_.experts() * expert,
                          .w_row_stride = hidden,
                          .expert_stride = expert,
                          .n = model_.intermediate,
                          .k = hidden,
                          .y = activated_.as<uint16_t>(),
                          .activated = true},
                         launch_);
    if (last == Stage::kGateUp || last == Stage::kActivation) return;
    down_and_combine(set, {}, last);
  }

  void down_and_combine(size_t set, const cuda::QuantizedRows& activated, Stage last) const {
    const int64_t hidden = model_.hidden;
    grouped(activated_.as<uint16_t>(), activated, nullptr, weights_.down, weights_.down_scales, set, hidden,
            model_.intermediate, out_, true);
    if (last == Stage::kDown) return;
    combine();
  }

  void combine() const {
    const int64_t hidden = model_.hidden;
    cuda::QuantizedRows y;
    if (model_.is_fp8) y = fp8(y_, y_scales_, m_, hidden);
    cuda::add_rms_norm({.input = {.expert_rows = out_.as<uint16_t>(),
                                  .row_of = row_of_.as<int32_t>(),
                                  .weights = topk_weights_.as<float>(),
                                  .top_k = model_.slots()},
                        .residual = residual_.as<float>(),
                        .weight = weights_.norm.as<float>(),
                        .y = model_.is_fp8 ? nullptr : y_.as<uint16_t>(),
                        .y_quantized = y,
                        .m = m_,
                        .n = hidden,
                        .f16 = model_.is_f16},
                       launch_);
  }

  cuda::RouteParams route_params(int32_t* distinct) const {
    return {.logits = logits_.as<float>(),
            .bias = model_.kind == GateKind::kSigmoidNoAuxTc ? weights_.bias.as<float>() : nullptr,
            .m = m_,
            .num_experts = model_.routed,
            .num_shared = model_.shared,
            .top_k = model_.top_k,
            .num_groups = model_.num_groups,
            .topk_groups = model_.topk_groups,
            .kind = model_.kind,
            .renormalize = model_.renormalize,
            .scaling_factor = model_.scaling_factor,
            .topk_ids = topk_ids_.as<int32_t>(),
            .topk_weights = topk_weights_.as<float>(),
            .expert_offsets = offsets_.as<int32_t>(),
            .token_of = token_of_.as<int32_t>(),
            .row_of = row_of_.as<int32_t>(),
            .num_distinct = distinct,
            .scratch = scratch_.data(),
            .arrived = arrived_.as<int32_t>()};
  }
  void route(int32_t* distinct) const { cuda::route(route_params(distinct), launch_); }

  cuda::FewExpertsParams few_params(int call, int32_t* distinct) const {
    const size_t set = call % kWeightSets;
    const int64_t hidden = model_.hidden;
    const int64_t expert = 2 * model_.intermediate * hidden;
    const auto weights = [&](const DeviceBuffer& w, const DeviceBuffer& scales, int64_t n, int64_t k) {
      const size_t first = set * model_.experts() * n * k;
      return MatrixWeight{.data = w.data() + first * (model_.is_fp8 ? 1 : 2),
                          .type = type(),
                          .n = n,
                          .k = k,
                          .row_stride = k,
                          .scales = model_.is_fp8 ? scales.as<float>() + first / (128 * 128) : nullptr,
                          .scale_stride = model_.is_fp8 ? k / 128 : 0};
    };
    return {.x = x(call),
            .x_stride = hidden,
            .x_quantized = x_quantized(call),
            .gate = {.data = weights_.gate.as<uint16_t>() + set * model_.routed * hidden,
                     .type = gate_type(),
                     .n = model_.routed,
                     .k = hidden,
                     .row_stride = hidden},
            .route = route_params(distinct),
            .gate_up = weights(weights_.gate_up, weights_.gate_up_scales, 2 * model_.intermediate, hidden),
            .gate_up_stride = expert,
            .gate_up_scale_stride = model_.is_fp8 ? expert / (128 * 128) : 0,
            .down = weights(weights_.down, weights_.down_scales, hidden, model_.intermediate),
            .down_stride = expert / 2,
            .down_scale_stride = model_.is_fp8 ? expert / 2 / (128 * 128) : 0,
            .y = out_.as<uint16_t>(),
            .scratch = few_scratch_.data(),
            .splits = splits_};
  }

  void grouped(const uint16_t* rows, const cuda::QuantizedRows& fp8_rows, const int32_t* gather,
               const DeviceBuffer& w, const DeviceBuffer& scales, size_t set, int64_t n, int64_t k,
               const DeviceBuffer& y, bool offsets_settled) const {
    const int64_t scales_an_expert = (n / 128) * (k / 128);
    const size_t element = model_.is_fp8 ? 1 : 2;
    cuda::grouped_linear(
        {.x = model_.is_fp8 ? nullptr : rows,
         .x_stride = k,
         .x_quantized = fp8_rows,
         .token_of = gather,
         .expert_offsets = offsets_.as<int32_t>(),
         .num_rows = num_rows_,
         .rows_per_token = model_.slots(),
         .num_experts = model_.experts(),
         .w = {.data = w.data() + set * model_.experts() * n * k * element,
               .type = type(),
               .n = n,
               .k = k,
               .row_stride = k,
               .scales =
                   model_.is_fp8 ? scales.as<float>() + set * model_.experts() * scales_an_expert : nullptr,
               .scale_stride = model_.is_fp8 ? k / 128 : 0},
         .expert_stride = n * k,
         .expert_scale_stride = model_.is_fp8 ? scales_an_expert : 0,
         .y = y.as<uint16_t>(),
         .offsets_settled = offsets_settled},
        launch_, &choices_.grouped);
  }

  const Model& model_;
  const Weights& weights_;
  const int64_t m_;
  const int input_sets_;
  const int64_t num_rows_;
  cuda::GemmLibrary& library_;
  const cuda::Launch& launch_;
  const cuda::ProductChoices& choices_;
  DeviceBuffer x_, x_codes_, x_scales_, residual_, logits_, topk_ids_, topk_weights_, token_of_, row_of_,
      offsets_, distinct_, scratch_, arrived_, sorted_, sorted_scales_, gate_up_, activated_,
      activated_scales_, out_, y_, y_scales_, few_scratch_;
  cuda::ExpertsPlan plan_;
  bool few_ = false;
  int splits_ = 0;
};

}  // namespace hadal::bench
