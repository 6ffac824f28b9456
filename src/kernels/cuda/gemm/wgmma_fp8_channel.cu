// FP8 linears with row and channel scales and many rows: float32 sums over each 128 of k, scaled at the end.
#include "kernels/cuda/gemm/wgmma_linear.cuh"

namespace hadal::cuda::wgmma_linear_of {

void fp8_channel(LinearTile tile, const LinearParams& params, const Launch& launch,
                 const RestWorkspace& workspace) {
  run<fp8_e4m3, GemmScales::kChannels>(tile, params, launch, workspace);
}

}  // namespace hadal::cuda::wgmma_linear_of
