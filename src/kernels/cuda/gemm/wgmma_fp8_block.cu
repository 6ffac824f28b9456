// FP8 linears with block scales and many rows.
#include "kernels/cuda/gemm/wgmma_linear.cuh"

namespace hadal::cuda::wgmma_linear_of {

void fp8_block(LinearTile tile, const LinearParams& params, const Launch& launch,
               const RestWorkspace& workspace) {
  run<fp8_e4m3, GemmScales::kBlocks>(tile, params, launch, workspace);
}

}  // namespace hadal::cuda::wgmma_linear_of
