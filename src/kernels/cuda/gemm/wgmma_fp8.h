// The tiles of wgmma_fp8_linear and the choice among them. Internal to kernels/cuda/gemm, its tests and
// benches; free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/gemm.h"

namespace hadal::cuda {

// Rows × columns of a tile.
enum class Fp8Tile : uint8_t { k256x128, k128x192, k128x128, k128x64 };
inline constexpr Fp8Tile kFp8Tiles[] = {Fp8Tile::k256x128, Fp8Tile::k128x192, Fp8Tile::k128x128,
                                        Fp8Tile::k128x64};

// The tile that is expected to be fastest, from sizes alone.
Fp8Tile choose_fp8_tile(int64_t m, int64_t n, int64_t k, int num_sms);

// wgmma_fp8_linear with a given tile: any tile is right for any shape that wgmma_fp8_linear_takes.
void wgmma_fp8_linear_with(Fp8Tile tile, const LinearParams& params, const Launch& launch);

}  // namespace hadal::cuda
