// linear on the weight-streaming kernel, for one type of weights.
#pragma once

#include "kernels/cuda/gemm/skinny_launch.cuh"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda::skinny {

void linear_fp8(const LinearParams& p, const Launch& launch, const Schedule& schedule);

template <WeightType kType>
void linear_of(const LinearParams& p, const Launch& launch, const Schedule& schedule) {
  Args args;
  set_rows<kType>(args, p.x, p.x_stride, p.x_fp8, p.w.k);
  args.y = p.y_f32 != nullptr ? static_cast<void*>(p.y_f32) : static_cast<void*>(p.y);
  args.y_is_f32 = p.y_f32 != nullptr ? 1 : 0;
  args.y_stride = p.y_stride;
  args.m = static_cast<int>(p.m);
  const auto run = [&]<int kTokens, int kGroups>() {
    launch_skinny<kType, kTokens, kGroups, false>(launch, p.w, 1, 0, 1, schedule, args);
  };
  const bool two = schedule.groups == 2;
  switch (schedule.tokens) {
    case 8:
      return two ? run.template operator()<8, 2>() : run.template operator()<8, 1>();
    case 16:
      return two ? run.template operator()<16, 2>() : run.template operator()<16, 1>();
    case 32:
      return two ? run.template operator()<32, 2>() : run.template operator()<32, 1>();
    default:
      return two ? run.template operator()<64, 2>() : run.template operator()<64, 1>();
  }
}

}  // namespace hadal::cuda::skinny
