// Runs linears with 8-bit weights and many rows on the tiled kernel of gemm/tiled/kernel.cuh: it checks the
// arguments and chooses the instantiation by type.
#include "kernels/cuda/gemm/tiled/linear.h"

#include "base/check.h"
#include "kernels/cuda/gemm/tiled/supports.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {

void wgmma_linear(const DenseLinearParams& p, const Launch& launch) {
  wgmma_linear_with(choose_linear_tile(p.w.type, p.m, p.w.n, p.w.k, launch.num_sms), p, launch);
}

void wgmma_linear_with(LinearTile tile, const DenseLinearParams& p, const Launch& launch,
                       const RestWorkspace& workspace) {
  HADAL_CHECK(tiled::supports(linear_shape(p)), "wgmma_linear does not support m {}, n {}, k {}, y stride {}",
              p.m, p.w.n, p.w.k, p.y_stride);
  switch (p.w.type) {
    case WeightType::kFp8Block:
      return tiled::linear_of<WeightType::kFp8Block>(tile, p, launch, workspace);
    case WeightType::kFp8Channel:
      return tiled::linear_of<WeightType::kFp8Channel>(tile, p, launch, workspace);
    case WeightType::kInt8Block:
      return tiled::linear_of<WeightType::kInt8Block>(tile, p, launch, workspace);
    case WeightType::kInt8Channel:
      return tiled::linear_of<WeightType::kInt8Channel>(tile, p, launch, workspace);
    case WeightType::kF32:
    case WeightType::kBF16:
    case WeightType::kF16:
      break;
  }
}

}  // namespace hadal::cuda
