// Grouped products of FP8 with block scales.
#include "kernels/cuda/experts/grouped/tiled.cuh"

namespace hadal::cuda::grouped_wgmma {

void run_fp8_block(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch) {
  run<fp8_e4m3, GemmScales::kBlocks>(params, tile, launch);
}

}  // namespace hadal::cuda::grouped_wgmma
