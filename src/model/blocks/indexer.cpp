#include "model/blocks/indexer.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/ops/indexer.h"
#include "kernels/cpu/ops/linear.h"

namespace hadal {
namespace {

using PrefillRun = SelectionPlan::PrefillRun;

// Appends rows of a segment that attend to all keys. They join the last run if its rows attend to all keys
// too.
void append_to_all(std::vector<PrefillRun>& runs, PrefillSegment segment) {
  if (runs.empty() || runs.back().selects) runs.push_back({.first_row = segment.q_begin});
  PrefillRun& run = runs.back();
  segment.q_begin = static_cast<int32_t>(run.num_rows);
  run.num_rows += segment.q_len;
  run.segments.push_back(segment);
}

// Appends rows of a segment that select keys, in pieces.
void append_selecting(std::vector<PrefillRun>& runs, const PrefillSegment& segment) {
  const int32_t prior = segment.kv_len - segment.q_len;
  for (int32_t begin = 0; begin < segment.q_len; begin += static_cast<int32_t>(kMaxSelectingRows)) {
    const int32_t end = std::min(begin + static_cast<int32_t>(kMaxSelectingRows), segment.q_len);
    PrefillRun& run = runs.emplace_back();
    run.first_row = segment.q_begin + begin;
    run.num_rows = end - begin;
    run.segments = {{.seq_idx = segment.seq_idx, .q_begin = 0, .q_len = end - begin, .kv_len = prior + end}};
    run.selects = true;
    run.seq_idx.assign(static_cast<size_t>(run.num_rows), segment.seq_idx);
    for (int32_t row = begin; row < end; ++row) run.kv_len.push_back(prior + row + 1);
  }
}

struct Queries {
  Tensor q;  // [rows, index_n_heads, 128]
  Tensor w;  // [rows, index_n_heads]
};

Queries make_queries(const LayerIndex& index, const Tensor& x, const Tensor& q_latent,
                     std::span<const int32_t> positions, ExecContext& exec) {
  const IndexerWeights& weights = index.weights;
  const int64_t rows = x.shape[0];
  const int64_t heads = weights.weights_proj.n;
  Queries queries{.q = exec.workspace.tensor<float>({rows, heads, kIndexHeadDim}),
                  .w = exec.workspace.tensor<float>({rows, heads})};
  linear(q_latent, weights.wq_b, Tensor::of(queries.q.ptr<float>(), {rows, heads * kIndexHeadDim}), exec);
  linear(x, weights.weights_proj, queries.w, exec);
  index_query(queries.q, queries.w, positions, index.cos_sin, index.keys.layout, exec);
  return queries;
}

}  // namespace

SelectionPlan plan_selection(const ForwardBatch& batch, int64_t topk) {
  SelectionPlan plan{.topk = topk};
  for (const PrefillSegment& segment : batch.segments) {
    const int64_t prior = segment.kv_len - segment.q_len;
    const auto num_to_all =
        static_cast<int32_t>(topk == 0 ? segment.q_len : std::clamp<int64_t>(topk - prior, 0, segment.q_len));
    PrefillSegment first = segment;
    first.q_len = num_to_all;
    first.kv_len = static_cast<int32_t>(prior) + num_to_all;
    PrefillSegment rest = segment;
    rest.q_begin += num_to_all;
    rest.q_len -= num_to_all;
    if (first.q_len > 0) append_to_all(plan.prefill, first);
    if (rest.q_len > 0) append_selecting(plan.prefill, rest);
  }
  for (size_t i = 0; i < batch.decode_kv_len.size(); ++i) {
    SelectionPlan::DecodeRows& rows =
        topk == 0 || batch.decode_kv_len[i] <= topk ? plan.to_all : plan.selecting;
    rows.rows.push_back(static_cast<int32_t>(i));
    rows.seq_idx.push_back(batch.decode_seq_idx[i]);
    rows.kv_len.push_back(batch.decode_kv_len[i]);
    rows.positions.push_back(batch.positions[static_cast<size_t>(batch.num_prefill_tokens) + i]);
    if (batch.decode_ancestors.empty()) continue;
    rows.ancestors.push_back(batch.decode_ancestors[i]);
    HADAL_CHECK(&rows == &plan.to_all || is_causal(rows.ancestors.back()),
                "rows of a draft tree cannot select keys");
  }
  return plan;
}

void store_index_keys(const LayerIndex& index, const Tensor& k, const ForwardBatch& batch,
                      ExecContext& exec) {
  index_write(k, {.weight = index.weights.norm_weight, .bias = index.weights.norm_bias}, batch.positions,
              index.cos_sin, batch.slots, index.keys.pool, index.keys.layout, exec);
}

std::span<const uint64_t> select_bits(const LayerIndex& index, const PrefillRun& run, int64_t topk,
                                      const Tensor& x, const Tensor& q_latent,
                                      std::span<const int32_t> positions, ExecContext& exec) {
  const int64_t words = (run.segments[0].kv_len + 63) / 64;
  const std::span bits(exec.workspace.allocate_array<uint64_t>(run.num_rows * words),
                       static_cast<size_t>(run.num_rows * words));
  const Arena::Scope scope(exec.workspace);
  const Queries queries = make_queries(index, x, q_latent, positions, exec);
  index_select_bits(queries.q, queries.w, index.keys, run.seq_idx, run.kv_len, static_cast<int>(topk), bits,
                    exec);
  return bits;
}

Selection select_slots(const LayerIndex& index, const SelectionPlan::DecodeRows& rows, int64_t topk,
                       const Tensor& x, const Tensor& q_latent, ExecContext& exec) {
  const auto num_rows = static_cast<int64_t>(rows.rows.size());
  const Selection selection{
      .slots = exec.workspace.tensor<int32_t>({num_rows, topk}),
      .counts = std::span(exec.workspace.allocate_array<int32_t>(num_rows), rows.rows.size())};
  const Arena::Scope scope(exec.workspace);
  const Queries queries = make_queries(index, x, q_latent, rows.positions, exec);
  index_select(queries.q, queries.w, index.keys, rows.seq_idx, rows.kv_len, selection.slots, selection.counts,
               exec);
  return selection;
}

}  // namespace hadal
