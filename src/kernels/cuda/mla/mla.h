// Declares multi-head latent attention on the device over the paged cache: absorbed decode with a split-KV
// plan, and un-absorbed varlen prefill. kernels/params/mla.h describes the numerics; the softmax is float32.
// This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/launch.h"
#include "kernels/params/kv_layout.h"

namespace hadal::cuda {

struct DevicePagedKv {
  const std::byte* pool = nullptr;      // [num_pages, 64, row_bytes]
  KvLayout layout;                      // kBF16, kF16, kFp8E4M3, kFp8E5M2
  const int32_t* page_table = nullptr;  // [num_seqs, page_table_stride], page ids in order of position;
                                        // entries past the length are undefined
  int64_t page_table_stride = 0;
  // Bytes from record to record and from page to page, multiples of 16; 0: dense. Only decode of 16-bit
  // caches supports values other than 0 (several KV heads per token, pages of a larger tensor).
  int64_t record_stride = 0;
  int64_t page_stride = 0;
};

// Describes the shape of a plan. A plan divides the pages of a step's sequences among blocks, and fixes split
// lengths and the order of merging. It is made once per step on the device, is used by every layer, and
// depends only on the lengths and this shape.
struct MlaPlanShape {
  int64_t num_seqs = 0;  // rows of kv_len, up to 16384; several rows may belong to one sequence (seq_idx)
  int q_len = 1;  // query tokens per sequence, 1 … 8; causal: query i of a sequence sees kv_len − q_len + 1 +
                  // i keys, else all kv_len
  int num_heads = 0;  // 1 … 128
  int num_sms = 132;
  int split_pages =
      0;  // > 0: pages of a split (batch-invariant), doubled for long sequences; 0: balanced over the SMs
  KvLayout layout;  // the cache's layout, which decides the kernel that the plan is for
  // The length in keys for which the kernel is chosen: a usual length of a server, or the longest of the
  // batch if the caller has it; 0: kMlaUsualKeys. Results are right with any value, which only affects the
  // choice of the schedule.
  int64_t most_keys = 0;
  // True for an engine's decode steps: other kernels run between two calls, and sequences of a quarter of
  // most_keys are as frequent as those of most_keys. This, too, only affects the choice of the schedule.
  bool in_step = false;
  // > 0: a row that sees more keys than this attends to a selection of this many (V3.2's indexer), and every
  // other row to all its keys. q_len is then 1, and the cache is bf16 or fp8_e4m3.
  int index_topk = 0;
};
inline constexpr int64_t kMlaUsualKeys = 4096;
size_t mla_plan_bytes(const MlaPlanShape& shape);  // bytes of the plan
size_t mla_decode_scratch_bytes(
    const MlaPlanShape& shape);  // bytes of partial results; bounded by num_sms and num_seqs
// Holds the sizes of plan and scratch that suffice for any most_keys and up to shape.num_seqs sequences,
// without fixed splits.
struct MlaDecodeBytes {
  size_t plan = 0, scratch = 0;
};
MlaDecodeBytes mla_decode_most_bytes(const MlaPlanShape& shape);
void mla_decode_plan(const MlaPlanShape& shape, const int32_t* kv_len, void* plan, const Launch& launch);

// Names the records to which rows of more than shape.index_topk keys attend: slots[row, 0 … counts[row]) are
// slots of the pool (page · 64 + offset) in any order.
struct DeviceSelection {
  const int32_t* slots = nullptr;   // [num_seqs, index_topk]; null only with index_topk 0
  const int32_t* counts = nullptr;  // [num_seqs]: 0 … index_topk; 0 gives zeros
  int64_t num_slots = 0;  // slots of the pool; builds with HADAL_SANITIZE_KERNELS trap at any other slot;
                          // 0: not checked
  // True: every row sees more than index_topk keys or no key (prompts), so no plan is needed.
  bool all_rows = false;
};

// Computes out = softmax(q · kvᵀ · scale) · latent. Queries and outputs are bf16, or float16 with a float16
// cache.
struct DeviceDecodeParams {
  MlaPlanShape shape;       // the shape for which the plan was made
  const void* q = nullptr;  // [num_seqs, q_len, heads, 576], dense
  void* out = nullptr;      // [num_seqs, q_len, heads, 512], dense
  float* lse = nullptr;     // [num_seqs, q_len, heads] natural log, −inf without keys; null: not stored
  DevicePagedKv kv;         // its layout is shape.layout
  const int32_t* seq_idx = nullptr;  // [num_seqs]: row of the page table
  const int32_t* kv_len = nullptr;   // [num_seqs]: keys the last query sees; 0 gives zeros
  float softmax_scale = 0.0F;
  bool causal = true;
  // These masks replace `causal`. Bit b of a query's mask (newest_mask of draft_tree.h) is set if the query
  // sees the record at position kv_len − 64 + b; it sees all older records. kv_len is then the end of the
  // sequence's records. Records that no query of a sequence sees may hold anything. A query that sees no
  // record gives zeros. Masks need inputs that are not settled, and no selection.
  const uint64_t* newest_seen = nullptr;  // [num_seqs, q_len]; null: no masks
  // True: the plan, kv_len, seq_idx, the page table and every record except the last q_len of each row of
  // kv_len were complete before the previous kernel could begin, so they are read before pdl_wait (see
  // launch.h). If several rows belong to one sequence, no row's last q_len keys may be older keys of another
  // row. (The last q_len records may also be read early, but are then read again after pdl_wait.) In a step
  // this holds for every layer but the first.
  bool settled = false;
  const void* plan = nullptr;
  void* scratch = nullptr;
  DeviceSelection selection;  // used if shape.index_topk > 0; the cache must then be dense
};
void mla_decode(const DeviceDecodeParams& params, const Launch& launch);

// Describes a run of keys of one sequence for a prefill pass: the sequence's keys [begin, begin + count) go
// to rows [out_begin, out_begin + count) of the pass's buffers.
struct KeyRun {
  int32_t seq_idx = 0;
  int32_t begin = 0;
  int32_t count = 0;
  int32_t out_begin = 0;
};
struct GatherKeysParams {
  DevicePagedKv kv;
  const KeyRun* runs = nullptr;  // [num_runs], device memory
  int num_runs = 0;
  int64_t max_count = 0;  // the largest count of a run (host)
  // bf16, or float16 with a float16 cache.
  void* latent = nullptr;  // [num_keys, 512]; null: not stored (only with latent_fp8)
  void* rope = nullptr;    // [num_keys, 64]
  // These are the quantised latents that FP8 weights of kv_b read (rows of activation.h). They are not
  // computed if their codes are null; a float16 cache does not support them.
  QuantizedRows latent_fp8;
};
void gather_keys(const GatherKeysParams& params, const Launch& launch);

// Describes one pass of un-absorbed causal attention: the queries of a segment against a run of its
// sequence's keys. Query i (absolute position q_pos + i) sees the keys of absolute position ≤ its own; key j
// has k_pos + j.
struct PrefillSegmentRun {
  int32_t q_begin = 0, q_len = 0, q_pos = 0;
  int32_t k_begin = 0, k_len = 0, k_pos = 0;  // k_begin: row of kv and k_rope
};
struct DevicePrefillParams {
  bool f16 = false;         // q, kv, k_rope and out are float16, not bf16
  const void* q = nullptr;  // [m, heads, 192]: nope 128 | roped 64
  int64_t q_row_stride = 0, q_head_stride = 0;
  const void* kv = nullptr;                      // [num_keys, heads, 256]: k_nope 128 | v 128, dense
  const void* k_rope = nullptr;                  // [num_keys, 64], dense
  const PrefillSegmentRun* runs = nullptr;       // [num_runs], device memory
  const PrefillSegmentRun* host_runs = nullptr;  // the same, in host memory (for the shape of the launch)
  int num_runs = 0;
  int64_t num_keys = 0;
  int64_t m = 0;
  int num_heads = 0;
  float softmax_scale = 0.0F;
  void* out = nullptr;  // [m, heads, 128], rows out_stride apart
  int64_t out_stride = 0;
  float* lse = nullptr;  // [m, heads]; needed with several passes
  bool accumulate =
      false;  // merge with what `out` and `lse` hold (an earlier pass over other keys), by log-sum-exp
  // If it is not null, queries attend to selected keys (V3.2's indexer): of the keys that row r of q sees,
  // key j of its run counts only if bit j mod 64 of word j / 64 of row r is set. A row has at least ⌈k_len /
  // 64⌉ words. bf16 only.
  const uint64_t* bits = nullptr;  // [m, bits_stride]
  int64_t bits_stride = 0;
};
void mla_prefill(const DevicePrefillParams& params, const Launch& launch);

}  // namespace hadal::cuda
