// Computes grouped products by weight streaming (gemm/skinny/kernel.cuh). This file chooses the instantiation
// by type.
#include "base/check.h"
#include "kernels/cuda/experts/grouped/instantiations.h"
#include "kernels/cuda/experts/variants.h"

namespace hadal::cuda {

void grouped_skinny_linear(const GroupedLinearParams& p, const Launch& launch,
                           const skinny::Schedule& schedule) {
  HADAL_CHECK(supports(ProductKernel::kSkinny, grouped_shape(p, launch.num_sms)),
              "the weight-streaming kernel does not support {} rows, {} experts, n {}, k {}", p.num_rows,
              p.num_experts, p.w.n, p.w.k);
  switch (p.w.type) {
    case WeightType::kBF16:
      return skinny::grouped_of<WeightType::kBF16>(p, launch, schedule);
    case WeightType::kF16:
      return skinny::grouped_of<WeightType::kF16>(p, launch, schedule);
    case WeightType::kFp8Block:
      return skinny::grouped_of<WeightType::kFp8Block>(p, launch, schedule);
    case WeightType::kInt8Block:
      return skinny::grouped_of<WeightType::kInt8Block>(p, launch, schedule);
    case WeightType::kFp8Channel:
      return skinny::grouped_of<WeightType::kFp8Channel>(p, launch, schedule);
    case WeightType::kInt8Channel:
      return skinny::grouped_of<WeightType::kInt8Channel>(p, launch, schedule);
    case WeightType::kF32:
      break;
  }
}

}  // namespace hadal::cuda
