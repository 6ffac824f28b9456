// Holds the parameters of the feed-forward blocks: the gated SiLU MLP, the three gates of the DeepSeek
// family, and routed experts.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/params/linear.h"

namespace hadal {

// SwiGLU computes y = down( silu(gate · x) ⊙ (up · x) ), for dense layers, shared experts and each routed
// expert. On the CPU silu is the fixed sequence of float32 operations of cpu/reference/silu.h, so that its
// bits do not depend on the instruction set. Gate and up have equal types and row strides.
struct MlpWeights {
  MatrixWeight gate;  // [intermediate, hidden]
  MatrixWeight up;    // [intermediate, hidden]
  MatrixWeight down;  // [hidden, intermediate]
};

// An intermediate size of 0 gives zeros.
struct MlpParams {
  const float* x = nullptr;  // [m, hidden], dense rows
  float* y = nullptr;        // [m, hidden], dense rows; overwritten
  int64_t m = 0;
  MlpWeights weights;
};

enum class GateKind : uint8_t {
  kSoftmaxGreedy,        // V2-Lite: softmax, best top_k
  kSoftmaxGroupLimited,  // V2: softmax; a group's score is its maximum; best top_k inside the best topk_group
                         // groups
  kSigmoidNoAuxTc,  // V3: sigmoid; bias added for selection only; a group's score is the sum of its two best
};

// Chooses experts from router logits: DeepSeek-V2 (arXiv 2405.04434 §2.2), DeepSeek-V3 (arXiv 2412.19437
// §2.1.2). Ties go to the lower expert (and group) index. The weights are the unbiased scores of the chosen
// experts, divided by (their sum + 1e-20) when `renormalize`, then multiplied by scaling_factor. Chosen
// experts come in descending order of selection score.
struct GateParams {
  const float* logits = nullptr;  // [m, num_experts]
  const float* bias = nullptr;    // [num_experts], kSigmoidNoAuxTc only
  int32_t* topk_ids = nullptr;    // [m, top_k]
  float* topk_weights = nullptr;  // [m, top_k]
  int64_t m = 0;
  int num_experts = 0;
  int top_k = 0;
  int num_groups = 1;
  int topk_groups = 1;
  GateKind kind = GateKind::kSigmoidNoAuxTc;
  bool renormalize = true;
  float scaling_factor = 1.0F;
};

// Computes y[t, :] = Σ_j topk_weights[t, j] · expert(topk_ids[t, j])(x[t, :]) + shared(x[t, :]), summed over
// j in ascending order from +0 with fused multiply-adds. Choices whose expert is not in `experts`, or has an
// intermediate size of 0, are skipped. The shared expert, when present, is added last with weight 1.
struct MoeParams {
  const float* x = nullptr;  // [m, hidden], dense rows
  float* y = nullptr;        // [m, hidden], dense rows; overwritten
  int64_t m = 0;
  int64_t hidden = 0;
  const int32_t* topk_ids = nullptr;    // [m, top_k], each in [0, num_experts)
  const float* topk_weights = nullptr;  // [m, top_k]
  int top_k = 0;
  int num_experts = 0;                  // of the model
  int first_expert = 0;                 // experts[0] has this index in the model
  std::span<const MlpWeights> experts;  // [≤ num_experts - first_expert]; may be empty
  const MlpWeights* shared = nullptr;   // null when there is none; its intermediate size is not 0
};

}  // namespace hadal
