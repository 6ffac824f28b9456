// Computes a layer's routed and shared experts for up to eight tokens, from the router's input to the
// experts' rows, with two kernels instead of the five that more tokens need. few/choice.h says which shapes
// the two kernels support, and few/kernel.cuh how they work. This header includes no CUDA header.
#pragma once

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/few/choice.h"

namespace hadal::cuda {

// The results are those of the separate kernels: logits = x · gateᵀ; route; y = down(silu(gate) · up) for
// each row, in the order of experts. The norm that follows adds up the rows of each token.
struct FewExpertsParams {
  const void* x = nullptr;  // [m, gate.k], rows x_stride apart: input of the router and of 16-bit experts
  int64_t x_stride = 0;
  QuantizedRows x_quantized;  // input of FP8 experts
  MatrixWeight gate;          // [route.num_experts, hidden], bf16; float16 if the experts are
  RouteParams route;          // m, the gate and its outputs; logits and scratch are not used
  MatrixWeight gate_up;       // expert 0's: [2 · intermediate, hidden]
  int64_t gate_up_stride = 0, gate_up_scale_stride = 0;  // elements and scales between experts
  MatrixWeight down;                                     // expert 0's: [hidden, intermediate]
  int64_t down_stride = 0, down_scale_stride = 0;
  void* y = nullptr;        // [m · (top_k + num_shared), hidden] in x's type, dense
  void* scratch = nullptr;  // few::scratch_bytes(shape, splits), aligned to 16 bytes
  int splits = 0;           // parts of gate_up's k: 1 … 8; 0: few::splits_of(shape)
};

// Returns the shape of the parameters. few::supports() must return true for it before the kernels run.
ExpertsShape experts_shape(const FewExpertsParams& params, int num_sms);

// Names the two kernels. The second must follow the first directly.
enum class FewStage : uint8_t { kRouter, kExperts };
void few_experts(const FewExpertsParams& params, FewStage stage, const Launch& launch);
// Runs both kernels.
void few_experts(const FewExpertsParams& params, const Launch& launch);

namespace few {
// These bits stand for a sum that has not been written yet. No arithmetic gives this NaN.
inline constexpr uint32_t kAbsent = 0xffffffffU;
// Launches the router's kernel, which also sets sums[0 … num_sums) to kAbsent.
void router(const FewExpertsParams& params, float* parts, float* sums, size_t num_sums, const Launch& launch);
// Launches the experts' kernel for one type of weights. params.splits must be set.
template <WeightType kType>
void experts_of(const FewExpertsParams& params, const float* parts, float* sums, const Launch& launch);
}  // namespace few

}  // namespace hadal::cuda
