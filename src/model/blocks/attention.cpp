#include "model/blocks/attention.h"

#include <optional>
#include <span>

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

// Projections holds the projections of a block's hidden states.
struct Projections {
  Tensor q;         // [m, q_skip + heads · 192]
  Tensor kv;        // [m, 512 + 64]: latent, then k_pe
  Tensor q_latent;  // [m, q_lora_rank], normalised; unset without an indexer
  Tensor index_k;   // [m, 128]; unset without an indexer
};

// If the model has a low-rank pair for the query, the query is computed through it.
Projections project(const AttentionWeights& weights, const Tensor& x, int64_t q_width, float eps,
                    ExecContext& exec) {
  const int64_t m = x.shape[0];
  Projections out{.q = exec.workspace.tensor<float>({m, q_width}),
                  .kv = exec.workspace.tensor<float>({m, kKvRowDim})};
  if (weights.q_a.data == nullptr) {
    linear_group(x, {{weights.q_proj, out.q}, {weights.kv_a, out.kv}}, exec);
    return out;
  }
  const auto low_rank_query = [&](const Tensor& q_latent) {
    rms_norm(q_latent, weights.q_a_norm, eps, q_latent, exec);
    linear(q_latent, weights.q_b, out.q, exec);
  };
  if (!weights.indexer) {
    const Arena::Scope scope(exec.workspace);  // nothing else reads the latent
    const Tensor q_latent = exec.workspace.tensor<float>({m, weights.q_a.n});
    linear_group(x, {{weights.q_a, q_latent}, {weights.kv_a, out.kv}}, exec);
    low_rank_query(q_latent);
    return out;
  }
  out.q_latent = exec.workspace.tensor<float>({m, weights.q_a.n});
  out.index_k = exec.workspace.tensor<float>({m, kIndexHeadDim});
  linear_group(x, {{weights.q_a, out.q_latent}, {weights.kv_a, out.kv}, {weights.indexer->wk, out.index_k}},
               exec);
  low_rank_query(out.q_latent);
  return out;
}

// LayerAttention computes the attention of one layer in a step, between the projections and o_proj.
class LayerAttention {
 public:
  LayerAttention(const AttentionStep& step, const PagedKv& kv, const MatrixWeight& kv_b, int64_t heads,
                 const Tensor& x, const Tensor& q_latent, const LayerIndex* index, ExecContext& exec)
      : step_(step),
        kv_(kv),
        kv_b_(kv_b),
        heads_(heads),
        x_(x),
        q_latent_(q_latent),
        index_(index),
        exec_(exec) {}

  // Computes the un-absorbed attention of prompt rows: q [num_prefill, heads, 192] and out [num_prefill,
  // heads, 128], dense.
  void prefill(const Tensor& q, const Tensor& out) {
    const int64_t topk = step_.selection.topk;
    for (const SelectionPlan::PrefillRun& run : step_.selection.prefill) {
      const Arena::Scope scope(exec_.workspace);
      const Tensor run_q = q.rows(run.first_row, run.num_rows);
      const Tensor run_out = out.rows(run.first_row, run.num_rows);
      if (!run.selects) {
        mla_prefill(run_q, kv_, run.segments, kv_b_, step_.softmax_scale, run_out, exec_);
        continue;
      }
      const std::span<const int32_t> positions(step_.batch.positions);
      const auto bits = select_bits(
          *index_, run, topk, x_.rows(run.first_row, run.num_rows),
          q_latent_.rows(run.first_row, run.num_rows),
          positions.subspan(static_cast<size_t>(run.first_row), static_cast<size_t>(run.num_rows)), exec_);
      mla_prefill_selected(run_q, kv_, run.segments, kv_b_, step_.softmax_scale, bits, run_out, exec_);
    }
  }

  // Computes the absorbed attention of decode rows: q [num_decode, heads, 576] and out [num_decode, heads,
  // 512], dense.
  void decode(const Tensor& q, const Tensor& out) {
    attend(step_.selection.to_all, q, out,
           [&](const SelectionPlan::DecodeRows& rows, const Tensor& some_q, const Tensor& some_out) {
             mla_decode(some_q, kv_, rows.seq_idx, rows.kv_len, rows.ancestors, step_.softmax_scale, some_out,
                        exec_);
           });
    attend(step_.selection.selecting, q, out,
           [&](const SelectionPlan::DecodeRows& rows, const Tensor& some_q, const Tensor& some_out) {
             const int64_t first = step_.batch.num_prefill_tokens;
             const Tensor some_x = gathered(x_.rows(first, q.shape[0]), rows.rows);
             const Tensor some_latent = gathered(q_latent_.rows(first, q.shape[0]), rows.rows);
             const Selection selection =
                 select_slots(*index_, rows, step_.selection.topk, some_x, some_latent, exec_);
             mla_decode_selected(some_q, kv_, selection.slots, selection.counts, step_.softmax_scale,
                                 some_out, exec_);
           });
  }

 private:
  // Returns the given rows of a dense matrix: a view if they are all of its rows, otherwise a copy.
  Tensor gathered(const Tensor& matrix, std::span<const int32_t> rows) {
    const auto num_rows = static_cast<int64_t>(rows.size());
    if (num_rows == matrix.shape[0]) return matrix;
    const Tensor some = exec_.workspace.tensor<float>({num_rows, matrix.shape[1]});
    gather_rows(matrix, rows, some, exec_);
    return some;
  }

  // Calls body(rows, q, out) with q and out reduced to these rows, if there are any.
  template <typename Body>
  void attend(const SelectionPlan::DecodeRows& rows, const Tensor& q, const Tensor& out, const Body& body) {
    if (rows.rows.empty()) return;
    const auto num_rows = static_cast<int64_t>(rows.rows.size());
    if (num_rows == q.shape[0]) return body(rows, q, out);
    const Arena::Scope scope(exec_.workspace);
    const auto flat = [](const Tensor& t) {
      return Tensor::of(t.ptr<float>(), {t.shape[0], t.shape[1] * t.shape[2]});
    };
    const Tensor some_q = exec_.workspace.tensor<float>({num_rows, heads_, kKvRowDim});
    const Tensor some_out = exec_.workspace.tensor<float>({num_rows, heads_, kKvLatentDim});
    gather_rows(flat(q), rows.rows, flat(some_q), exec_);
    body(rows, some_q, some_out);
    scatter_rows(flat(some_out), rows.rows, flat(out), exec_);
  }

  const AttentionStep& step_;
  const PagedKv& kv_;
  const MatrixWeight& kv_b_;
  const int64_t heads_;
  const Tensor& x_;
  const Tensor& q_latent_;
  const LayerIndex* index_;  // null without an indexer
  ExecContext& exec_;
};

}  // namespace

void attention_block(const AttentionWeights& weights, const Tensor& x, const KvCache& cache,
                     int64_t layer_idx, const AttentionStep& step, const Tensor& y, ExecContext& exec) {
  const Arena::Scope scope(exec.workspace);
  const ForwardBatch& batch = step.batch;
  const int64_t m = x.shape[0];
  const int64_t heads = weights.kv_b.n / (kQkNopeHeadDim + kVHeadDim);
  const int64_t num_prefill = batch.num_prefill_tokens;
  const int64_t num_decode = m - num_prefill;

  const Projections projected = project(weights, x, weights.q_skip + heads * kQkHeadDim, step.norm_eps, exec);
  const Tensor q = column_view(projected.q, weights.q_skip, heads * kQkHeadDim);
  const Tensor& kv = projected.kv;
  const Tensor latent = column_view(kv, 0, kKvLatentDim);
  rms_norm(latent, weights.kv_a_norm, step.norm_eps, latent, exec);

  rope(head_view(kv, 1, kKvRowDim, kKvLatentDim, kKvRopeDim), batch.positions, step.cos_sin, exec);
  rope(head_view(q, heads, kQkHeadDim, kQkNopeHeadDim, kQkRopeHeadDim), batch.positions, step.cos_sin, exec);
  kv_write(latent, column_view(kv, kKvLatentDim, kKvRopeDim), batch.slots, cache.layer(layer_idx),
           cache.layout(), exec);

  const PagedKv paged{.pool = cache.layer(layer_idx),
                      .layout = cache.layout(),
                      .num_pages = cache.num_pages(),
                      .page_table = batch.page_table.data(),
                      .page_table_stride = batch.page_table_stride};
  std::optional<LayerIndex> index;
  if (weights.indexer) {
    index.emplace(LayerIndex{.weights = *weights.indexer,
                             .keys = {.pool = cache.index_layer(layer_idx),
                                      .layout = cache.layout().index,
                                      .num_pages = cache.num_pages(),
                                      .page_table = batch.page_table.data(),
                                      .page_table_stride = batch.page_table_stride},
                             .cos_sin = step.cos_sin});
    // Every token stores its key, even where no row selects keys yet, because later tokens may select it.
    store_index_keys(*index, projected.index_k, batch, exec);
  }
  LayerAttention attention(step, paged, weights.kv_b, heads, x, projected.q_latent, index ? &*index : nullptr,
                           exec);
  const Tensor heads_out = exec.workspace.tensor<float>({m, heads * kVHeadDim});

  if (num_prefill > 0) {
    Tensor q_heads = head_view(q.rows(0, num_prefill), heads, kQkHeadDim, 0, kQkHeadDim);
    if (!q_heads.is_contiguous()) {
      const Tensor dense = exec.workspace.tensor<float>({num_prefill, heads, kQkHeadDim});
      copy(q_heads, dense, exec);
      q_heads = dense;
    }
    attention.prefill(q_heads, head_view(heads_out.rows(0, num_prefill), heads, kVHeadDim, 0, kVHeadDim));
  }
  if (num_decode > 0) {
    const Tensor q_decode = q.rows(num_prefill, num_decode);
    const Tensor q_absorbed = exec.workspace.tensor<float>({num_decode, heads, kKvRowDim});
    absorb_query(head_view(q_decode, heads, kQkHeadDim, 0, kQkNopeHeadDim), weights.kv_b, q_absorbed, exec);
    Tensor q_rope = q_absorbed;
    q_rope.data = q_absorbed.ptr<float>() + kKvLatentDim;
    q_rope.shape[2] = kKvRopeDim;
    copy(head_view(q_decode, heads, kQkHeadDim, kQkNopeHeadDim, kQkRopeHeadDim), q_rope, exec);

    const Tensor o_latent = exec.workspace.tensor<float>({num_decode, heads, kKvLatentDim});
    attention.decode(q_absorbed, o_latent);
    expand_value(o_latent, weights.kv_b,
                 head_view(heads_out.rows(num_prefill, num_decode), heads, kVHeadDim, 0, kVHeadDim), exec);
  }
  linear(heads_out, weights.o, y, exec);
}

}  // namespace hadal
