// Converts between decode attention (mla.h) and FlashMLA's conventions: any number of query tokens per
// sequence, log-sum-exps by head, and +inf where there are no keys. This header includes no CUDA header.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace hadal::cuda {

// Cuts sequences of more query tokens than decode attention supports into `pieces` pieces of `piece_len`
// tokens. Rows [s · pieces, (s + 1) · pieces) are the pieces of sequence s, in order. With `causal` the
// length of a piece is the number of keys that its last token sees.
struct FlashRowsParams {
  const int32_t* cache_seqlens = nullptr;  // [num_seqs]: keys that a sequence's last token sees; negative: 0
  int64_t num_seqs = 0;
  int pieces = 1;
  int piece_len = 1;
  bool causal = true;
  int32_t* seq_idx = nullptr;  // [num_seqs · pieces]
  int32_t* kv_len = nullptr;   // [num_seqs · pieces]
};
void flash_rows(const FlashRowsParams& params, const Launch& launch);

// Computes out[s][k · group + h][t] = lse[k][s][t][h], with +inf in place of −inf (no keys).
struct FlashLseParams {
  const float* lse = nullptr;  // [num_kv_heads, num_seqs, q_len, group]
  float* out = nullptr;        // [num_seqs, num_kv_heads · group, q_len]
  int64_t num_seqs = 0;
  int q_len = 1;
  int num_kv_heads = 1;
  int group = 1;  // query heads of a KV head
};
void flash_lse(const FlashLseParams& params, const Launch& launch);

}  // namespace hadal::cuda
