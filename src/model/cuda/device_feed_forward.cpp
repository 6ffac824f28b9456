// Implements the feed-forward half of a layer: the exchange between ranks, and the SwiGLU MLP.
// device_experts.cpp has the experts of an MoE layer.
#include "model/cuda/device_forward.h"

namespace hadal {

void DeviceForward::activate(const char* name, const Value16* gate_up, int64_t m, int64_t intermediate,
                             const DeviceRows& y, const int32_t* num_used) {
  const bool separate_quantize = y.x_quantized && !exec_.fusion;
  op(name, static_cast<double>(m * intermediate) * (y.x_quantized ? 5.0 : 6.0), 0.0, [&] {
    cuda::silu_mul({.x = gate_up,
                    .m = m,
                    .n = intermediate,
                    .num_used = num_used,
                    .y = y.x,
                    .y_quantized = separate_quantize ? cuda::QuantizedRows{} : y.x_quantized,
                    .f16 = f16_},
                   launch_);
  });
}

cuda::NormInput DeviceForward::feed_forward(const DeviceLayer& layer, const DeviceRows& x, int64_t m,
                                            bool padded, int32_t* distinct_experts) {
  const bool one_rank = exec_.comm == nullptr;
  // On one rank the next norm sums the rows of experts itself, but adds no other rows to them.
  if (one_rank && layer.is_moe && layer.moe.shared.intermediate == 0)
    return experts(layer.moe, x, m, padded, distinct_experts);
  if (!one_rank && layer.is_moe && layer.moe.experts.intermediate > 0) {
    // With several ranks the next norm sends a small part itself, so the part need not be stored first.
    if (const cuda::ExchangeParams* exchange = exchange_in_norm(m); exchange != nullptr) {
      cuda::NormInput part = experts(layer.moe, x, m, padded, distinct_experts);
      part.exchange = exchange;
      part.dense = shared_rows(layer.moe, x, m);
      part.x_stride = hidden_;
      return part;
    }
  }
  Value16* const out = one_rank ? arena_.array<Value16>(m * hidden_) : partial_rows(m);
  if (layer.is_moe) {
    experts_part(layer.moe, x, m, padded, distinct_experts, out);
  } else if (layer.mlp.intermediate > 0) {
    dense_mlp(layer.mlp, x, m, out);
  } else {
    clear(out, m);
  }
  return one_rank ? cuda::NormInput{.dense = out, .x_stride = hidden_} : exchanged(m);
}

void DeviceForward::clear(Value16* rows, int64_t m) {
  const int64_t bytes = m * hidden_ * int64_t{sizeof(Value16)};
  op("clear", static_cast<double>(bytes), 0.0,
     [&] { fill_device(rows, 0, static_cast<size_t>(bytes), launch_.stream); });
}

void DeviceForward::dense_mlp(const DeviceMlp& weights, const DeviceRows& x, int64_t m, Value16* out) {
  const DeviceArena::Scope scope(arena_);
  auto* gate_up = arena_.array<Value16>(m * weights.gate_up.n);
  linear("gate_up", x, hidden_, weights.gate_up, gate_up, nullptr, m);
  const DeviceRows activated = allocate_rows(m, weights.intermediate, has_scales(weights.down.type), false);
  activate("silu_mul", gate_up, m, weights.intermediate, activated);
  if (activated.x_quantized && !exec_.fusion)
    quantize(activated.x, m, weights.intermediate, activated.x_quantized);
  linear("down", activated, weights.intermediate, weights.down, out, nullptr, m);
}

}  // namespace hadal
