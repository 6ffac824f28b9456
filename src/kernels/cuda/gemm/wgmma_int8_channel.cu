// INT8 linears with row and channel scales and many rows: int32 sums over all of k, scaled at the end.
#include "kernels/cuda/gemm/wgmma_linear.cuh"

namespace hadal::cuda::wgmma_linear_of {

void int8_channel(LinearTile tile, const LinearParams& params, const Launch& launch,
                  const RestWorkspace& workspace) {
  run<int8_t, GemmScales::kChannels>(tile, params, launch, workspace);
}

}  // namespace hadal::cuda::wgmma_linear_of
