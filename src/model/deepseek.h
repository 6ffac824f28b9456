// Deepseek is the base of the family's models: it owns config, weights, RoPE table and router, and implements
// the small pieces of a forward pass. V2, V3 and V3.2 differ only in their data.
#pragma once

#include <span>

#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/model.h"
#include "model/rope_table.h"

namespace hadal {

class Deepseek final : public Model {
 public:
  Deepseek(ModelConfig config, ModelWeights weights);

  const ModelConfig& config() const override { return config_; }
  const ModelWeights& weights() const override { return weights_; }
  const ExpertStats& expert_stats() const override { return expert_stats_; }

  void forward(const ForwardBatch& batch, KvCache& cache, const ForwardOutputs& outputs,
               ExecContext& exec) override;
  void forward_nextn(const ForwardBatch& batch, const float* hidden, KvCache& cache,
                     const ForwardOutputs& outputs, ExecContext& exec) override;

 private:
  // Checks the batch's sizes against each other and prepares the data shared by all its attention layers.
  AttentionStep begin_step(const ForwardBatch& batch);
  // LayerRun is a run of layers, with their caches and the norm after the last one.
  struct LayerRun {
    std::span<const LayerWeights> layers;
    int64_t first_cache_layer = 0;
    const float* final_norm = nullptr;  // [hidden]
  };
  // Runs the layers over `residual` float32 [m, hidden], which it overwrites, and returns the output of the
  // norm after the last layer, in the workspace. With `rows`, only these rows pass the last feed-forward
  // block and are returned; if `rows` is empty, no row passes it.
  Tensor run_layers(const LayerRun& run, const AttentionStep& step, KvCache& cache, Tensor residual,
                    std::optional<std::span<const int32_t>> rows, ExecContext& exec);
  // Writes the logits of x [num_logits, hidden].
  void head(const MatrixWeight& lm_head, const Tensor& x, float* logits, ExecContext& exec) const;
  // Runs the dense MLP or the experts of one layer.
  void feed_forward(const LayerWeights& layer, const Tensor& x, const Tensor& y, ExecContext& exec);

  ModelConfig config_;
  ModelWeights weights_;
  RopeTable rope_table_;
  Router router_;
  ExpertStats expert_stats_;
};

}  // namespace hadal
