#include "kernels/cpu/ops/mla.h"

#include <algorithm>

#include "kernels/cpu/ops/dispatch.h"

namespace hadal {
namespace {

// Returns the parameters without keys.
MlaDecodeParams decode_params(const Tensor& q, const PagedKv& kv, float softmax_scale, const Tensor& out) {
  HADAL_CHECK(q.rank == 3 && q.is_contiguous() && out.is_contiguous(), "q and out must be dense");
  HADAL_CHECK_EQ(q.shape[2], kKvRowDim);
  HADAL_CHECK_EQ(out.shape[2], kKvLatentDim);
  HADAL_CHECK_EQ(out.shape[1], q.shape[1]);
  return {.q = q.ptr<const float>(),
          .out = out.ptr<float>(),
          .num_tokens = q.shape[0],
          .num_heads = static_cast<int>(q.shape[1]),
          .kv = kv,
          .softmax_scale = softmax_scale};
}

// Returns the parameters without a selection.
MlaPrefillParams prefill_params(const Tensor& q, const PagedKv& kv, std::span<const PrefillSegment> segments,
                                const MatrixWeight& kv_b, float softmax_scale, const Tensor& out) {
  HADAL_CHECK(q.rank == 3 && q.is_contiguous() && out.is_contiguous(), "q and out must be dense");
  HADAL_CHECK_EQ(q.shape[2], 192);
  HADAL_CHECK_EQ(out.shape[2], 128);
  HADAL_CHECK_EQ(kv_b.n, q.shape[1] * 256);
  int64_t rows = 0;
  for (const PrefillSegment& segment : segments) {
    HADAL_CHECK_EQ(segment.q_begin, rows);
    HADAL_CHECK_GE(segment.kv_len, segment.q_len);
    rows += segment.q_len;
  }
  HADAL_CHECK_EQ(rows, q.shape[0]);
  return {.q = q.ptr<const float>(),
          .out = out.ptr<float>(),
          .num_heads = static_cast<int>(q.shape[1]),
          .kv = kv,
          .segments = segments.data(),
          .num_segments = static_cast<int>(segments.size()),
          .kv_b = kv_b,
          .softmax_scale = softmax_scale};
}

}  // namespace

void kv_write(const Tensor& latent, const Tensor& k_rope, std::span<const int64_t> slots, std::byte* pool,
              KvLayout layout, ExecContext& exec) {
  HADAL_CHECK_EQ(latent.shape[1], kKvLatentDim);
  HADAL_CHECK_EQ(k_rope.shape[1], kKvRopeDim);
  HADAL_CHECK_EQ(latent.shape[0], static_cast<int64_t>(slots.size()));
  HADAL_CHECK_EQ(k_rope.shape[0], latent.shape[0]);
  if (slots.empty()) return;
  const KvWriteParams params{.latent = latent.ptr<const float>(),
                             .k_rope = k_rope.ptr<const float>(),
                             .latent_stride = latent.stride[0],
                             .k_rope_stride = k_rope.stride[0],
                             .m = latent.shape[0],
                             .slots = slots.data(),
                             .pool = pool,
                             .layout = layout};
  HADAL_DISPATCH_CPU(kv_write, params, exec);
}

void mla_decode(const Tensor& q, const PagedKv& kv, std::span<const int32_t> seq_idx,
                std::span<const int32_t> kv_len, std::span<const uint64_t> ancestors, float softmax_scale,
                const Tensor& out, ExecContext& exec) {
  MlaDecodeParams params = decode_params(q, kv, softmax_scale, out);
  HADAL_CHECK_EQ(static_cast<int64_t>(seq_idx.size()), q.shape[0]);
  HADAL_CHECK_EQ(kv_len.size(), seq_idx.size());
  HADAL_CHECK(ancestors.empty() || ancestors.size() == seq_idx.size(), "{} rows have {} masks",
              seq_idx.size(), ancestors.size());
  if (q.shape[0] == 0) return;
  params.seq_idx = seq_idx.data();
  params.kv_len = kv_len.data();
  if (!ancestors.empty()) params.ancestors = ancestors.data();
  HADAL_DISPATCH_CPU(mla_decode, params, exec);
}

void mla_decode_selected(const Tensor& q, const PagedKv& kv, const Tensor& selected,
                         std::span<const int32_t> counts, float softmax_scale, const Tensor& out,
                         ExecContext& exec) {
  MlaDecodeParams params = decode_params(q, kv, softmax_scale, out);
  HADAL_CHECK(selected.rank == 2 && selected.stride[1] == 1, "rows of `selected` must be dense");
  HADAL_CHECK_EQ(selected.shape[0], q.shape[0]);
  HADAL_CHECK_EQ(static_cast<int64_t>(counts.size()), q.shape[0]);
  if (q.shape[0] == 0) return;
  HADAL_CHECK_LE(*std::max_element(counts.begin(), counts.end()), selected.shape[1]);
  params.selected = selected.ptr<const int32_t>();
  params.selected_stride = selected.stride[0];
  params.counts = counts.data();
  HADAL_DISPATCH_CPU(mla_decode, params, exec);
}

void mla_prefill(const Tensor& q, const PagedKv& kv, std::span<const PrefillSegment> segments,
                 const MatrixWeight& kv_b, float softmax_scale, const Tensor& out, ExecContext& exec) {
  const MlaPrefillParams params = prefill_params(q, kv, segments, kv_b, softmax_scale, out);
  if (q.shape[0] == 0) return;
  HADAL_DISPATCH_CPU(mla_prefill, params, exec);
}

void mla_prefill_selected(const Tensor& q, const PagedKv& kv, std::span<const PrefillSegment> segments,
                          const MatrixWeight& kv_b, float softmax_scale, std::span<const uint64_t> bits,
                          const Tensor& out, ExecContext& exec) {
  MlaPrefillParams params = prefill_params(q, kv, segments, kv_b, softmax_scale, out);
  if (q.shape[0] == 0) return;
  HADAL_CHECK_EQ(static_cast<int64_t>(bits.size()) % q.shape[0], 0);
  params.selected = bits.data();
  params.selected_stride = static_cast<int64_t>(bits.size()) / q.shape[0];
  for (const PrefillSegment& segment : segments) HADAL_CHECK_LE(segment.kv_len, params.selected_stride * 64);
  HADAL_DISPATCH_CPU(mla_prefill, params, exec);
}

}  // namespace hadal
