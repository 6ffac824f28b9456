// Defines the layers that cuda_experts_table_bench measures, and their weights.
#pragma once

#include <cmath>
#include <vector>

#include "bench/cuda/random_operands.h"
#include "kernels/params/moe.h"
#include "tensor/cuda.h"

namespace hadal::bench {

inline constexpr int kWeightSets = 3;

struct Model {
  const char* name;
  int routed, shared, top_k, num_groups, topk_groups;
  int64_t hidden, intermediate;
  bool is_fp8;
  GateKind kind;
  bool renormalize;
  float scaling_factor;
  std::vector<int64_t> rows;  // the numbers of tokens that are measured
  bool in_table = true;       // false: measured only if --models names it
  bool is_f16 = false;

  int experts() const { return routed + shared; }
  int slots() const { return top_k + shared; }
};
// Returns V3 and V2-Lite, and variants of them.
inline std::vector<Model> experts_models() {
  Model v3{"v3_fp8", 256, 1, 8, 8, 4, 7168, 256, true, GateKind::kSigmoidNoAuxTc, true, 2.5F, {1, 4, 16, 64}};
  Model v2{"v2_bf16",        64, 2, 6, 1, 1, 2048, 1408, false, GateKind::kSoftmaxGreedy, false, 1.0F,
           {1, 16, 64, 4096}};
  const auto variant = [](Model model, const char* name) {
    model.name = name;
    model.in_table = false;
    return model;
  };
  Model v3_tp1 = variant(v3, "v3_fp8_tp1");
  v3_tp1.intermediate = 2048;
  Model v2_tp8 = variant(v2, "v2_bf16_tp8");
  v2_tp8.intermediate = 256;
  v2_tp8.rows = {1, 16, 64};
  Model v2_f16 = variant(v2, "v2_f16");
  v2_f16.is_f16 = true;
  return {v3, v2, v3_tp1, v2_tp8, v2_f16};
}

// Holds kWeightSets sets of a layer's weights, one after the other in each buffer.
struct Weights {
  DeviceBuffer gate, bias, gate_up, gate_up_scales, down, down_scales, norm;

  Weights(const Model& model, CudaStream& stream) {
    const size_t per_product =
        static_cast<size_t>(model.experts() * kWeightSets) * model.hidden * model.intermediate;
    // Logits are N(0, 1), so that the experts' scores differ and no score saturates.
    const float sigma = 1.0F / std::sqrt(static_cast<float>(model.hidden));
    const auto random_16_bit = [&](size_t count, float deviation) {
      return model.is_f16 ? random_f16(count, stream, deviation) : random_bf16(count, stream, deviation);
    };
    gate = random_16_bit(kWeightSets * model.routed * model.hidden, sigma);
    bias = DeviceBuffer(model.routed * 4);
    fill_device(bias.data(), 0, bias.size(), stream.handle());
    norm = random_scales(model.hidden, stream);
    if (model.is_fp8) {
      gate_up = random_e4m3(2 * per_product, stream);
      down = random_e4m3(per_product, stream);
      // Products of N(0, 1) rows with such weights are again about N(0, 1).
      gate_up_scales = random_scales(2 * per_product / (128 * 128), stream, 1.0F / sigma);
      down_scales =
          random_scales(per_product / (128 * 128), stream, std::sqrt(static_cast<float>(model.intermediate)));
    } else {
      gate_up = random_16_bit(2 * per_product, sigma);
      down = random_16_bit(per_product, 1.0F / std::sqrt(static_cast<float>(model.intermediate)));
    }
    stream.synchronize();
  }
};

}  // namespace hadal::bench
