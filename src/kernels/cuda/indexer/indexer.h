// Declares V3.2's indexer on the device: index keys, index queries, and the choice of the keys of highest
// score. kernels/params/indexer.h has the formulas. Keys are KvIndex::kE4M3, the only layout of index keys
// that the device supports. Any thread may call these functions, which only launch kernels (launch.h has the
// rules). This header includes no CUDA header.
//
// The results differ from the CPU's in three ways. LayerNorm sums in float32, and the tensor cores sum scores
// in another order, so last bits may differ; the plain kernels (Launch::reference) compute the CPU's bits.
// Nothing is written for a row that sees at most topk keys, because it attends to all keys of its page table.
// As on the CPU, a score depends only on the token, the key and the number of heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "kernels/cuda/indexer/plan.h"
#include "kernels/cuda/launch.h"
#include "kernels/params/indexer.h"

namespace hadal::cuda {

// Makes and stores one index key for each row of wk's product: LayerNorm, rope by halves, Hadamard, rounding.
struct DeviceIndexWriteParams {
  const bf16* k = nullptr;  // [m, 128], rows k_stride apart
  int64_t k_stride = 0;
  int64_t m = 0;
  const float* norm_weight = nullptr;  // [128]
  const float* norm_bias = nullptr;    // [128]
  float norm_eps = 1e-6F;
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [max_positions, 64]: 32 cosines, then 32 sines
  const int64_t* slots = nullptr;      // [m]: page · 64 + offset; < 0: padding, nothing is written
  std::byte* pool = nullptr;           // [num_pages, index_page_bytes]
};
void index_write(const DeviceIndexWriteParams& params, const Launch& launch);

// Makes codes from wq_b's product q, and from weights_proj's product w the weights w · num_heads^−0.5 ·
// 128^−0.5 · (scale of the codes). Rows that see at most topk keys are skipped if kv_len is given.
struct DeviceIndexQueryParams {
  const bf16* q = nullptr;  // [m, num_heads, 128], rows q_stride apart
  int64_t q_stride = 0;
  const float* w = nullptr;  // [m, num_heads], rows w_stride apart
  int64_t w_stride = 0;
  int64_t m = 0;
  int num_heads = 0;                   // 1 … kMaxIndexHeads
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;
  const int32_t* kv_len = nullptr;  // [m] or null: all rows
  int topk = 0;
  fp8_e4m3* codes = nullptr;  // [m, num_heads, 128], dense
  float* weights = nullptr;   // [m, num_heads], dense
};
void index_query(const DeviceIndexQueryParams& params, const Launch& launch);

// Chooses, for each row that sees more than topk keys, the topk keys of highest score. The choice is exact
// for the scores as computed. If scores are equal, the key at the lower position is chosen; a NaN is worse
// than every number. Exactly one of `slots` and `bits` is set. Nothing is written for the other rows.
struct DeviceIndexSelectParams {
  IndexSelectShape shape;
  const fp8_e4m3* q = nullptr;  // [num_rows, num_heads, 128], dense: index_query
  const float* w = nullptr;     // [num_rows, num_heads], dense
  const std::byte* pool = nullptr;
  const int32_t* page_table = nullptr;  // [num_seqs, page_table_stride]: entries past the length are garbage
  int64_t page_table_stride = 0;
  const int32_t* seq_idx = nullptr;  // [num_rows]: row of the page table; not read for rows without keys
  const int32_t* kv_len = nullptr;   // [num_rows]: keys the row sees, including itself; ≤ shape.most_keys
  int32_t* slots = nullptr;          // [num_rows, topk]: page · 64 + offset in ascending order of position
  int32_t* counts = nullptr;         // [num_rows]: how many slots there are
  uint64_t* bits = nullptr;          // [num_rows, bits_stride]: bit (position mod 64) of word (position / 64)
  int64_t bits_stride = 0;           // ≥ ⌈most_keys / 64⌉; all words of a row are written
  void* workspace = nullptr;         // index_select_workspace_bytes(shape), 16-byte aligned
};
void index_select(const DeviceIndexSelectParams& params, const Launch& launch);

}  // namespace hadal::cuda
