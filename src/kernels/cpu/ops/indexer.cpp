#include "kernels/cpu/ops/indexer.h"

#include <algorithm>

#include "kernels/cpu/ops/dispatch.h"

namespace hadal {
namespace {

void check_queries(const Tensor& q, const Tensor& w) {
  HADAL_CHECK(q.rank == 3 && w.rank == 2 && q.is_contiguous() && w.is_contiguous(), "q and w must be dense");
  HADAL_CHECK_EQ(q.shape[2], kIndexHeadDim);
  HADAL_CHECK_EQ(w.shape[0], q.shape[0]);
  HADAL_CHECK_EQ(w.shape[1], q.shape[1]);
  HADAL_CHECK(q.shape[1] >= 1 && q.shape[1] <= kMaxIndexHeads, "{} heads, allowed are 1 to {}", q.shape[1],
              kMaxIndexHeads);
}

// Returns the parameters without a destination.
IndexSelectParams select_params(const Tensor& q, const Tensor& w, const PagedIndex& keys,
                                std::span<const int32_t> seq_idx, std::span<const int32_t> kv_len,
                                int64_t topk) {
  check_queries(q, w);
  HADAL_CHECK(topk >= 1 && topk <= kMaxIndexTopk, "topk {}, allowed are 1 to {}", topk, kMaxIndexTopk);
  HADAL_CHECK(keys.layout != KvIndex::kNone, "the pool has no index keys");
  HADAL_CHECK_EQ(static_cast<int64_t>(seq_idx.size()), q.shape[0]);
  HADAL_CHECK_EQ(kv_len.size(), seq_idx.size());
  return {.q = q.ptr<const float>(),
          .w = w.ptr<const float>(),
          .num_tokens = q.shape[0],
          .num_heads = static_cast<int>(q.shape[1]),
          .topk = static_cast<int>(topk),
          .keys = keys,
          .seq_idx = seq_idx.data(),
          .kv_len = kv_len.data()};
}

}  // namespace

void index_write(const Tensor& k, const IndexNorm& norm, std::span<const int32_t> positions,
                 const float* cos_sin, std::span<const int64_t> slots, std::byte* pool, KvIndex layout,
                 ExecContext& exec) {
  HADAL_CHECK_EQ(k.shape[1], kIndexHeadDim);
  HADAL_CHECK_EQ(k.stride[1], 1);
  HADAL_CHECK_EQ(k.shape[0], static_cast<int64_t>(slots.size()));
  HADAL_CHECK_EQ(positions.size(), slots.size());
  HADAL_CHECK(layout != KvIndex::kNone, "the pool has no index keys");
  if (slots.empty()) return;
  const IndexWriteParams params{.k = k.ptr<const float>(),
                                .k_stride = k.stride[0],
                                .m = k.shape[0],
                                .norm_weight = norm.weight,
                                .norm_bias = norm.bias,
                                .norm_eps = norm.eps,
                                .positions = positions.data(),
                                .cos_sin = cos_sin,
                                .slots = slots.data(),
                                .pool = pool,
                                .layout = layout};
  HADAL_DISPATCH_CPU(index_write, params, exec);
}

void index_query(const Tensor& q, const Tensor& w, std::span<const int32_t> positions, const float* cos_sin,
                 KvIndex layout, ExecContext& exec) {
  check_queries(q, w);
  HADAL_CHECK_EQ(static_cast<int64_t>(positions.size()), q.shape[0]);
  HADAL_CHECK(layout != KvIndex::kNone, "the pool has no index keys");
  if (positions.empty()) return;
  const IndexQueryParams params{.q = q.ptr<float>(),
                                .w = w.ptr<float>(),
                                .m = q.shape[0],
                                .num_heads = static_cast<int>(q.shape[1]),
                                .positions = positions.data(),
                                .cos_sin = cos_sin,
                                .layout = layout};
  HADAL_DISPATCH_CPU(index_query, params, exec);
}

void index_select(const Tensor& q, const Tensor& w, const PagedIndex& keys, std::span<const int32_t> seq_idx,
                  std::span<const int32_t> kv_len, const Tensor& selected, std::span<int32_t> counts,
                  ExecContext& exec) {
  HADAL_CHECK(selected.rank == 2 && selected.is_contiguous(), "`selected` must be dense");
  IndexSelectParams params = select_params(q, w, keys, seq_idx, kv_len, selected.shape[1]);
  HADAL_CHECK_EQ(selected.shape[0], q.shape[0]);
  HADAL_CHECK_EQ(counts.size(), kv_len.size());
  if (kv_len.empty()) return;
  params.slots = selected.ptr<int32_t>();
  params.counts = counts.data();
  HADAL_DISPATCH_CPU(index_select, params, exec);
}

void index_select_bits(const Tensor& q, const Tensor& w, const PagedIndex& keys,
                       std::span<const int32_t> seq_idx, std::span<const int32_t> kv_len, int topk,
                       std::span<uint64_t> bits, ExecContext& exec) {
  IndexSelectParams params = select_params(q, w, keys, seq_idx, kv_len, topk);
  if (kv_len.empty()) return;
  HADAL_CHECK_EQ(bits.size() % kv_len.size(), size_t{0});
  params.bits = bits.data();
  params.bits_stride = static_cast<int64_t>(bits.size() / kv_len.size());
  HADAL_CHECK_LE(*std::max_element(kv_len.begin(), kv_len.end()), params.bits_stride * 64);
  HADAL_DISPATCH_CPU(index_select, params, exec);
}

}  // namespace hadal
