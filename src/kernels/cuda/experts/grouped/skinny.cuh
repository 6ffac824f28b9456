// Runs grouped_linear on the weight-streaming kernel (gemm/skinny/kernel.cuh), for one type of weights.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/grouped/instantiations.h"
#include "kernels/cuda/gemm/skinny/launch.cuh"

namespace hadal::cuda::skinny {

template <WeightType kType>
void grouped_of(const GroupedLinearParams& p, const Launch& launch, const Schedule& schedule) {
  Args args;
  set_rows<kType>(args, p.x, p.x_stride, p.x_quantized, p.w.k);
  args.expert_scale_stride = p.expert_scale_stride;
  args.token_of = p.token_of;
  args.expert_offsets = p.expert_offsets;
  args.num_experts = p.num_experts;
  args.offsets_settled = p.offsets_settled ? 1 : 0;
  args.y = p.y;
  args.y_stride = p.w.n;
  const int with_rows = static_cast<int>(std::min<int64_t>(p.num_experts, p.num_rows));
  const auto run = [&]<int kTokens, int kGroups>() {
    launch_skinny<kType, kTokens, kGroups, true>(launch, p.w, p.num_experts, p.expert_stride, with_rows,
                                                 schedule, args);
  };
  const auto run_width = [&]<int kTokens>() {
    if constexpr (has_two_groups(kType)) {
      if (schedule.groups == 2) return run.template operator()<kTokens, 2>();
    }
    HADAL_CHECK(schedule.groups == 1, "{} warpgroups", schedule.groups);
    run.template operator()<kTokens, 1>();
  };
  if (schedule.tokens == 16) return run_width.template operator()<16>();
  run_width.template operator()<64>();
}

}  // namespace hadal::cuda::skinny
