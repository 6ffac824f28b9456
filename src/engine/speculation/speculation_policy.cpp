#include "engine/speculation/speculation_policy.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/speculation/weight_traffic.h"
#include "model/info.h"

namespace hadal {
namespace {

// An outcome counts half as much after 44 others at its depth.
constexpr double kDecay = 1.0 - 1.0 / 64;
// Before anything has been observed, the acceptance is assumed to be kFirstAcceptance, with the weight of
// kFirstWeight outcomes, so drafts are tried at first.
constexpr double kFirstAcceptance = 0.95;
constexpr double kFirstWeight = 4.0;
// Probes cost at most this share of the time, and each has enough steps for kOutcomesOfProbe outcomes.
constexpr double kShareOfProbes = 0.01;
constexpr int64_t kOutcomesOfProbe = 8;

int64_t steps_of_probe(const StepLoad& load) {
  return (kOutcomesOfProbe + load.num_requests - 1) / load.num_requests;
}

}  // namespace

int64_t widest_step(int64_t max_width, int64_t num_running) {
  return std::clamp<int64_t>(kMaxVerifiedRows / std::max<int64_t>(num_running, 1), 1,
                             std::max<int64_t>(max_width, 1));
}

void DraftAcceptance::observe(int64_t num_drafts, std::span<const int32_t> accepted) {
  num_drafts = std::min(num_drafts, std::ssize(drafts_));
  // The drafts of a chain after the first wrong one were guessed for another text, so their outcome says
  // nothing.
  if (is_chain_) num_drafts = std::min(num_drafts, std::ssize(accepted) + 1);
  for (int64_t i = 0; i < num_drafts; ++i) {
    Outcomes& draft = drafts_[static_cast<size_t>(i)];
    const bool is_accepted = std::binary_search(accepted.begin(), accepted.end(), i + 1);
    draft.verified = kDecay * draft.verified + 1.0;
    draft.accepted = kDecay * draft.accepted + (is_accepted ? 1.0 : 0.0);
  }
}

void DraftAcceptance::forget_half() {
  for (Outcomes& draft : drafts_) {
    draft.verified /= 2;
    draft.accepted /= 2;
  }
}

std::vector<double> DraftAcceptance::chances() const {
  std::vector<double> chances;
  double before = kFirstAcceptance, path = 1.0;
  for (const Outcomes& draft : drafts_) {
    before = (draft.accepted + kFirstWeight * before) / (draft.verified + kFirstWeight);
    path *= before;
    chances.push_back(is_chain_ ? path : before);
  }
  return chances;
}

double expected_tokens(std::span<const double> chances, const DraftShape& shape, int64_t width) {
  double accepted = 0.0;
  for (int64_t draft = 1; draft < width; ++draft) accepted += chances[static_cast<size_t>(draft - 1)];
  return 1.0 + std::min(accepted, static_cast<double>(shape.num_steps));
}

StepCosts::StepCosts(const ModelConfig& config, const KvLayout& layout, const DeviceRates& rates,
                     const DraftShape& shape)
    : config_(config), rates_(rates), shape_(shape) {
  if (config.num_hidden_layers == 0) return;
  const ModelInfo info = model_info(config, {}, layout, 0);
  const auto head = static_cast<double>(config.vocab_size * config.hidden_size);
  const auto expert = static_cast<double>(3 * config.hidden_size * config.moe_intermediate_size);
  const auto chosen = static_cast<double>(config.num_experts_per_tok);
  const auto experts = static_cast<double>(config.n_routed_experts);
  const double parameter_bytes = config.quantization ? 1.0 : 2.0;

  double moe_layers = 0.0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) moe_layers += config.is_moe_layer(i) ? 1.0 : 0.0;
  target_.row_products = static_cast<double>(info.num_active_parameters) - head;
  target_.bytes = parameter_bytes * (target_.row_products - moe_layers * chosen * expert);
  target_.expert_bytes = parameter_bytes * moe_layers * expert;
  target_.num_layers = static_cast<double>(config.num_hidden_layers);
  nextn_.row_products = static_cast<double>(info.num_nextn_parameters) - (experts - chosen) * expert;
  nextn_.bytes = parameter_bytes * (nextn_.row_products - chosen * expert);
  nextn_.expert_bytes = parameter_bytes * expert;
  nextn_.num_layers = 1.0;

  head_products_ = head;
  // A row multiplies with the whole record for the score, and with its latent part for the value.
  key_products_ = static_cast<double>(config.num_attention_heads * (kKvRowDim + kKvLatentDim));
  key_bytes_ = static_cast<double>(layout.row_bytes());
}

// `rows_of_request` are the rows of each request, `num_logits` those of all rows whose logits are wanted.
double StepCosts::cost(const Pass& pass, const StepLoad& load, double rows_of_request, double num_logits,
                       double prompt_rows) const {
  const auto requests = static_cast<double>(load.num_requests);
  double keys = static_cast<double>(load.num_keys);
  if (config_.has_indexer()) keys = std::min(keys, requests * static_cast<double>(config_.index_topk));
  const double rows = requests * rows_of_request + prompt_rows;
  const double products = rows * pass.row_products + num_logits * head_products_ +
                          pass.num_layers * rows_of_request * keys * key_products_;
  constexpr double kHeadBytes = 2.0;  // the head is not quantised
  const double bytes = pass.bytes + (num_logits > 0.0 ? kHeadBytes * head_products_ : 0.0) +
                       pass.expert_bytes * expected_distinct_experts(config_, static_cast<int64_t>(rows)) +
                       pass.num_layers * keys * key_bytes_;
  return bytes + products / rates_.products_per_byte;
}

double StepCosts::step(const StepLoad& load, int64_t width, double tokens) const {
  const auto requests = static_cast<double>(load.num_requests);
  const auto rows = static_cast<double>(width);
  const auto prompt_rows = static_cast<double>(load.num_prompt_tokens);
  double total = cost(target_, load, rows, requests * rows, prompt_rows);
  if (width > 1) {
    total += cost(nextn_, load, tokens, requests, prompt_rows);
  } else if (prompt_rows > 0.0) {
    total += cost(nextn_, {}, 0.0, 0.0, prompt_rows);
  }
  // Each depth after the first is a pass of NextN over up to topk drafts.
  const int64_t num_passes = std::min(shape_.num_steps, width - 1) - 1;
  if (num_passes > 0) {
    const auto drafts = static_cast<double>(std::min(shape_.topk, width - 1));
    total += static_cast<double>(num_passes) * cost(nextn_, load, drafts, requests * drafts, 0.0);
  }
  return total;
}

double StepCosts::catch_up(const StepLoad& load, int64_t num_rows) const {
  if (num_rows == 0) return 0.0;
  return cost(nextn_, load, static_cast<double>(num_rows), static_cast<double>(load.num_requests), 0.0);
}

// Before there are outcomes, a tree has all its nodes for a while, because only those tell how good they are.
SpeculationPolicy::SpeculationPolicy(int64_t max_width, StepCosts costs, const DraftShape& shape)
    : costs_(std::move(costs)),
      shape_(shape),
      acceptance_(max_width - 1, shape.topk == 1),
      certain_(static_cast<size_t>(max_width - 1), 1.0),
      num_probe_steps_(shape.topk == 1 ? 0 : kOutcomesOfProbe) {}

// The additional cost of a wider step is weighed at the rate of tokens that steps without prompt tokens
// reach. If tokens per cost were compared instead, a large prompt in the same step would make every draft
// look cheap.
int64_t SpeculationPolicy::best_width(const StepLoad& load, int64_t widest,
                                      std::span<const double> chances) const {
  const auto requests = static_cast<double>(load.num_requests);
  StepLoad alone = load;
  alone.num_prompt_tokens = 0;
  double rate = 0.0;  // tokens per cost
  for (int64_t width = 1; width <= widest; ++width) {
    const double tokens = expected_tokens(chances, shape_, width);
    rate = std::max(rate, requests * tokens / std::max(costs_.step(alone, width, tokens), 1.0));
  }
  int64_t best = 1;
  double best_gain = 0.0;
  for (int64_t width = 1; width <= widest; ++width) {
    const double tokens = expected_tokens(chances, shape_, width);
    const double gain = requests * tokens - rate * costs_.step(load, width, tokens);
    if (width > 1 && gain <= best_gain) continue;
    best = width;
    best_gain = gain;
  }
  return best;
}

// A narrow tree of certain drafts has as many tokens as a wide one. But if a tree is worth anything, a probe
// has all its nodes, because the chances of each are to be learnt.
int64_t SpeculationPolicy::hoped_width(const StepLoad& load, int64_t widest) const {
  const int64_t best = best_width(load, widest, certain_);
  return shape_.topk > 1 && best > 1 ? widest : best;
}

SpeculationPolicy::Choice SpeculationPolicy::choose(const StepLoad& load, int64_t widest) const {
  StepLoad loaded = load;
  loaded.num_requests = std::max<int64_t>(load.num_requests, 1);
  const std::vector<double> chances = acceptance_.chances();
  const int64_t best = best_width(loaded, widest, chances);
  // If a wider step would not be better even if every draft were right, there is nothing to learn.
  const int64_t hoped = hoped_width(loaded, widest);
  if (hoped <= best) return {.width = best};

  if (num_probe_steps_ > 0) return {.width = hoped, .probes = true};

  const double best_cost = costs_.step(loaded, best, expected_tokens(chances, shape_, best));
  const double more = costs_.step(loaded, hoped, expected_tokens(chances, shape_, hoped)) - best_cost;
  const double probe_cost = static_cast<double>(steps_of_probe(loaded)) * more +
                            costs_.catch_up(loaded, std::min(num_resting_, kMaxWaitingRows));
  if (budget_ < probe_cost) return {.width = best, .budget = kShareOfProbes * best_cost};
  return {.width = hoped, .probes = true, .num_probe_steps = steps_of_probe(loaded), .budget = -probe_cost};
}

void SpeculationPolicy::planned(const Choice& choice) {
  budget_ += choice.budget;
  num_resting_ = choice.width > 1 ? 0 : num_resting_ + 1;
  // What a probe shows must have weight beside the many outcomes before it.
  if (choice.num_probe_steps > 0) {
    acceptance_.forget_half();
    num_probe_steps_ = choice.num_probe_steps;
  }
  num_probe_steps_ = choice.probes ? num_probe_steps_ - 1 : 0;
}

}  // namespace hadal
