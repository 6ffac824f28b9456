// wgmma_linear with each of its tiles (gemm/choice.h). Internal to kernels/cuda/gemm, its tests and benches;
// free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::cuda {

// wgmma_linear with a given tile: any tile is right for any shape that wgmma_linear_takes. If there is a
// workspace, its last round is shared as linear_rest says.
void wgmma_linear_with(LinearTile tile, const DenseLinearParams& params, const Launch& launch,
                       const RestWorkspace& workspace = {});

namespace tiled {
// The 8-bit types; instantiated by CMakeLists.txt of kernels/cuda.
template <WeightType kType>
void linear_of(LinearTile tile, const DenseLinearParams& params, const Launch& launch,
               const RestWorkspace& workspace);
}  // namespace tiled

}  // namespace hadal::cuda
