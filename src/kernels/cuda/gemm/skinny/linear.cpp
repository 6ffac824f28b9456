// Runs linear by weight streaming (gemm/skinny/kernel.cuh): it checks the arguments and chooses the
// instantiation.
#include "kernels/cuda/gemm/skinny/linear.h"

#include "base/check.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {

void skinny_linear(const DenseLinearParams& p, const Launch& launch) {
  skinny_linear(p, launch,
                skinny::schedule_of(p.w.type, p.m, p.w.n, blocks_of_k(p.w.type, p.w.k), launch.num_sms));
}

void skinny_linear(const DenseLinearParams& p, const Launch& launch, const skinny::Schedule& schedule) {
  HADAL_CHECK(skinny::supports(linear_shape(p)), "skinny_linear does not support m {}, n {}, k {}", p.m,
              p.w.n, p.w.k);
  HADAL_CHECK(schedule.tokens >= p.m, "a tile of {} tokens does not hold {} rows", schedule.tokens, p.m);
  switch (p.w.type) {
    case WeightType::kBF16:
      return skinny::linear_of<WeightType::kBF16>(p, launch, schedule);
    case WeightType::kF16:
      return skinny::linear_of<WeightType::kF16>(p, launch, schedule);
    case WeightType::kFp8Block:
      return skinny::linear_of<WeightType::kFp8Block>(p, launch, schedule);
    case WeightType::kFp8Channel:
      return skinny::linear_of<WeightType::kFp8Channel>(p, launch, schedule);
    case WeightType::kInt8Block:
      return skinny::linear_of<WeightType::kInt8Block>(p, launch, schedule);
    case WeightType::kInt8Channel:
      return skinny::linear_of<WeightType::kInt8Channel>(p, launch, schedule);
    case WeightType::kF32:
      break;
  }
}

}  // namespace hadal::cuda
