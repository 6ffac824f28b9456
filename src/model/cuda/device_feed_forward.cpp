// The feed-forward half of a layer: a dense SwiGLU MLP, or router, routed and shared experts.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/experts/columns/columns.h"
#include "kernels/cuda/experts/few/few_experts.h"
#include "model/blocks/feed_forward.h"
#include "model/cuda/device_forward.h"

namespace hadal {
DeviceRows DeviceForward::activate(const char* name, const Value16* gate_up, int64_t m, int64_t intermediate,
                                   const MatrixWeight& down) {
  const DeviceRows y = allocate_rows(m, intermediate, has_scales(down.type), false);
  const bool separate_quantize = y.x_quantized && !exec_.fusion;
  op(name, static_cast<double>(m * intermediate) * (y.x_quantized ? 5.0 : 6.0), 0.0, [&] {
    cuda::silu_mul({.x = gate_up,
                    .m = m,
                    .n = intermediate,
                    .y = y.x,
                    .y_quantized = separate_quantize ? cuda::QuantizedRows{} : y.x_quantized,
                    .f16 = f16_},
                   launch_);
  });
  if (separate_quantize) quantize(y.x, m, intermediate, y.x_quantized);
  return y;
}

cuda::NormInput DeviceForward::dense_mlp(const DeviceMlp& weights, const DeviceRows& x, int64_t m) {
  auto* out = arena_.array<Value16>(m * hidden_);
  const DeviceArena::Scope scope(arena_);
  auto* gate_up = arena_.array<Value16>(m * weights.gate_up.n);
  linear("gate_up", x, hidden_, weights.gate_up, gate_up, nullptr, m);
  const DeviceRows activated = activate("silu_mul", gate_up, m, weights.intermediate, weights.down);
  linear("down", activated, weights.intermediate, weights.down, out, nullptr, m);
  return {.dense = out, .x_stride = hidden_};
}

cuda::NormInput DeviceForward::experts(const DeviceMoe& weights, const DeviceRows& x, int64_t m, bool padded,
                                       int32_t* distinct_experts) {
  const int num_total = weights.num_experts + weights.num_shared;
  const Router router = make_router(config_);
  const auto top_k = static_cast<int>(router.top_k);
  const int num_slots = top_k + weights.num_shared;
  const int64_t num_rows = m * num_slots;
  const WeightType type = weights.experts.gate_up.type;

  // What the next norm reads.
  auto* out = arena_.array<Value16>(num_rows * hidden_);
  auto* row_of = arena_.array<int32_t>(num_rows);
  auto* topk_weights = arena_.array<float>(num_rows);
  const DeviceArena::Scope scope(arena_);

  auto* topk_ids = arena_.array<int32_t>(num_rows);
  auto* token_of = arena_.array<int32_t>(num_rows);
  auto* expert_offsets = arena_.array<int32_t>(num_total + 1);
  cuda::RouteParams route{.bias = weights.correction_bias,
                          .m = m,
                          .num_experts = weights.num_experts,
                          .num_shared = weights.num_shared,
                          .top_k = top_k,
                          .num_groups = router.gate.num_groups,
                          .topk_groups = router.gate.topk_groups,
                          .kind = router.gate.kind,
                          .renormalize = router.gate.renormalize,
                          .scaling_factor = router.gate.scaling_factor,
                          .valid = padded ? step_.num_valid : nullptr,
                          .topk_ids = topk_ids,
                          .topk_weights = topk_weights,
                          .expert_offsets = expert_offsets,
                          .token_of = token_of,
                          .row_of = row_of,
                          .num_distinct = distinct_experts};

  // Figures for the observer: experts that m tokens are expected to hit, each read once.
  const double hit =
      weights.num_experts *
          (1.0 - std::pow(1.0 - static_cast<double>(top_k) / weights.num_experts, static_cast<double>(m))) +
      weights.num_shared;
  const bool quantised = has_scales(type);  // gate and up
  const auto element = static_cast<double>(weight_element_bytes(type));
  const MatrixWeight& first = weights.experts.gate_up;
  if ((m <= cuda::kMaxFewTokens || exec_.measure_only) && exec_.fusion && !launch_.reference) {
    const DeviceArena::Scope few_scope(arena_);
    cuda::FewExpertsParams few{.x = x.x,
                               .x_stride = hidden_,
                               .x_quantized = quantised ? x.x_quantized : cuda::QuantizedRows{},
                               .gate = weights.gate,
                               .route = route,
                               .gate_up = first,
                               .gate_up_stride = weights.gate_up_stride,
                               .gate_up_scale_stride = weights.gate_up_scale_stride,
                               .down = weights.experts.down,
                               .down_stride = weights.down_stride,
                               .down_scale_stride = weights.down_scale_stride,
                               .y = out};
    // A walk for the workspace, which has no addresses to ask with, goes on to the separate kernels; steps of
    // fewer tokens than it has may come.
    few.route.m = std::min(m, cuda::kMaxFewTokens);
    few.scratch = arena_.allocate(cuda::few_experts_scratch_bytes(few));
    if (!exec_.measure_only && few_experts_pay(few) && few_experts_take(few, launch_.num_sms)) {
      const auto tokens = static_cast<double>(m);
      const auto rows = static_cast<double>(num_rows);
      const auto hidden = static_cast<double>(hidden_);
      const double gate = weights.num_experts * hidden;
      const double matrices = 1.5 * static_cast<double>(first.n) * hidden;  // an expert's
      op("router", gate * 2.0 + tokens * hidden * 2.0, 2.0 * tokens * gate,
         [&] { few_experts(few, cuda::FewStage::kRouter, launch_); });
      op("experts_few", hit * matrices * element + rows * hidden * 2.0, 2.0 * rows * matrices,
         [&] { few_experts(few, cuda::FewStage::kExperts, launch_); });
      return {.expert_rows = out, .row_of = row_of, .weights = topk_weights, .top_k = num_slots};
    }
  }

  auto* router_logits = arena_.array<float>(m * weights.num_experts);
  linear("router", {.x = x.x, .x_quantized = {}}, hidden_, weights.gate, nullptr, router_logits, m);
  route.logits = router_logits;
  route.scratch = arena_.allocate(cuda::route_scratch_bytes(m, num_total));
  route.arrived = arena_.arrived();
  op("route", static_cast<double>(m) * (4.0 * weights.num_experts + 16.0 * num_slots), 0.0,
     [&] { cuda::route(route, launch_); });

  const auto grouped = [&](const char* name, const DeviceRows& input, const int32_t* gather,
                           const MatrixWeight& w, int64_t stride, int64_t scale_stride, Value16* y,
                           bool offsets_settled) {
    const double matrix = static_cast<double>(w.n) * static_cast<double>(w.k);
    const auto w_element = static_cast<double>(weight_element_bytes(w.type));
    op(name, hit * matrix * w_element + static_cast<double>(num_rows * (w.n + w.k)) * 2.0,
       2.0 * static_cast<double>(num_rows) * matrix, [&] {
         cuda::grouped_linear({.x = input.x,
                               .x_stride = w.k,
                               .x_quantized = has_scales(w.type) ? input.x_quantized : cuda::QuantizedRows{},
                               .token_of = gather,
                               .expert_offsets = expert_offsets,
                               .num_rows = num_rows,
                               .rows_a_token = num_slots,
                               .num_experts = num_total,
                               .w = w,
                               .expert_stride = stride,
                               .expert_scale_stride = scale_stride,
                               .y = y,
                               .offsets_settled = offsets_settled},
                              launch_, exec_.choices != nullptr ? &exec_.choices->grouped : nullptr);
       });
  };

  const int64_t intermediate = weights.experts.intermediate;
  const cuda::GroupedTable* measured = exec_.choices != nullptr ? &exec_.choices->grouped : nullptr;
  const cuda::GroupedShape shape{.type = type,
                                 .num_rows = num_rows,
                                 .rows_a_token = num_slots,
                                 .num_experts = num_total,
                                 .n = first.n,
                                 .k = first.k,
                                 .num_sms = launch_.num_sms};
  if (!exec_.measure_only && exec_.fusion && !launch_.reference && weights.experts.down.type == type &&
      cuda::activates_in_columns(shape, measured)) {
    // Shared experts read the tokens themselves: only rows of routed ones are brought into order.
    const DeviceArena::Scope columns_scope(arena_);
    const int64_t routed_rows = m * top_k;
    auto* sorted_rows = arena_.array<Value16>(routed_rows * hidden_);
    auto* activated = arena_.array<Value16>(num_rows * intermediate);
    const cuda::ExpertColumnsParams columns{.f16 = f16_,
                                            .x = sorted_rows,
                                            .x_stride = hidden_,
                                            .num_x_rows = routed_rows,
                                            .tokens = weights.num_shared > 0 ? x.x : nullptr,
                                            .tokens_stride = hidden_,
                                            .num_tokens = m,
                                            .direct_from = weights.num_experts,
                                            .expert_offsets = expert_offsets,
                                            .num_rows = num_rows,
                                            .num_experts = num_total,
                                            .w = first.data,
                                            .w_row_stride = first.row_stride,
                                            .expert_stride = weights.gate_up_stride,
                                            .n = intermediate,
                                            .k = hidden_,
                                            .y = activated,
                                            .activated = true};
    if (cuda::expert_columns_takes(columns)) {
      op("permute", static_cast<double>((m + routed_rows) * hidden_) * 2.0, 0.0, [&] {
        cuda::spread_rows({.x = x.x,
                           .row_of = row_of,
                           .num_slots = num_slots,
                           .top_k = top_k,
                           .y = sorted_rows,
                           .m = m,
                           .n = hidden_},
                          launch_);
      });
      const double matrix = static_cast<double>(first.n) * static_cast<double>(first.k);
      op("experts_gate_up",
         hit * matrix * element + static_cast<double>(num_rows * (intermediate + hidden_)) * 2.0,
         2.0 * static_cast<double>(num_rows) * matrix, [&] { cuda::expert_columns(columns, launch_); });
      grouped("experts_down", {.x = activated, .x_quantized = {}}, nullptr, weights.experts.down,
              weights.down_stride, weights.down_scale_stride, out, false);
      return {.expert_rows = out, .row_of = row_of, .weights = topk_weights, .top_k = num_slots};
    }
  }

  DeviceRows input = x;
  const int32_t* gather = token_of;
  // With measured choices fewer rows than the most may be the ones that are sorted.
  if (cuda::wants_sorted(shape, measured) || (exec_.measure_only && exec_.choices != nullptr)) {
    input = {};
    if (quantised) {
      input.x_quantized = allocate_fp8(num_rows, hidden_);
    } else {
      input.x = arena_.array<Value16>(num_rows * hidden_);
    }
    op("permute", static_cast<double>(num_rows * hidden_) * 2.0 * element, 0.0, [&] {
      cuda::permute_rows({.x = quantised ? nullptr : x.x,
                          .x_quantized = quantised ? x.x_quantized : cuda::QuantizedRows{},
                          .token_of = token_of,
                          .y = input.x,
                          .y_quantized = input.x_quantized,
                          .num_rows = num_rows,
                          .n = hidden_},
                         launch_);
    });
    gather = nullptr;
  }
  auto* gate_up = arena_.array<Value16>(num_rows * first.n);
  grouped("experts_gate_up", input, gather, first, weights.gate_up_stride, weights.gate_up_scale_stride,
          gate_up, false);
  const DeviceRows activated =
      activate("experts_silu_mul", gate_up, num_rows, intermediate, weights.experts.down);
  grouped("experts_down", activated, nullptr, weights.experts.down, weights.down_stride,
          weights.down_scale_stride, out, true);
  return {.expert_rows = out, .row_of = row_of, .weights = topk_weights, .top_k = num_slots};
}

}  // namespace hadal
