// Declares multi-head latent attention over the paged cache. kernels/params/mla.h has numerics and shapes.
#pragma once

#include <span>

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/params/mla.h"
#include "tensor/tensor.h"

namespace hadal {

// Writes latent float32 [m, 512] and k_rope float32 [m, 64] (rows strided) to the records at slots int64 [m].
void kv_write(const Tensor& latent, const Tensor& k_rope, std::span<const int64_t> slots, std::byte* pool,
              KvLayout layout, ExecContext& exec);

// q is float32 [m, h, 576] (absorbed) and out float32 [m, h, 512], both dense; seq_idx and kv_len are [m],
// and so are the masks of draft trees, which may be empty.
void mla_decode(const Tensor& q, const PagedKv& kv, std::span<const int32_t> seq_idx,
                std::span<const int32_t> kv_len, std::span<const uint64_t> ancestors, float softmax_scale,
                const Tensor& out, ExecContext& exec);

// Computes mla_decode over selected keys alone: `selected` int32 [m, stride] and counts [m] come from
// index_select (ops/indexer.h).
void mla_decode_selected(const Tensor& q, const PagedKv& kv, const Tensor& selected,
                         std::span<const int32_t> counts, float softmax_scale, const Tensor& out,
                         ExecContext& exec);

// q is float32 [m, h, 192] and out float32 [m, h, 128], both dense; the segments cover [0, m).
void mla_prefill(const Tensor& q, const PagedKv& kv, std::span<const PrefillSegment> segments,
                 const MatrixWeight& kv_b, float softmax_scale, const Tensor& out, ExecContext& exec);

// Computes mla_prefill over selected keys alone: `bits` [m, words] comes from index_select_bits
// (ops/indexer.h).
void mla_prefill_selected(const Tensor& q, const PagedKv& kv, std::span<const PrefillSegment> segments,
                          const MatrixWeight& kv_b, float softmax_scale, std::span<const uint64_t> bits,
                          const Tensor& out, ExecContext& exec);

}  // namespace hadal
