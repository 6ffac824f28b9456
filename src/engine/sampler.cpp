#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/gumbel.h"

namespace hadal {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void apply_penalties(const SamplingParams& params, const TokenHistory& history, std::vector<float>& logits) {
  if (!uses_token_counts(params)) return;
  const auto repeat = [&](float& logit) {
    logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  };
  if (uses_prompt_tokens(params)) {
    for (const int32_t token : history.prompt()) repeat(logits[token]);
  }
  for (const auto& [token, count, in_prompt] : history.generated()) {
    float& logit = logits[token];
    if (!in_prompt) repeat(logit);
    logit -= params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
  }
}

void apply_bias_and_masks(const SamplingParams& params, const TokenHistory& history,
                          std::span<const int32_t> eos_token_ids, std::span<const uint32_t> allowed,
                          std::vector<float>& logits) {
  // Biases come after the penalties, so that a bias moves a logit by exactly its value.
  for (const auto& [token, bias] : params.logit_bias) logits[token] += bias;
  if (!allowed.empty()) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if ((allowed[i / 32] >> (i % 32) & 1U) == 0) logits[i] = kMasked;
    }
  }
  if (history.num_generated() >= params.min_new_tokens) return;
  std::vector<std::pair<int32_t, float>> ends;
  for (const int32_t token : eos_token_ids) ends.emplace_back(token, logits[token]);
  for (const int32_t token : params.stop_token_ids) ends.emplace_back(token, logits[token]);
  for (const auto& [token, logit] : ends) logits[token] = kMasked;
  // If the grammar allows nothing but end tokens, they stay allowed, because min_new_tokens must not make an
  // answer break its grammar.
  const bool anything_left =
      std::any_of(logits.begin(), logits.end(), [](float logit) { return logit != kMasked; });
  if (!anything_left) {
    for (const auto& [token, logit] : ends) logits[token] = std::max(logits[token], logit);
  }
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Orders by descending probability; equal logits are ordered by id, so that the order is total.
bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

double gumbel(uint32_t bits) {
  return -std::log(static_cast<double>(exponential_noise(bits)));
}

// Noise gives the bits of base/gumbel.h for one position. It is quick if ids ascend.
class Noise {
 public:
  Noise(uint64_t seed, uint64_t position) : seed_(seed), position_(position) {}
  uint32_t bits_of(int32_t token) {
    const auto id = static_cast<uint32_t>(token);
    if (id / 4 != group_) {  // neighbours share a call of Philox
      group_ = id / 4;
      bits_of_four_ = noise_bits_of_four(seed_, position_, group_);
    }
    return bits_of_four_[id % 4];
  }

 private:
  const uint64_t seed_, position_;
  uint32_t group_ = std::numeric_limits<uint32_t>::max();
  std::array<uint32_t, 4> bits_of_four_{};
};

// Calls take(score, token) for the candidates [logit, id], in any order, whose score may be at least
// floor() − `slack`. Scores are logit / T + G, relative to the largest logit. Logarithms are computed only
// for the few tokens that can still reach that: G is at most −log(1 − u), and the number of leading zeros of
// the bits bounds that.
template <typename Floor, typename Take>
void for_each_score(std::span<const std::pair<float, int32_t>> candidates, float largest_logit,
                    double inv_temperature, Noise& noise, const Floor& floor, const Take& take) {
  for (const auto& [logit, token] : candidates) {
    const double below = (static_cast<double>(logit) - static_cast<double>(largest_logit)) * inv_temperature;
    if (below + static_cast<double>(kLargestGumbel) < floor()) continue;
    const uint32_t bits = noise.bits_of(token);
    const double bound = (std::countl_zero(bits) + 1.001) * std::numbers::ln2;
    if (below + bound < floor()) continue;
    take(below + gumbel(bits), token);
  }
}

// Draws one of the candidates by the noise of base/gumbel.h; `best` is the first of them by better().
int32_t draw(std::span<const std::pair<float, int32_t>> candidates, const std::pair<float, int32_t>& best,
             double inv_temperature, uint64_t seed, uint64_t position) {
  Noise noise(seed, position);
  int32_t chosen = best.second;
  double largest = gumbel(noise.bits_of(chosen));
  for_each_score(
      candidates, best.first, inv_temperature, noise, [&] { return largest; },
      [&](double score, int32_t token) {
        if (score > largest || (score == largest && token < chosen)) {
          largest = score;
          chosen = token;
        }
      });
  return chosen;
}

bool is_greedy(const SamplingParams& params) {
  return params.temperature == 0.0F || params.top_k == 1;
}

// Makes scratch.candidates the tokens of scratch.logits that masks and truncation keep, in any order. Returns
// the first of them by better(); its logit is kMasked if there is none. Candidates are sorted only where
// top-p or min-p asks for it, because sorting a whole vocabulary takes milliseconds.
std::pair<float, int32_t> keep_candidates(const SamplingParams& params, SamplerScratch& scratch) {
  const std::vector<float>& work = scratch.logits;
  auto& candidates = scratch.candidates;
  candidates.clear();
  std::pair<float, int32_t> best{kMasked, 0};
  for (size_t i = 0; i < work.size(); ++i) {
    if (work[i] == kMasked) continue;
    candidates.emplace_back(work[i], static_cast<int32_t>(i));
    if (work[i] > best.first) best = candidates.back();  // the lowest id wins among equal logits
  }
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + params.top_k, candidates.end(), better);
    candidates.resize(params.top_k);
  }
  if (params.top_p >= 1.0F && params.min_p <= 0.0F) return best;

  const double inv_temperature = 1.0 / static_cast<double>(params.temperature);
  auto weight = [&](const std::pair<float, int32_t>& c) {
    return std::exp((static_cast<double>(c.first) - static_cast<double>(best.first)) * inv_temperature);
  };
  std::sort(candidates.begin(), candidates.end(), better);
  double total = 0.0;
  for (const auto& c : candidates) total += weight(c);
  size_t keep = candidates.size();
  if (params.top_p < 1.0F) {
    double mass = 0.0;
    for (keep = 0; keep < candidates.size() && mass < static_cast<double>(params.top_p) * total; ++keep) {
      mass += weight(candidates[keep]);
    }
    keep = std::min(std::max<size_t>(keep, 1), candidates.size());
  }
  while (keep > 1 && weight(candidates[keep - 1]) < static_cast<double>(params.min_p)) --keep;
  candidates.resize(keep);
  return best;
}

}  // namespace

TokenHistory::TokenHistory(TokenIds prompt, bool keep_counts) : keep_counts_(keep_counts) {
  if (keep_counts_) prompt_ = std::move(prompt);
}

void TokenHistory::add_generated(std::span<const int32_t> token_ids) {
  if (keep_counts_) {
    for (const int32_t token_id : token_ids) count(token_id);
  }
  num_generated_ += std::ssize(token_ids);
}

void TokenHistory::count(int32_t token_id) {
  if (2 * generated_.size() >= places_.size()) grow();
  uint32_t& place = place_of(token_id);
  if (place == 0) {
    const std::span<const int32_t> prompt = prompt_.distinct();
    const bool in_prompt = std::binary_search(prompt.begin(), prompt.end(), token_id);
    generated_.push_back({.token = token_id, .count = 0, .in_prompt = in_prompt});
    place = static_cast<uint32_t>(generated_.size());
  }
  ++generated_[place - 1].count;
}

// Returns the place of a token, or the empty one that it would have.
uint32_t& TokenHistory::place_of(int32_t token_id) {
  const size_t mask = places_.size() - 1;
  size_t at = static_cast<uint32_t>(token_id) * 0x9E3779B1U & mask;
  while (places_[at] != 0 && generated_[places_[at] - 1].token != token_id) at = (at + 1) & mask;
  return places_[at];
}

void TokenHistory::grow() {
  places_.assign(std::max<size_t>(16, 2 * places_.size()), 0);
  for (uint32_t i = 0; i < generated_.size(); ++i) place_of(generated_[i].token) = i + 1;
}

int32_t sample_token(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                     std::span<const int32_t> eos_token_ids, std::span<const uint32_t> allowed, uint64_t seed,
                     int64_t position, SamplerScratch& scratch) {
  const bool unchanged = !uses_token_counts(params) && params.logit_bias.empty() && allowed.empty() &&
                         history.num_generated() >= params.min_new_tokens;
  if (is_greedy(params) && unchanged) return argmax(logits);
  std::vector<float>& work = scratch.logits;
  work.assign(logits.begin(), logits.end());
  apply_penalties(params, history, work);
  apply_bias_and_masks(params, history, eos_token_ids, allowed, work);
  if (is_greedy(params)) {
    const int32_t token = argmax(work);
    return work[token] == kMasked ? argmax(logits) : token;  // if everything is masked, the model's choice
  }
  const std::pair<float, int32_t> best = keep_candidates(params, scratch);
  if (best.first == kMasked) return argmax(logits);
  return draw(scratch.candidates, best, 1.0 / static_cast<double>(params.temperature), seed,
              static_cast<uint64_t>(position));
}

std::vector<DraftChoice> choose_drafts(std::span<const float> logits, const SamplingParams& params,
                                       const TokenHistory& history, std::span<const int32_t> eos_token_ids,
                                       uint64_t seed, int64_t position, int64_t count,
                                       SamplerScratch& scratch) {
  std::vector<float>& work = scratch.logits;
  work.assign(logits.begin(), logits.end());
  apply_penalties(params, history, work);
  apply_bias_and_masks(params, history, eos_token_ids, {}, work);
  auto& scored = scratch.scored;
  scored.clear();
  double largest = -std::numeric_limits<double>::infinity();
  const auto take = [&](double score, int32_t token) {
    scored.emplace_back(score, token);
    largest = std::max(largest, score);
  };
  if (is_greedy(params)) {
    for (size_t i = 0; i < work.size(); ++i) {
      const auto score = static_cast<double>(work[i]);
      if (work[i] != kMasked && score >= largest - kNegligibleScore) take(score, static_cast<int32_t>(i));
    }
  } else {
    const std::pair<float, int32_t> best = keep_candidates(params, scratch);
    Noise noise(seed, static_cast<uint64_t>(position));
    for_each_score(
        scratch.candidates, best.first, 1.0 / static_cast<double>(params.temperature), noise,
        [&] { return largest - kNegligibleScore; }, take);
  }
  if (scored.empty()) return {{.token = argmax(logits)}};  // everything is masked
  std::erase_if(scored, [&](const auto& s) { return s.first < largest - kNegligibleScore; });
  double sum = 0.0;
  for (const auto& [score, token] : scored) sum += std::exp(score - largest);
  const auto num_drafts = static_cast<size_t>(std::min<int64_t>(count, std::ssize(scored)));
  std::partial_sort(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(num_drafts), scored.end(),
                    [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first > b.first : a.second < b.second;
                    });
  std::vector<DraftChoice> drafts;
  for (size_t i = 0; i < num_drafts; ++i) {
    drafts.push_back({.token = scored[i].second,
                      .log_share = static_cast<float>(scored[i].first - largest - std::log(sum))});
  }
  return drafts;
}

bool has_nan(std::span<const float> values) {
  bool found = false;
  for (const float value : values) found |= std::isnan(value);
  return found;
}

TokenLogprob token_logprob(std::span<const float> logits, int32_t token_id, int64_t top_num) {
  const float best = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit - best));
  const double log_total = static_cast<double>(best) + std::log(total);
  auto logprob = [&](int32_t id) { return static_cast<float>(static_cast<double>(logits[id]) - log_total); };

  TokenLogprob result{.token_id = token_id, .logprob = logprob(token_id), .top = {}};
  top_num = std::min<int64_t>(top_num, static_cast<int64_t>(logits.size()));
  if (top_num > 0) {
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + top_num, ids.end(), [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    for (int64_t i = 0; i < top_num; ++i) result.top.emplace_back(ids[i], logprob(ids[i]));
  }
  return result;
}

}  // namespace hadal
