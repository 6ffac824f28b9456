// Wraps a small random model so that its NextN layer guesses well. Tests of speculation use it.
#pragma once

#include <cmath>
#include <memory>
#include <utility>

#include "base/error.h"
#include "model/model.h"
#include "tests/engine/test_requests.h"

namespace hadal::testing {

inline uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  return x ^ (x >> 13);
}

// A random model's NextN layer guesses nothing correctly. In this model the next token is often a function of
// the last token and its position. NextN has this function, and is wrong now and then; the right token is
// then its second choice. The model can also be made to fail.
class GuessableModel final : public Model {
 public:
  explicit GuessableModel(std::unique_ptr<Model> model) : model_(std::move(model)) {}
  const ModelConfig& config() const override { return model_->config(); }
  const ModelWeights& weights() const override { return model_->weights(); }
  const ExpertStats& expert_stats() const override { return model_->expert_stats(); }
  void forward(const ForwardBatch& batch, KvCache& cache, const ForwardOutputs& outputs,
               ExecContext& exec) override {
    if (fails_at > 0 && ++num_forwards_ % fails_at == 0) throw Error("this step fails");
    model_->forward(batch, cache, outputs, exec);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const int32_t row = batch.logit_rows[i];
      favour(batch.token_ids[row], batch.positions[row], outputs.logits + i * kVocab);
      if (poison_position >= 0 && batch.positions[row] == poison_position)
        outputs.logits[i * kVocab + 5] = std::nanf("");
    }
  }
  void forward_nextn(const ForwardBatch& batch, const float* hidden, KvCache& cache,
                     const ForwardOutputs& outputs, ExecContext& exec) override {
    model_->forward_nextn(batch, hidden, cache, outputs, exec);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const int32_t row = batch.logit_rows[i];
      const int32_t position = batch.positions[row] + 1;
      const bool mistaken = mix_bits(static_cast<uint32_t>(position)) % 5 == 0;
      float* const logits = outputs.logits + i * kVocab;
      favour(batch.token_ids[row], position, logits);
      if (mistaken) favour(batch.token_ids[row] + 1, position, logits, 9.0F);
      if (nextn_gives_nan) outputs.logits[i * kVocab] = std::nanf("");
    }
  }

  int64_t fails_at = 0;          // every n-th step fails; 0: none does
  int32_t poison_position = -1;  // the logits of this position are NaN
  bool nextn_gives_nan = false;

 private:
  static void favour(int32_t token, int32_t position, float* logits, float by = 7.0F) {
    logits[mix_bits(static_cast<uint32_t>(token * 31 + position)) % kVocab] += by;
  }

  std::unique_ptr<Model> model_;
  int64_t num_forwards_ = 0;
};

}  // namespace hadal::testing
