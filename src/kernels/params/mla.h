// Holds the parameters of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1) over the paged
// cache.
//
// Every key and value is read back from the cache after rounding to the KV row format, also those of the
// step's own tokens, which are written first. Keys are visited in ascending order of absolute position, page
// by page. The running maximum and the rescaling of online softmax happen only at page borders of absolute
// positions, and long contexts are cut into splits of fixed absolute extent, which are merged in order. A
// token's result therefore depends on its position and the cache's contents alone, not on chunking, batch or
// threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params/draft_tree.h"
#include "kernels/params/kv_layout.h"
#include "kernels/params/linear.h"

namespace hadal {

// PagedKv is one layer's pool and the sequences' page tables.
struct PagedKv {
  std::byte* pool = nullptr;  // [num_pages, kPageSize, layout.row_bytes()]
  KvLayout layout;
  int64_t num_pages = 0;
  const int32_t* page_table = nullptr;  // [num_seqs, page_table_stride]: page ids in order of position
  int64_t page_table_stride = 0;
};

// Rounds and stores one record per token.
struct KvWriteParams {
  const float* latent = nullptr;  // [m, 512], rows latent_stride apart: after kv_a_layernorm
  const float* k_rope = nullptr;  // [m, 64], rows k_rope_stride apart: after RoPE
  int64_t latent_stride = 0;
  int64_t k_rope_stride = 0;
  int64_t m = 0;
  const int64_t* slots = nullptr;  // [m]: page · kPageSize + offset
  std::byte* pool = nullptr;       // [num_pages, kPageSize, row_bytes]
  KvLayout layout;
};

// Absorbed (multi-query) attention for decode and verify computes out = softmax(q · kvᵀ · scale) · latent.
struct MlaDecodeParams {
  const float* q = nullptr;  // [num_tokens, num_heads, 576]: W_UKᵀ q_nope (512) | roped q_pe (64), dense
  float* out = nullptr;      // [num_tokens, num_heads, 512], dense
  int64_t num_tokens = 0;
  int num_heads = 0;
  PagedKv kv;
  const int32_t* seq_idx = nullptr;  // [num_tokens]: row of the page table
  const int32_t* kv_len = nullptr;   // [num_tokens]: keys the token sees, including itself; 0 gives zeros
  // The masks of draft_tree.h say where the newest keys of a token are; they are visited in ascending order
  // of position as all others are. Null: every mask is causal. No mask is 0. (DeviceDecodeParams has the
  // device's masks.)
  const uint64_t* ancestors = nullptr;  // [num_tokens]
  float softmax_scale = 0.0F;
  // A selection (indexer.h) replaces pages and kv_len: token t attends to the records at selected[t, 0 …
  // counts[t]), which are slots of the pool in ascending order of position. They are visited in blocks of
  // kPageSize slots, which are merged like pages. A count of 0 gives zeros.
  const int32_t* selected =
      nullptr;  // [num_tokens, selected_stride]; null: every token attends to all that it sees
  int64_t selected_stride = 0;
  const int32_t* counts = nullptr;  // [num_tokens]
};

// PrefillSegment is a run of consecutive new tokens of one sequence.
struct PrefillSegment {
  int32_t seq_idx = 0;  // row of the page table
  int32_t q_begin = 0;  // first row of q
  int32_t q_len = 0;
  int32_t kv_len = 0;  // keys of the sequence after these tokens; query i sees kv_len − q_len + i + 1 of them
};

// Un-absorbed causal multi-head attention for prompts expands k_nope and v from the cached latents by
// kv_b_proj (each element by the chain of linear.h), with k = [k_nope 128 | k_rope 64].
struct MlaPrefillParams {
  const float* q = nullptr;  // [num_tokens, num_heads, 192]: nope 128 | roped 64, dense
  float* out = nullptr;      // [num_tokens, num_heads, 128], dense
  int num_heads = 0;
  PagedKv kv;
  const PrefillSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  MatrixWeight kv_b;  // [num_heads · 256, 512]: per head 128 rows of W_UK, then 128 of W_UV
  float softmax_scale = 0.0F;
  // A selection (indexer.h) is a mask: row r of q attends to position p only if bit p mod 64 of word [r, p /
  // 64] is set. A page from which a row selects no key does not change its running maximum and sum, and a row
  // that selects no key at all gives zeros.
  const uint64_t* selected = nullptr;  // [num_tokens, selected_stride]; null: causal attention to all keys
  int64_t selected_stride = 0;         // ≥ ⌈max kv_len / 64⌉
};

}  // namespace hadal
