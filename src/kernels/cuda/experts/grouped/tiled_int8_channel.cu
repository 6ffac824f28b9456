// Grouped products of INT8 with row and channel scales.
#include "kernels/cuda/experts/grouped/tiled.cuh"

namespace hadal::cuda::grouped_wgmma {

void run_int8_channel(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch) {
  run<int8_t, GemmScales::kChannels>(params, tile, launch);
}

}  // namespace hadal::cuda::grouped_wgmma
