// Grouped products of bf16.
#include "kernels/cuda/experts/grouped/tiled.cuh"

namespace hadal::cuda::grouped_wgmma {

void run_bf16(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch) {
  run<bf16, GemmScales::kNone>(params, tile, launch);
}

}  // namespace hadal::cuda::grouped_wgmma
