// Declares wgmma_linear with each of its tiles (gemm/choice.h). This header is internal to kernels/cuda/gemm,
// its tests and benches; it includes no CUDA header.
#pragma once

#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::cuda {

// Runs wgmma_linear with a given tile. Every tile is correct for every shape for which tiled::supports() is
// true. If there is a workspace, the last round is shared as linear_rest decides.
void wgmma_linear_with(LinearTile tile, const DenseLinearParams& params, const Launch& launch,
                       const RestWorkspace& workspace = {});

namespace tiled {
// Supports the 8-bit types; src/kernels/cuda/CMakeLists.txt instantiates it.
template <WeightType kType>
void linear_of(LinearTile tile, const DenseLinearParams& params, const Launch& launch,
               const RestWorkspace& workspace);
}  // namespace tiled

}  // namespace hadal::cuda
