// A layer's routed and shared experts for up to eight tokens, from the router's input to the experts' rows,
// in two kernels: what many tokens take five for. experts/few/kernel.cuh says how. Free of CUDA headers.
#pragma once

#include "kernels/cuda/experts/experts.h"

namespace hadal::cuda {

inline constexpr int64_t kMaxFewTokens = 8;

// Rows as the separate kernels leave them: logits = x · gateᵀ; route; y = down(silu(gate_up) · …) of each
// row, in order of expert. The norm behind sums them.
struct FewExpertsParams {
  const void* x = nullptr;  // [m, gate.k], rows x_stride apart: the router's input, and 16-bit experts'
  int64_t x_stride = 0;
  QuantizedRows x_quantized;  // the same for FP8 experts
  MatrixWeight gate;          // [route.num_experts, hidden], bf16, or float16 as the experts
  RouteParams route;          // m, the gate and its outputs; logits and scratch are not used
  MatrixWeight gate_up;       // of expert 0: [2 · intermediate, hidden]
  int64_t gate_up_stride = 0, gate_up_scale_stride = 0;  // elements, scales between experts
  MatrixWeight down;                                     // of expert 0: [hidden, intermediate]
  int64_t down_stride = 0, down_scale_stride = 0;
  void* y = nullptr;        // of x's type: [m · (top_k + num_shared), hidden], dense
  void* scratch = nullptr;  // few_experts_scratch_bytes(...), 16-byte aligned
  int splits = 0;           // of gate_up's k: 1 … 8; 0: by shape
};

// Bytes of `scratch`; more tokens never need less.
size_t few_experts_scratch_bytes(const FewExpertsParams& params);
// Shapes, types and alignment that the kernels are compiled for.
bool few_experts_take(const FewExpertsParams& params, int num_sms);
// Whether they are ahead of the separate kernels (docs/kernels/cuda-few-experts.md): the same for all numbers
// of tokens up to a power of two.
bool few_experts_pay(const FewExpertsParams& params);
// One of the two kernels: the second follows the first with nothing between them.
enum class FewStage : uint8_t { kRouter, kExperts };
void few_experts(const FewExpertsParams& params, FewStage stage, const Launch& launch);
// Both kernels.
void few_experts(const FewExpertsParams& params, const Launch& launch);

namespace few {
// Sums of a split of k: parts[split][token][expert], kRouterSplits of them.
inline constexpr int kRouterSplits = 8;
inline constexpr int kMaxRouterK = 8192;  // what the warps of a split's block hold in registers
// What the experts' kernel is compiled for.
inline constexpr int kTileRows = 64;      // of W
inline constexpr int kSlotK = 128;        // bytes of k
inline constexpr int kMaxSplits = 8;      // of gate_up's k
inline constexpr int kMaxDownSlots = 24;  // of down's k: rows of two experts beside the ring
inline constexpr int kMaxExperts = 288;   // with the shared ones: a thread each
// The bits of a sum that is not there yet: no arithmetic has this NaN for a result.
inline constexpr uint32_t kAbsent = 0xffffffffU;
// And sums[0 … num_sums) = kAbsent.
void router(const FewExpertsParams& params, float* parts, float* sums, size_t num_sums, const Launch& launch);
void experts_bf16(const FewExpertsParams& params, const float* parts, float* sums, const Launch& launch);
void experts_f16(const FewExpertsParams& params, const float* parts, float* sums, const Launch& launch);
void experts_fp8(const FewExpertsParams& params, const float* parts, float* sums, const Launch& launch);
int splits_of(const FewExpertsParams& params);
}  // namespace few

}  // namespace hadal::cuda
