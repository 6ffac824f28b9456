// This is the common engine of linear, batched_linear, mlp and moe: it cuts matrix products into panels of
// weight rows, and a thread computes any panel alone, in any order, without changing a bit of the result.
//
// A panel is `panel_rows` consecutive rows of a weight. For SwiGLU it is half as many rows of gate and of up:
// their products are combined to silu(gate) · up before they are stored. Activations are read in a packed
// order (PackedRows), so that a tile of tokens is contiguous along k. For few tokens, weights are transposed
// and used at once, straight from the mapping (gemm_stream-inl.h); for many, a 128-wide block of the panel is
// widened to float32 in the thread's scratch and used for all tokens (gemm_tile-inl.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/params/linear.h"

namespace hadal::cpu::simd {

inline constexpr int64_t kBlockDepth = 128;  // depth in k of a widened block, and of a scale of block weights
// These bytes between staged rows keep the rows out of each other's cache sets.
inline constexpr int64_t kStagedPadding = 64;

// PackedRows says how m rows are cut into tiles of nearly equal height, and where element (row, k) of [m,
// num_k] is stored: blocks of 128 k contain tiles, and tiles are k-major. A single row is packed unchanged.
struct PackedRows {
  int64_t m = 0;
  int64_t num_tiles = 0;

  PackedRows(int64_t rows, int max_tile) : m(rows), num_tiles((rows + max_tile - 1) / max_tile) {}
  int64_t tile_begin(int64_t tile) const { return tile * (m / num_tiles) + std::min(tile, m % num_tiles); }
  int tile_height(int64_t tile) const { return static_cast<int>(tile_begin(tile + 1) - tile_begin(tile)); }
  // Returns the offset of the first element of (tile, k); k may lie anywhere in its block.
  int64_t offset(int64_t tile, int64_t k, int64_t num_k) const {
    const int64_t block_k = k / kBlockDepth * kBlockDepth;
    const int64_t depth = std::min(kBlockDepth, num_k - block_k);
    return block_k * m + tile_begin(tile) * depth + (k - block_k) * tile_height(tile);
  }
};

// Product is one matrix product. Gate and up have equal shapes, types and strides.
struct Product {
  MatrixWeight w;                    // [n, k]: the weight, or gate
  const MatrixWeight* up = nullptr;  // SwiGLU: y = silu(w · x) ⊙ (up · x)
  const float* x = nullptr;          // [m, k] packed
  float* y = nullptr;  // [m, n]: rows y_stride apart; with `up` packed as the input of a product over n
  int64_t m = 0;
  int64_t y_stride = 0;
};

// PanelTask is one panel of a product.
struct PanelTask {
  const Product* product = nullptr;
  int64_t panel = 0;
};

// Engine holds the functions and sizes of one instruction set.
struct Engine {
  int panel_rows;  // weight rows per panel (rows of w; for SwiGLU half from w, half from up)
  int max_tile;    // rows per tile of packed activations
  // Computes a panel. `next` (product null: none) is this thread's next task, whose weights are prefetched
  // meanwhile. `scratch` has engine_scratch_floats() floats, is 64-byte aligned, and private to this thread.
  void (*run_panel)(const PanelTask& task, const PanelTask& next, float* scratch);
  // Packs one tile of one block of 128 k: row i of x is x + rows[i] · x_stride (rows null: i · x_stride).
  void (*pack_block)(const float* x, int64_t x_stride, const int32_t* rows, int64_t m, int64_t k,
                     int64_t tile, int64_t block, float* packed);
  // Computes y[i] = Σ_j weights[j] · parts[j][i] (fused, j ascending, from +0), then adds last[i] if last is
  // not null.
  void (*combine)(const float* weights, const float* const* parts, int num_parts, const float* last,
                  int64_t n, float* y);
};

// Returns the engine of the best instruction set of this processor.
const Engine& engine();

inline int64_t num_panels(const Engine& engine, const Product& product) {
  const int rows = product.up != nullptr ? engine.panel_rows / 2 : engine.panel_rows;
  return (product.w.n + rows - 1) / rows;
}

// Returns the scratch of one thread for products of up to m rows: a widened block, sums and staged rows of a
// ragged panel.
inline int64_t engine_scratch_floats(const Engine& engine, int64_t m) {
  return engine.panel_rows * (kBlockDepth + m + kBlockDepth + kStagedPadding / 4);
}

}  // namespace hadal::cpu::simd
