// Deepseek is the base of the family's models: it owns config, weights, RoPE table and router, and implements
// the small pieces of a forward pass. V2, V3 and V3.2 differ in data alone.
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

  void forward(const ForwardBatch& batch, KvCache& cache, float* logits, ExecContext& exec) override;

 private:
  // Checks the batch's sizes against each other and prepares the data shared by all its attention layers.
  AttentionStep begin_step(const ForwardBatch& batch);
  // Embeds the batch's tokens as float32 [m, hidden].
  void embed(const ForwardBatch& batch, const Tensor& hidden, ExecContext& exec) const;
  // Runs the dense MLP or the experts of one layer.
  void feed_forward(const LayerWeights& layer, const Tensor& x, const Tensor& y, ExecContext& exec);

  ModelConfig config_;
  ModelWeights weights_;
  RopeTable rope_table_;
  Router router_;
  ExpertStats expert_stats_;
};

}  // namespace hadal
