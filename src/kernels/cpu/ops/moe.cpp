#include "kernels/cpu/ops/moe.h"

#include "kernels/cpu/ops/dispatch.h"

namespace hadal {

void gate(const Tensor& logits, const float* bias, const GateOptions& options, const Tensor& topk_ids,
          const Tensor& topk_weights, ExecContext& exec) {
  HADAL_CHECK(logits.rank == 2 && logits.is_contiguous(), "dense logits");
  HADAL_CHECK_EQ(topk_ids.shape[0], logits.shape[0]);
  HADAL_CHECK_EQ(topk_weights.shape[1], topk_ids.shape[1]);
  HADAL_CHECK_EQ(logits.shape[1] % options.num_groups, 0);
  HADAL_CHECK((bias != nullptr) == (options.kind == GateKind::kSigmoidNoAuxTc),
              "noaux_tc needs a bias, other gates have none");
  const GateParams params{.logits = logits.ptr<const float>(),
                          .bias = bias,
                          .topk_ids = topk_ids.ptr<int32_t>(),
                          .topk_weights = topk_weights.ptr<float>(),
                          .m = logits.shape[0],
                          .num_experts = static_cast<int>(logits.shape[1]),
                          .top_k = static_cast<int>(topk_ids.shape[1]),
                          .num_groups = options.num_groups,
                          .topk_groups = options.topk_groups,
                          .kind = options.kind,
                          .renormalize = options.renormalize,
                          .scaling_factor = options.scaling_factor};
  HADAL_DISPATCH_CPU(gate, params, exec);
}

void moe(const Tensor& x, const Tensor& topk_ids, const Tensor& topk_weights, const LocalExperts& experts,
         const MlpWeights* shared, const Tensor& y, ExecContext& exec) {
  HADAL_CHECK(x.rank == 2 && x.is_contiguous() && y.is_contiguous(), "dense rows");
  HADAL_CHECK_EQ(x.shape[0], y.shape[0]);
  HADAL_CHECK_EQ(topk_ids.shape[0], x.shape[0]);
  HADAL_CHECK_EQ(y.shape[1], x.shape[1]);
  const auto num_local = static_cast<int64_t>(experts.weights.size());
  HADAL_CHECK(experts.first >= 0 && experts.first + num_local <= experts.num_experts, "experts {}+{} of {}",
              experts.first, num_local, experts.num_experts);
  if (num_local > 0) HADAL_CHECK_EQ(experts.weights[0].gate.k, x.shape[1]);
  if (x.shape[0] == 0) return;
  const MoeParams params{.x = x.ptr<const float>(),
                         .y = y.ptr<float>(),
                         .m = x.shape[0],
                         .hidden = x.shape[1],
                         .topk_ids = topk_ids.ptr<const int32_t>(),
                         .topk_weights = topk_weights.ptr<const float>(),
                         .top_k = static_cast<int>(topk_ids.shape[1]),
                         .num_experts = static_cast<int>(experts.num_experts),
                         .first_expert = static_cast<int>(experts.first),
                         .experts = experts.weights,
                         .shared = shared};
  HADAL_DISPATCH_CPU(moe, params, exec);
}

}  // namespace hadal
