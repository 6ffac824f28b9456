// wgmma_fp8_linear with each of its tiles (gemm/choice.h). Internal to kernels/cuda/gemm, its tests and
// benches; free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::cuda {

// wgmma_fp8_linear with a given tile: any tile is right for any shape that wgmma_fp8_linear_takes.
void wgmma_fp8_linear_with(Fp8Tile tile, const LinearParams& params, const Launch& launch);

}  // namespace hadal::cuda
