// Declares V3.2's indexer over paged index keys. kernels/params/indexer.h has numerics and shapes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/params/indexer.h"
#include "tensor/tensor.h"

namespace hadal {

// IndexNorm is the LayerNorm of index keys.
struct IndexNorm {
  const float* weight = nullptr;  // [128]
  const float* bias = nullptr;    // [128]
  float eps = 1e-6F;
};

// Writes the index keys of k float32 [m, 128] (rows strided) to slots int64 [m] of a pool; positions is [m].
void index_write(const Tensor& k, const IndexNorm& norm, std::span<const int32_t> positions,
                 const float* cos_sin, std::span<const int64_t> slots, std::byte* pool, KvIndex layout,
                 ExecContext& exec);

// Makes queries in place: q float32 [m, h, 128] and w float32 [m, h], both dense.
void index_query(const Tensor& q, const Tensor& w, std::span<const int32_t> positions, const float* cos_sin,
                 KvIndex layout, ExecContext& exec);

// Writes the chosen keys' slots to `selected` int32 [m, topk], and how many keys each row has chosen to
// counts [m].
void index_select(const Tensor& q, const Tensor& w, const PagedIndex& keys, std::span<const int32_t> seq_idx,
                  std::span<const int32_t> kv_len, const Tensor& selected, std::span<int32_t> counts,
                  ExecContext& exec);

// Writes the chosen keys as bits [m, bits.size() / m].
void index_select_bits(const Tensor& q, const Tensor& w, const PagedIndex& keys,
                       std::span<const int32_t> seq_idx, std::span<const int32_t> kv_len, int topk,
                       std::span<uint64_t> bits, ExecContext& exec);

}  // namespace hadal
