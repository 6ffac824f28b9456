// Defines shapes and buffers of un-absorbed attention on the CPU, and describes the phases of
// mla_prefill.cpp.
//
// The (segment, page) pairs of a call are processed in windows of at most kWindowPages pages and in groups of
// at most kGroupHeads heads, so that scratch memory is bounded whatever the context. For each group of heads:
//   weights   widen W_UK to rows and W_UV to panels                one task per head
//   then for each window:
//   latents   widen records to rows and to transposed panels       one task per page
//   expand    Kᵀ = W_UK · latentᵀ and V = latent · W_UVᵀ           one task per (head, page)
//   attend    online softmax over the window's pages in order      one task per (run, head, query tile)
// A run is the part of one segment that lies in a window. Between windows the state of a query (maximum, sum,
// weighted values) is kept in `maxima`, `sums` and the output rows.
//
// A "panel" is [k, width] with width = 2 vectors: the B operand of gemm_tile-inl.h.
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
inline constexpr int64_t kQueryTile = 48;  // rows of queries per task: a multiple of every tile height

struct PrefillPage {
  int32_t segment = 0;
  int32_t page = 0;      // index within the sequence: positions [64 · page, 64 · page + num_keys)
  int32_t num_keys = 0;  // how many of the segment's kv_len keys lie in this page, 1 … 64
};

// RowMasks says which of a page's 64 keys each row of a query tile attends to (MlaPrefillParams::selected).
struct RowMasks {
  const uint64_t* words = nullptr;  // of row r at words[r · stride]; null: all keys
  int64_t stride = 0;

  // Says whether any of rows [begin, end) attends to a key.
  bool any(int64_t begin, int64_t end) const {
    if (words == nullptr) return true;
    uint64_t all = 0;
    for (int64_t row = begin; row < end; ++row) all |= words[row * stride];
    return all != 0;
  }
};

struct PrefillRun {
  int64_t begin = 0;  // index into the window's pages
  int64_t count = 0;
};

// These are sizes of the buffers of one (head, page), in floats.
inline constexpr int64_t kKeyFloats = int64_t{kQkDim} * kPageSize;       // [64 / width][192][width]
inline constexpr int64_t kValueFloats = int64_t{kValueDim} * kPageSize;  // [128 / width][64][width]
inline constexpr int64_t kLatentFloats = int64_t{kKvRowDim} * kPageSize;
inline constexpr int64_t kUkFloats = int64_t{kNopeDim} * kKvLatentDim;   // [128][512]
inline constexpr int64_t kUvFloats = int64_t{kValueDim} * kKvLatentDim;  // [128 / width][512][width]

// PrefillBuffers holds all buffers of a call, 64-byte aligned.
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

// PrefillWorkspace is one thread's memory during `attend`.
struct PrefillWorkspace {
  float* q = nullptr;        // [kQueryTile, 192], times scale · log2(e)
  float* scores = nullptr;   // [kQueryTile, 64]
  float* out = nullptr;      // [kQueryTile, 128]
  float* maxima = nullptr;   // [kQueryTile]
  float* sums = nullptr;     // [kQueryTile]
  float* rescale = nullptr;  // [kQueryTile]

  static constexpr int64_t kFloats = kQueryTile * (kQkDim + kPageSize + kValueDim + 3);
  static_assert(kFloats % 16 == 0, "each thread's part must start at a cache line");
  explicit PrefillWorkspace(float* base)
      : q(base),
        scores(q + kQueryTile * kQkDim),
        out(scores + kQueryTile * kPageSize),
        maxima(out + kQueryTile * kValueDim),
        sums(maxima + kQueryTile),
        rescale(sums + kQueryTile) {}
};

}  // namespace hadal::cpu::simd
