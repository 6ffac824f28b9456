// Defines the parameters of the kernel for few tokens, and numbers its tiles.
#pragma once

#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/experts/few/route.cuh"

namespace hadal::cuda::few {

// Describes one of the two products.
struct Product {
  int num_blocks = 0;      // slots into which k is divided
  int tiles = 0;           // tiles of one expert; at least 2
  uint32_t per_tiles = 0;  // 2^32 / tiles, rounded up
  const float* scales = nullptr;
  int64_t scale_stride = 0, expert_scale_stride = 0;
};
// These return the place of a tile's expert in routing.order, and the tile's first row of W.
__device__ __forceinline__ int place_of(const Product& w, int tile) {
  return static_cast<int>(
      __umulhi(static_cast<uint32_t>(tile), w.per_tiles));  // exact: tile · w.tiles < 2^32
}
__device__ __forceinline__ int row_of(const Product& w, int tile) {
  return (tile - place_of(w, tile) * w.tiles) * kTileRows;
}

struct Args {
  RouteParams route;
  const float* parts = nullptr;
  float* sums = nullptr;  // [splits][rows][sums_n]
  int sums_n = 0;         // 2 · intermediate
  int splits = 0;
  int x_slots = 0;
  Product gate_up, down;
  const float* x_scales = nullptr;
  int64_t x_scale_stride = 0;
  void* y = nullptr;  // [rows, y_stride]
  int y_stride = 0;
  int power_of_two = 0;  // 1: scales of the activated rows are powers of two
};

// Returns the place of an expert's weights among those that are held.
__device__ __forceinline__ int weights_of(const Args& args, int expert) {
  return expert - args.route.first_held;
}

// Returns, in lane b, the scale of block block0 + b of a tile's rows. `expert` is the result of weights_of.
__device__ __forceinline__ float scale_of_block(const Product& w, int expert, int row0, int block0,
                                                int num_blocks) {
  const int lane = threadIdx.x % 32;
  if (lane >= num_blocks) return 0.0F;
  return w.scales[expert * w.expert_scale_stride + row0 / 128 * w.scale_stride + block0 + lane];
}

}  // namespace hadal::cuda::few
