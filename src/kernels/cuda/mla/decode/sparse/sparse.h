// Declares the arguments and launches of decode attention over selections.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/plan/sparse.h"

namespace hadal::cuda {

struct SparseArgs {
  const bf16* q;  // [num_rows, num_heads, 576]
  bf16* out;      // [num_rows, num_heads, 512]
  float* lse;     // [num_rows, num_heads], or null
  const std::byte* pool;
  int64_t num_slots;      // of the pool; 0: not checked
  const int32_t* kv_len;  // [num_rows]
  const int32_t* slots;   // [num_rows, topk]
  const int32_t* counts;  // [num_rows]
  float* partial_out;     // [selected row, split, num_heads, 512], normalised
  float* partial_lse;     // [selected row, split, num_heads], base 2
  int num_rows;
  int num_heads;
  float scale_log2;  // softmax_scale · log2 e
  SparseGeometry geometry;
};

// Launches the sparse kernel, which supports bf16 and fp8_e4m3 with any four scales. The instantiations are
// generated (src/kernels/cuda/CMakeLists.txt).
template <KvFormat kFormat>
void mla_decode_sparse(const SparseArgs& args, const Launch& launch);
// Joins the splits of the selected rows. With fixed splits it is not launched, because rows have one split.
void mla_merge_sparse(const SparseArgs& args, const Launch& launch);

}  // namespace hadal::cuda
