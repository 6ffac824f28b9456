// Holds the parameters of V3.2's indexer (DeepSeek-V3.2-Exp, "DeepSeek Sparse Attention"): a small second
// attention that scores every visible key of a token, so that multi-head latent attention reads only the best
// index_topk of them.
//
// Index keys have 128 values: 64 with rope (rotated by halves: value i pairs with i + 32), then 64 without.
// They are stored for every token in pages of their own, which have the ids of the KV pages (kv_layout.h,
// KvIndex). With rotated = Hadamard128 · v · 128^−0.5 of keys and queries,
//   score(t, s) = k_scale(s) · Σ_h relu(q(t, h) · k(s)) · w(t, h)
// where w already has the scale of the query's codes. A score depends on the token, the key and the number of
// heads alone, not on chunking, batch or threads; every implementation computes the same bits, in this order:
//
//   LayerNorm  in double: Σ v, then Σ (v − mean)², each in 16 partial sums (value i belongs to sum i mod 16)
//              that are added in order; y = (v − mean) · (1 / √(variance + eps)) · weight + bias is rounded
//              to float32 once
//   rope       two float32 products and their sum or difference for each value
//   Hadamard   float32 butterflies (a, b) → (a + b, a − b) at distances 64, 32, …, 1, then one product by
//              float32(128^−0.5)
//   score      q(t, h) · k(s) is a chain of 128 fused multiply-adds in float32, and so is the sum over heads;
//              k_scale is multiplied last, and relu(NaN) is NaN
//
// Rounding to e4m3 (KvIndex::kE4M3): scale = max(amax of the 128 values, 1e-4) / 448, raised to the next
// power of two (scale_fmt ue8m0); code = the nearest e4m3 of value / scale. With KvIndex::kF32 nothing is
// rounded and scales are 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params/kv_layout.h"

namespace hadal {

inline constexpr int kIndexHeadDim = kKvIndexDim;  // 128
inline constexpr int kIndexRopeDim = 64;           // the first of them
inline constexpr int kMaxIndexHeads = 64;
inline constexpr int kMaxIndexTopk = 2048;
inline constexpr float kIndexHadamardScale = 0.08838834764831845F;  // 128^−0.5

// PagedIndex is one layer's index pool and the sequences' page tables, which are those of PagedKv.
struct PagedIndex {
  std::byte* pool = nullptr;  // [num_pages, layout.index_page_bytes()]
  KvIndex layout = KvIndex::kNone;
  int64_t num_pages = 0;
  const int32_t* page_table = nullptr;  // [num_seqs, page_table_stride]: page ids in order of position
  int64_t page_table_stride = 0;
};

// Makes and stores one index key per token: LayerNorm with weight and bias (mean and variance summed in
// double), rope by halves, Hadamard and rounding.
struct IndexWriteParams {
  const float* k = nullptr;  // [m, 128], rows k_stride apart: wk's product
  int64_t k_stride = 0;
  int64_t m = 0;
  const float* norm_weight = nullptr;  // [128]
  const float* norm_bias = nullptr;    // [128]
  float norm_eps = 1e-6F;
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [max_positions, 64]: 32 cosines, then 32 sines (RopeParams)
  const int64_t* slots = nullptr;      // [m]: page · kPageSize + offset
  std::byte* pool = nullptr;           // [num_pages, index_page_bytes]
  KvIndex layout = KvIndex::kF32;
};

// Makes queries from the product of wq_b, and weights from that of weights_proj, both in place. q becomes the
// values that are compared with keys (with kE4M3 the values of the codes, without their scale), and w becomes
// w · float32(num_heads^−0.5 · 128^−0.5) · (scale of q).
struct IndexQueryParams {
  float* q = nullptr;  // [m, num_heads, 128], dense
  float* w = nullptr;  // [m, num_heads], dense
  int64_t m = 0;
  int num_heads = 0;                   // 1 … kMaxIndexHeads
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;
  KvIndex layout = KvIndex::kF32;
};

// Chooses for each token the min(topk, kv_len) keys of highest score, exactly. Where scores are equal, the
// lower position wins; a NaN is worse than every number. Exactly one of `slots` and `bits` is set:
// - slots: the chosen keys' page · kPageSize + offset in ascending order of position, then −1; `counts` is
//   the number of chosen keys;
// - bits: bit (position mod 64) of word (position / 64) is set for the chosen keys. All words up to
//   bits_stride are written.
struct IndexSelectParams {
  const float* q = nullptr;  // [num_tokens, num_heads, 128], dense: IndexQueryParams
  const float* w = nullptr;  // [num_tokens, num_heads], dense
  int64_t num_tokens = 0;
  int num_heads = 0;  // 1 … kMaxIndexHeads
  int topk = 0;       // 1 … kMaxIndexTopk
  PagedIndex keys;
  const int32_t* seq_idx = nullptr;  // [num_tokens]: row of the page table
  const int32_t* kv_len = nullptr;   // [num_tokens]: keys the token sees, including itself
  int32_t* slots = nullptr;          // [num_tokens, topk]
  int32_t* counts = nullptr;         // [num_tokens]
  uint64_t* bits = nullptr;          // [num_tokens, bits_stride], bits_stride ≥ ⌈max kv_len / 64⌉
  int64_t bits_stride = 0;
};

}  // namespace hadal
