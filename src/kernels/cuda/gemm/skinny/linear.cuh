// Runs linear on the weight-streaming kernel (gemm/skinny/kernel.cuh), for one type of weights.
#pragma once

#include "kernels/cuda/gemm/skinny/launch.cuh"

namespace hadal::cuda::skinny {

template <WeightType kType>
void linear_of(const DenseLinearParams& p, const Launch& launch, const Schedule& schedule) {
  Args args;
  set_rows<kType>(args, p.x, p.x_stride, p.x_quantized, p.w.k);
  args.y = p.y_f32 != nullptr ? static_cast<void*>(p.y_f32) : p.y;
  args.y_is_f32 = p.y_f32 != nullptr ? 1 : 0;
  args.y_stride = p.y_stride;
  args.bias = p.bias;
  args.gate = p.gate;
  args.m = static_cast<int>(p.m);
  const auto run = [&]<int kTokens, int kGroups>() {
    launch_skinny<kType, kTokens, kGroups, false>(launch, p.w, 1, 0, 1, schedule, args);
  };
  const auto run_width = [&]<int kTokens>() {
    if constexpr (has_two_groups(kType)) {
      if (schedule.groups == 2) return run.template operator()<kTokens, 2>();
    }
    HADAL_CHECK(schedule.groups == 1, "{} warpgroups", schedule.groups);
    run.template operator()<kTokens, 1>();
  };
  switch (schedule.tokens) {
    case 8:
      return run_width.template operator()<8>();
    case 16:
      return run_width.template operator()<16>();
    case 32:
      return run_width.template operator()<32>();
    default:
      return run_width.template operator()<64>();
  }
}

}  // namespace hadal::cuda::skinny
