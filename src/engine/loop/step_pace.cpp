#include "engine/loop/step_pace.h"

#include <algorithm>

#include "model/info.h"

namespace hadal {
namespace {

// A step with a lower cost than this says more about a step's fixed costs than about its prompt tokens.
constexpr int64_t kLeastMeasuredCost = 8;
// A fast step lowers the estimate only a little, because prompts differ and one fast step does not make them
// cheap. A slow step shows what can happen.
constexpr double kWeightOfFaster = 0.1;
constexpr double kWeightOfSlower = 0.5;

}  // namespace

PromptCosts prompt_costs(const ModelConfig& config, bool absorbs) {
  if (config.num_hidden_layers == 0) return {};
  const ModelInfo info = model_info(config, {}, {}, 0);
  const int64_t row = std::max<int64_t>(info.num_active_parameters, 1);
  // Attention multiplies a query with the key and the value of each position in each head.
  const int64_t position = config.num_hidden_layers * config.num_attention_heads * (kQkHeadDim + kVHeadDim);
  PromptCosts costs;
  if (position > 0) costs.positions_per_row = std::max<int64_t>(row / position, 1);
  if (absorbs && position > 0) {
    // The absorbed path multiplies with the whole record for the score, and with its latent part for the
    // value.
    const int64_t heads = config.num_hidden_layers * config.num_attention_heads;
    costs.absorbed_positions_per_row = std::max<int64_t>(row / (heads * (kKvRowDim + kKvLatentDim)), 1);
    costs.rows_per_1024_expanded = 1024 * heads * (kQkNopeHeadDim + kVHeadDim) * kKvLatentDim / row;
  }
  // Sampling reads all logits again, so a row of logits counts as at least one row.
  costs.rows_per_score = 1 + config.vocab_size * config.hidden_size / row;
  return costs;
}

void StepPace::observe(int64_t prompt_cost, double run_s) {
  if (prompt_cost == 0) {
    decode_step_s_ = run_s;
    return;
  }
  if (prompt_cost < kLeastMeasuredCost) return;
  const double measured = std::max(run_s - decode_step_s_, 0.0) / static_cast<double>(prompt_cost);
  const double weight = row_s_ == 0.0 ? 1.0 : measured > row_s_ ? kWeightOfSlower : kWeightOfFaster;
  row_s_ += weight * (measured - row_s_);
}

int64_t StepPace::max_cost() const {
  if (max_prompt_s_ <= 0.0) return kUnlimitedCost;
  if (row_s_ <= 0.0) return kFirstCost;
  constexpr double kMost = 1e15;  // fits into an int64_t
  return static_cast<int64_t>(std::min(std::max(max_prompt_s_, decode_step_s_) / row_s_, kMost));
}

}  // namespace hadal
