#include "model/blocks/feed_forward.h"

#include <vector>

#include "kernels/cpu/ops/linear.h"

namespace hadal {
namespace {

GateKind gate_kind(TopkMethod method) {
  switch (method) {
    case TopkMethod::kGreedy:
      return GateKind::kSoftmaxGreedy;
    case TopkMethod::kGroupLimitedGreedy:
      return GateKind::kSoftmaxGroupLimited;
    case TopkMethod::kNoauxTc:
      return GateKind::kSigmoidNoAuxTc;
  }
  return GateKind::kSigmoidNoAuxTc;
}

}  // namespace

Router make_router(const ModelConfig& config) {
  return {.gate = {.kind = gate_kind(config.topk_method),
                   .num_groups = static_cast<int>(config.n_group),
                   .topk_groups = static_cast<int>(config.topk_group),
                   .renormalize = config.norm_topk_prob,
                   .scaling_factor = static_cast<float>(config.routed_scaling_factor)},
          .top_k = config.num_experts_per_tok};
}

int32_t moe_block(const MoeWeights& weights, const Router& router, const Tensor& x, const Tensor& y,
                  ExecContext& exec) {
  const Arena::Scope scope(exec.workspace);
  const int64_t m = x.shape[0];
  const Tensor logits = exec.workspace.tensor<float>({m, weights.gate.n});
  const Tensor ids = exec.workspace.tensor<int32_t>({m, router.top_k});
  const Tensor scores = exec.workspace.tensor<float>({m, router.top_k});
  linear(x, weights.gate, logits, exec);
  gate(logits, weights.correction_bias, router.gate, ids, scores, exec);
  moe(x, ids, scores,
      {.weights = weights.experts, .first = weights.first_expert, .num_experts = weights.gate.n},
      weights.shared ? &*weights.shared : nullptr, y, exec);

  std::vector<bool> hit(static_cast<size_t>(weights.gate.n));
  int32_t distinct = 0;
  const auto* id = ids.ptr<const int32_t>();
  for (int64_t i = 0; i < m * router.top_k; ++i) {
    if (!hit[id[i]]) {
      hit[id[i]] = true;
      ++distinct;
    }
  }
  return distinct;
}

}  // namespace hadal
