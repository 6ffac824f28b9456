// Computes grouped products on the tiled kernel of gemm/tiled/kernel.cuh, whose tile scheduler reads the
// experts' rows on the device. This file chooses the instantiation by type.
#include "base/check.h"
#include "kernels/cuda/experts/grouped/instantiations.h"
#include "kernels/cuda/experts/variants.h"

namespace hadal::cuda {

void wgmma_grouped_linear(const GroupedLinearParams& p, const Launch& launch, GroupedTile tile) {
  HADAL_CHECK(supports(ProductKernel::kTiled, grouped_shape(p, launch.num_sms)),
              "the tiled kernel does not support {} rows, {} experts, n {}, k {}", p.num_rows, p.num_experts,
              p.w.n, p.w.k);
  switch (p.w.type) {
    case WeightType::kBF16:
      return grouped_wgmma::linear_of<WeightType::kBF16>(p, tile, launch);
    case WeightType::kFp8Block:
      return grouped_wgmma::linear_of<WeightType::kFp8Block>(p, tile, launch);
    case WeightType::kFp8Channel:
      return grouped_wgmma::linear_of<WeightType::kFp8Channel>(p, tile, launch);
    case WeightType::kInt8Block:
      return grouped_wgmma::linear_of<WeightType::kInt8Block>(p, tile, launch);
    case WeightType::kInt8Channel:
      return grouped_wgmma::linear_of<WeightType::kInt8Channel>(p, tile, launch);
    case WeightType::kF16:
    case WeightType::kF32:
      break;
  }
}

}  // namespace hadal::cuda
