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

}  // namespace

Deepseek::Deepseek(ModelConfig config, ModelWeights weights)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      rope_table_(config_),
      router_(make_router(config_)) {}

void Deepseek::forward(const ForwardBatch& batch, KvCache& cache, float* logits, ExecContext& exec) {
  HADAL_CHECK_EQ(cache.layout().index != KvIndex::kNone, config_.has_indexer());
  const AttentionStep step = begin_step(batch);
  const Arena::Scope scope(exec.workspace);
  const float eps = step.norm_eps;
  const auto num_layers = static_cast<int64_t>(weights_.layers.size());
  const auto num_logits = static_cast<int64_t>(batch.logit_rows.size());

  // residual is the stream between layers; x is the next block's input; out is its output.
  Tensor residual = exec.workspace.tensor<float>({batch.num_tokens(), config_.hidden_size});
  Tensor x = exec.workspace.tensor<float>({batch.num_tokens(), config_.hidden_size});
  Tensor out = exec.workspace.tensor<float>({batch.num_tokens(), config_.hidden_size});

  embed(batch, residual, exec);
  rms_norm(residual, weights_.layers[0].input_norm, eps, x, exec);
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    const LayerWeights& layer = weights_.layers[layer_idx];
    const bool is_last = layer_idx + 1 == num_layers;

    attention_block(layer.attention, x, cache, layer_idx, step, out, exec);
    if (is_last) {  // from here on only rows whose logits are wanted are needed
      if (num_logits == 0) return;
      const Tensor all_residual = residual;
      const Tensor all_out = out;
      residual = exec.workspace.tensor<float>({num_logits, config_.hidden_size});
      out = exec.workspace.tensor<float>({num_logits, config_.hidden_size});
      x = x.rows(0, num_logits);
      gather_rows(all_residual, batch.logit_rows, residual, exec);
      gather_rows(all_out, batch.logit_rows, out, exec);
    }
    add_ranks(out, exec);
    add_rms_norm(out, residual, layer.post_attention_norm, eps, x, exec);

    feed_forward(layer, x, out, exec);
    add_ranks(out, exec);
    add_rms_norm(out, residual, is_last ? weights_.final_norm : weights_.layers[layer_idx + 1].input_norm,
                 eps, x, exec);
  }
  Tensor columns = Tensor::of(logits, {num_logits, weights_.lm_head.n});
  columns.stride[0] = config_.vocab_size;
  linear(x, weights_.lm_head, columns, exec);
}

AttentionStep Deepseek::begin_step(const ForwardBatch& batch) {
  const int64_t m = batch.num_tokens();
  HADAL_CHECK_GT(m, 0);
  HADAL_CHECK_EQ(static_cast<int64_t>(batch.positions.size()), m);
  HADAL_CHECK_EQ(static_cast<int64_t>(batch.slots.size()), m);
  HADAL_CHECK_EQ(static_cast<int64_t>(batch.decode_seq_idx.size()), m - batch.num_prefill_tokens);
  HADAL_CHECK_EQ(batch.decode_kv_len.size(), batch.decode_seq_idx.size());
  expert_stats_.distinct_experts.clear();
  const int32_t last = *std::max_element(batch.positions.begin(), batch.positions.end());
  return {.batch = batch,
          .cos_sin = rope_table_.up_to(int64_t{last} + 1),
          .softmax_scale = static_cast<float>(config_.softmax_scale()),
          .norm_eps = static_cast<float>(config_.rms_norm_eps),
          .selection = plan_selection(batch, config_.index_topk)};
}

void Deepseek::embed(const ForwardBatch& batch, const Tensor& hidden, ExecContext& exec) const {
  const MatrixWeight& table = weights_.embedding;
  const DType dtype = table.type == WeightType::kF32 ? DType::kF32 : DType::kBF16;
  embedding(Tensor(const_cast<void*>(table.data), dtype, {table.n, table.k}), batch.token_ids, hidden, exec);
}

void Deepseek::feed_forward(const LayerWeights& layer, const Tensor& x, const Tensor& y, ExecContext& exec) {
  if (layer.moe) {
    expert_stats_.distinct_experts.push_back(moe_block(*layer.moe, router_, x, y, exec));
  } else {
    mlp(x, *layer.mlp, y, exec);
  }
}

}  // namespace hadal
