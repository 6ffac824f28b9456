// INT8 linears with block scales and many rows: exact sums over each 128 of k, joined in float32.
#include "kernels/cuda/gemm/wgmma_linear.cuh"

namespace hadal::cuda::wgmma_linear_of {

void int8_block(LinearTile tile, const LinearParams& params, const Launch& launch,
                const RestWorkspace& workspace) {
  run<int8_t, GemmScales::kBlocks>(tile, params, launch, workspace);
}

}  // namespace hadal::cuda::wgmma_linear_of
