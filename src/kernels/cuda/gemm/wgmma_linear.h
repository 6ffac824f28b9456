// wgmma_linear with each of its tiles (gemm/choice.h). Internal to kernels/cuda/gemm, its tests and benches;
// free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::cuda {

// wgmma_linear with a given tile: any tile is right for any shape that wgmma_linear_takes. Its last round is
// shared as linear_rest says where there is a workspace for that.
void wgmma_linear_with(LinearTile tile, const LinearParams& params, const Launch& launch,
                       const RestWorkspace& workspace = {});

// The instantiations, a file a type.
namespace wgmma_linear_of {
void fp8_block(LinearTile tile, const LinearParams& params, const Launch& launch,
               const RestWorkspace& workspace);
void fp8_channel(LinearTile tile, const LinearParams& params, const Launch& launch,
                 const RestWorkspace& workspace);
void int8_block(LinearTile tile, const LinearParams& params, const Launch& launch,
                const RestWorkspace& workspace);
void int8_channel(LinearTile tile, const LinearParams& params, const Launch& launch,
                  const RestWorkspace& workspace);
}  // namespace wgmma_linear_of

}  // namespace hadal::cuda
