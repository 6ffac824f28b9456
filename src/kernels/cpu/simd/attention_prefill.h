// Shapes and buffers of un-absorbed attention on the CPU: what mla_prefill.cpp computes in which phase.
//
// The (segment, page) pairs of a call are walked in windows of at most kWindowPages pages, heads in groups of
// at most kGroupHeads, so that scratch is bounded whatever the context. For each group of heads:
//   weights   W_UK widened to rows, W_UV to panels                          one task a head
//   then for each window:
//   latents   records widened to rows and to transposed panels              one task a page
//   expand    Kᵀ = W_UK · latentᵀ and V = latent · W_UVᵀ                    one task a (head, page)
//   attend    online softmax over the window's pages in order               one task a (run, head, query
//   tile)
// A run is what a window holds of one segment. Between windows a query's state (maximum, sum, weighted
// values) waits in `maxima`, `sums` and the output rows.
//
// "Panel" means [k, width] with width = 2 vectors: the B operand of gemm_tile-inl.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/params/mla.h"

namespace hadal::cpu::simd {

inline constexpr int kNopeDim = 128;
inline constexpr int kValueDim = 128;
inline constexpr int kQkDim = kNopeDim + kKvRopeDim;
inline constexpr int64_t kWindowPages = 8;
inline constexpr int64_t kGroupHeads = 16;
inline constexpr int64_t kQueryTile = 48;  // rows of queries a task: a multiple of every tile height

struct PrefillPage {
  int32_t segment = 0;
  int32_t page = 0;      // index in the sequence: positions [64 · page, 64 · page + num_keys)
  int32_t num_keys = 0;  // of the segment's kv_len in this page, 1 … 64
};

struct PrefillRun {
  int64_t begin = 0;  // index into the window's pages
  int64_t count = 0;
};

// Buffers of one (head, page) in floats.
inline constexpr int64_t kKeyFloats = int64_t{kQkDim} * kPageSize;       // [64 / width][192][width]
inline constexpr int64_t kValueFloats = int64_t{kValueDim} * kPageSize;  // [128 / width][64][width]
inline constexpr int64_t kLatentFloats = int64_t{kKvRowDim} * kPageSize;
inline constexpr int64_t kUkFloats = int64_t{kNopeDim} * kKvLatentDim;   // [128][512]
inline constexpr int64_t kUvFloats = int64_t{kValueDim} * kKvLatentDim;  // [128 / width][512][width]

// All buffers of a call, 64-byte aligned.
struct PrefillBuffers {
  float* w_uk = nullptr;           // [kGroupHeads] of kUkFloats
  float* w_uv = nullptr;           // [kGroupHeads] of kUvFloats
  float* latent_rows = nullptr;    // [kWindowPages][64][576], zeros beyond num_keys
  float* latent_panels = nullptr;  // [kWindowPages][64 / width][576][width]
  float* keys = nullptr;           // [kGroupHeads][kWindowPages] of kKeyFloats
  float* values = nullptr;         // [kGroupHeads][kWindowPages] of kValueFloats
  float* maxima = nullptr;         // [num_tokens, num_heads]
  float* sums = nullptr;           // [num_tokens, num_heads]
  float* workspaces = nullptr;     // [num_threads] of PrefillWorkspace::kFloats
};

// One thread's memory during `attend`.
struct PrefillWorkspace {
  float* q = nullptr;        // [kQueryTile, 192], times scale · log2(e)
  float* scores = nullptr;   // [kQueryTile, 64]
  float* out = nullptr;      // [kQueryTile, 128]
  float* maxima = nullptr;   // [kQueryTile]
  float* sums = nullptr;     // [kQueryTile]
  float* rescale = nullptr;  // [kQueryTile]

  static constexpr int64_t kFloats = kQueryTile * (kQkDim + kPageSize + kValueDim + 3);
  static_assert(kFloats % 16 == 0, "every thread's part starts at a cache line");
  explicit PrefillWorkspace(float* base)
      : q(base),
        scores(q + kQueryTile * kQkDim),
        out(scores + kQueryTile * kPageSize),
        maxima(out + kQueryTile * kValueDim),
        sums(maxima + kQueryTile),
        rescale(sums + kQueryTile) {}
};

}  // namespace hadal::cpu::simd
