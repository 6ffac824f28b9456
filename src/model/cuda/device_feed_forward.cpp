// Implements the feed-forward half of a dense layer, a SwiGLU MLP. device_experts.cpp has that of an MoE
// layer.
#include "model/cuda/device_forward.h"

namespace hadal {

void DeviceForward::activate(const char* name, const Value16* gate_up, int64_t m, int64_t intermediate,
                             const DeviceRows& y) {
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
}

cuda::NormInput DeviceForward::dense_mlp(const DeviceMlp& weights, const DeviceRows& x, int64_t m) {
  auto* out = arena_.array<Value16>(m * hidden_);
  const DeviceArena::Scope scope(arena_);
  auto* gate_up = arena_.array<Value16>(m * weights.gate_up.n);
  linear("gate_up", x, hidden_, weights.gate_up, gate_up, nullptr, m);
  const DeviceRows activated = allocate_rows(m, weights.intermediate, has_scales(weights.down.type), false);
  activate("silu_mul", gate_up, m, weights.intermediate, activated);
  if (activated.x_quantized && !exec_.fusion)
    quantize(activated.x, m, weights.intermediate, activated.x_quantized);
  linear("down", activated, weights.intermediate, weights.down, out, nullptr, m);
  return {.dense = out, .x_stride = hidden_};
}

}  // namespace hadal
