// Grouped products of FP8 with row and channel scales.
#include "kernels/cuda/experts/grouped/tiled.cuh"

namespace hadal::cuda::grouped_wgmma {

void run_fp8_channel(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch) {
  run<fp8_e4m3, GemmScales::kChannels>(params, tile, launch);
}

}  // namespace hadal::cuda::grouped_wgmma
