// Grouped products of INT8 with block scales.
#include "kernels/cuda/experts/grouped/tiled.cuh"

namespace hadal::cuda::grouped_wgmma {

void run_int8_block(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch) {
  run<int8_t, GemmScales::kBlocks>(params, tile, launch);
}

}  // namespace hadal::cuda::grouped_wgmma
