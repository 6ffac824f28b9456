#include "model/deepseek.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/linear.h"

namespace hadal {
namespace {

// Replaces dense rows by their sum over the ranks that share the model.
void add_ranks(const Tensor& rows, ExecContext& exec) {
  if (exec.comm == nullptr) return;
  exec.comm->all_reduce({rows.ptr<float>(), static_cast<size_t>(rows.num_elements())});
}

// Embeds the batch's tokens as float32 [m, hidden].
void embed(const MatrixWeight& table, const ForwardBatch& batch, const Tensor& hidden, ExecContext& exec) {
  const DType dtype = table.type == WeightType::kF32 ? DType::kF32 : DType::kBF16;
  embedding(Tensor(const_cast<void*>(table.data), dtype, {table.n, table.k}), batch.token_ids, hidden, exec);
}

// Returns columns [begin, begin + count) of dense rows.
Tensor columns_of(const Tensor& x, int64_t begin, int64_t count) {
  Tensor part = Tensor::of(x.ptr<float>() + begin, {x.shape[0], count});
  part.stride[0] = x.stride[0];
  return part;
}

}  // namespace

Deepseek::Deepseek(ModelConfig config, ModelWeights weights)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      rope_table_(config_),
      router_(make_router(config_)) {}

void Deepseek::forward(const ForwardBatch& batch, KvCache& cache, const ForwardOutputs& outputs,
                       ExecContext& exec) {
  HADAL_CHECK_EQ(cache.layout().index != KvIndex::kNone, config_.has_indexer());
  const AttentionStep step = begin_step(batch);
  const Arena::Scope scope(exec.workspace);
  const LayerRun run{.layers = weights_.layers, .final_norm = weights_.final_norm};
  const Tensor residual = exec.workspace.tensor<float>({batch.num_tokens(), config_.hidden_size});
  embed(weights_.embedding, batch, residual, exec);
  if (outputs.hidden == nullptr) {
    head(weights_.lm_head, run_layers(run, step, cache, residual, batch.logit_rows, exec), outputs.logits,
         exec);
    return;
  }
  const Tensor hidden = run_layers(run, step, cache, residual, std::nullopt, exec);
  std::copy_n(hidden.ptr<float>(), hidden.num_elements(), outputs.hidden);
  const auto num_logits = static_cast<int64_t>(batch.logit_rows.size());
  if (num_logits == 0) return;
  const Tensor x = exec.workspace.tensor<float>({num_logits, config_.hidden_size});
  gather_rows(hidden, batch.logit_rows, x, exec);
  head(weights_.lm_head, x, outputs.logits, exec);
}

void Deepseek::forward_nextn(const ForwardBatch& batch, const float* hidden, KvCache& cache,
                             const ForwardOutputs& outputs, ExecContext& exec) {
  HADAL_CHECK(weights_.mtp.has_value(), "the NextN layer is not loaded");
  const MtpWeights& mtp = *weights_.mtp;
  const AttentionStep step = begin_step(batch);
  const Arena::Scope scope(exec.workspace);
  const int64_t m = batch.num_tokens();
  const int64_t width = config_.hidden_size;
  const Tensor residual = exec.workspace.tensor<float>({m, width});
  {
    const Arena::Scope inner(exec.workspace);
    const Tensor embedded = exec.workspace.tensor<float>({m, width});
    const Tensor joined = exec.workspace.tensor<float>({m, 2 * width});
    embed(mtp.embedding, batch, embedded, exec);
    rms_norm(embedded, mtp.enorm, step.norm_eps, columns_of(joined, 0, width), exec);
    rms_norm(Tensor::of(const_cast<float*>(hidden), {m, width}), mtp.hnorm, step.norm_eps,
             columns_of(joined, width, width), exec);
    linear(joined, mtp.eh_proj, residual, exec);
  }
  const LayerRun run{.layers = {&mtp.layer, 1},
                     .first_cache_layer = config_.num_hidden_layers,
                     .final_norm = mtp.shared_head_norm};
  const Tensor x = run_layers(run, step, cache, residual, batch.logit_rows, exec);
  if (batch.logit_rows.empty()) return;
  if (outputs.hidden != nullptr) std::copy_n(x.ptr<float>(), x.num_elements(), outputs.hidden);
  head(mtp.lm_head, x, outputs.logits, exec);
}

Tensor Deepseek::run_layers(const LayerRun& run, const AttentionStep& step, KvCache& cache, Tensor residual,
                            std::optional<std::span<const int32_t>> rows, ExecContext& exec) {
  const auto num_layers = static_cast<int64_t>(run.layers.size());
  // residual is the residual stream between layers, x is the next block's input, and out is its output.
  Tensor x = exec.workspace.tensor<float>({residual.shape[0], config_.hidden_size});
  Tensor out = exec.workspace.tensor<float>({residual.shape[0], config_.hidden_size});
  rms_norm(residual, run.layers[0].input_norm, step.norm_eps, x, exec);
  for (int64_t i = 0; i < num_layers; ++i) {
    const LayerWeights& layer = run.layers[static_cast<size_t>(i)];
    const bool is_last = i + 1 == num_layers;
    attention_block(layer.attention, x, cache, run.first_cache_layer + i, step, out, exec);
    if (is_last && rows) {  // from here on only these rows are computed
      const auto num_rows = static_cast<int64_t>(rows->size());
      x = x.rows(0, num_rows);
      if (num_rows == 0) return x;
      const Tensor all_residual = residual;
      const Tensor all_out = out;
      residual = exec.workspace.tensor<float>({num_rows, config_.hidden_size});
      out = exec.workspace.tensor<float>({num_rows, config_.hidden_size});
      gather_rows(all_residual, *rows, residual, exec);
      gather_rows(all_out, *rows, out, exec);
    }
    add_ranks(out, exec);
    add_rms_norm(out, residual, layer.post_attention_norm, step.norm_eps, x, exec);

    feed_forward(layer, x, out, exec);
    add_ranks(out, exec);
    add_rms_norm(out, residual, is_last ? run.final_norm : run.layers[static_cast<size_t>(i + 1)].input_norm,
                 step.norm_eps, x, exec);
  }
  return x;
}

void Deepseek::head(const MatrixWeight& lm_head, const Tensor& x, float* logits, ExecContext& exec) const {
  if (x.shape[0] == 0) return;
  Tensor all_columns = Tensor::of(logits, {x.shape[0], lm_head.n});
  all_columns.stride[0] = config_.vocab_size;
  linear(x, lm_head, all_columns, exec);
}

AttentionStep Deepseek::begin_step(const ForwardBatch& batch) {
  const int64_t m = batch.num_tokens();
  HADAL_CHECK_GT(m, 0);
  HADAL_CHECK_EQ(static_cast<int64_t>(batch.positions.size()), m);
  HADAL_CHECK_EQ(static_cast<int64_t>(batch.slots.size()), m);
  HADAL_CHECK_EQ(static_cast<int64_t>(batch.decode_seq_idx.size()), m - batch.num_prefill_tokens);
  HADAL_CHECK_EQ(batch.decode_kv_len.size(), batch.decode_seq_idx.size());
  HADAL_CHECK(batch.decode_ancestors.empty() || batch.decode_ancestors.size() == batch.decode_seq_idx.size(),
              "{} decode rows have {} masks", batch.decode_seq_idx.size(), batch.decode_ancestors.size());
  expert_stats_.distinct_experts.clear();
  const int32_t last = *std::max_element(batch.positions.begin(), batch.positions.end());
  return {.batch = batch,
          .cos_sin = rope_table_.up_to(int64_t{last} + 1),
          .softmax_scale = static_cast<float>(config_.softmax_scale()),
          .norm_eps = static_cast<float>(config_.rms_norm_eps),
          .selection = plan_selection(batch, config_.index_topk)};
}

void Deepseek::feed_forward(const LayerWeights& layer, const Tensor& x, const Tensor& y, ExecContext& exec) {
  if (layer.moe) {
    expert_stats_.distinct_experts.push_back(moe_block(*layer.moe, router_, x, y, exec));
  } else {
    mlp(x, *layer.mlp, y, exec);
  }
}

}  // namespace hadal
