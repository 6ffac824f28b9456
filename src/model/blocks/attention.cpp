#include "model/blocks/attention.h"

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/linear.h"
#include "kernels/cpu/ops/mla.h"

namespace hadal {
namespace {

static_assert(kKvLoraRank == kKvLatentDim && kQkRopeHeadDim == kKvRopeDim,
              "the model's head sizes must be those of the KV record");

// Returns a [m, heads, width] view of rows of [m, heads · head_dim], starting `offset` into each head.
Tensor head_view(const Tensor& rows, int64_t num_heads, int64_t head_dim, int64_t offset, int64_t width) {
  Tensor view = Tensor::of(rows.ptr<float>() + offset, {rows.shape[0], num_heads, width});
  view.stride = {rows.stride[0], head_dim, 1, 0};
  return view;
}

// Returns columns [offset, offset + width) of a matrix.
Tensor column_view(const Tensor& matrix, int64_t offset, int64_t width) {
  Tensor view = matrix;
  view.data = matrix.ptr<float>() + offset;
  view.shape[1] = width;
  return view;
}

// Computes q [m, heads · 192] and kv [m, 512 + 64] from the hidden states. The query goes through its
// low-rank pair if the model has one.
void project(const AttentionWeights& weights, const Tensor& x, float eps, const Tensor& q, const Tensor& kv,
             ExecContext& exec) {
  if (weights.q_a.data == nullptr) {
    linear_group(x, {{weights.q_proj, q}, {weights.kv_a, kv}}, exec);
    return;
  }
  const Arena::Scope scope(exec.workspace);
  const Tensor q_latent = exec.workspace.tensor<float>({x.shape[0], weights.q_a.n});
  linear_group(x, {{weights.q_a, q_latent}, {weights.kv_a, kv}}, exec);
  rms_norm(q_latent, weights.q_a_norm, eps, q_latent, exec);
  linear(q_latent, weights.q_b, q, exec);
}

}  // namespace

void attention_block(const AttentionWeights& weights, const Tensor& x, std::byte* pool, const KvCache& cache,
                     const AttentionStep& step, const Tensor& y, ExecContext& exec) {
  const Arena::Scope scope(exec.workspace);
  const ForwardBatch& batch = step.batch;
  const int64_t m = x.shape[0];
  const int64_t heads = step.num_heads;
  const int64_t num_prefill = batch.num_prefill_tokens;
  const int64_t num_decode = m - num_prefill;

  const Tensor q = exec.workspace.tensor<float>({m, heads * kQkHeadDim});
  const Tensor kv = exec.workspace.tensor<float>({m, kKvRowDim});  // latent 512 | k_pe 64
  project(weights, x, step.norm_eps, q, kv, exec);
  const Tensor latent = column_view(kv, 0, kKvLatentDim);
  rms_norm(latent, weights.kv_a_norm, step.norm_eps, latent, exec);

  rope(head_view(kv, 1, kKvRowDim, kKvLatentDim, kKvRopeDim), batch.positions, step.cos_sin, exec);
  rope(head_view(q, heads, kQkHeadDim, kQkNopeHeadDim, kQkRopeHeadDim), batch.positions, step.cos_sin, exec);
  kv_write(latent, column_view(kv, kKvLatentDim, kKvRopeDim), batch.slots, pool, cache.layout(), exec);

  const PagedKv paged{.pool = pool,
                      .layout = cache.layout(),
                      .num_pages = cache.num_pages(),
                      .page_table = batch.page_table.data(),
                      .page_table_stride = batch.page_table_stride};
  const Tensor heads_out = exec.workspace.tensor<float>({m, heads * kVHeadDim});

  if (num_prefill > 0) {
    Tensor out = head_view(heads_out.rows(0, num_prefill), heads, kVHeadDim, 0, kVHeadDim);
    mla_prefill(head_view(q.rows(0, num_prefill), heads, kQkHeadDim, 0, kQkHeadDim), paged, batch.segments,
                weights.kv_b, step.softmax_scale, out, exec);
  }
  if (num_decode > 0) {
    const Tensor q_rows = q.rows(num_prefill, num_decode);
    const Tensor q_absorbed = exec.workspace.tensor<float>({num_decode, heads, kKvRowDim});
    absorb_query(head_view(q_rows, heads, kQkHeadDim, 0, kQkNopeHeadDim), weights.kv_b, q_absorbed, exec);
    Tensor q_rope = q_absorbed;
    q_rope.data = q_absorbed.ptr<float>() + kKvLatentDim;
    q_rope.shape[2] = kKvRopeDim;
    copy(head_view(q_rows, heads, kQkHeadDim, kQkNopeHeadDim, kQkRopeHeadDim), q_rope, exec);

    const Tensor o_latent = exec.workspace.tensor<float>({num_decode, heads, kKvLatentDim});
    mla_decode(q_absorbed, paged, batch.decode_seq_idx, batch.decode_kv_len, step.softmax_scale, o_latent,
               exec);
    expand_value(o_latent, weights.kv_b,
                 head_view(heads_out.rows(num_prefill, num_decode), heads, kVHeadDim, 0, kVHeadDim), exec);
  }
  linear(heads_out, weights.o, y, exec);
}

}  // namespace hadal
