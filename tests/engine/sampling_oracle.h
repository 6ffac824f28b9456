// Computes in double, from the definition of engine/sampler.h alone, which tokens a request keeps and how
// probable each of them is, and compares draws with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace hadal::testing {

// SamplingCase is a row of logits and everything that decides which token is chosen from it, except seed and
// position.
struct SamplingCase {
  std::string name;
  SamplingParams params;
  std::vector<float> logits;
  std::vector<int32_t> prompt, generated, eos;
  std::vector<uint32_t> mask;  // empty: unconstrained
};

inline TokenHistory history_of(const SamplingCase& row) {
  TokenHistory history(row.prompt);
  for (const int32_t token : row.generated) history.add_generated(token);
  return history;
}

inline constexpr float kMaskedLogit = -std::numeric_limits<float>::infinity();

// Returns the logits after penalties, bias, mask and end tokens. The arithmetic is float's, as defined.
inline std::vector<float> changed_logits(const SamplingCase& row) {
  std::vector<float> work = row.logits;
  const SamplingParams& params = row.params;
  const TokenHistory history = history_of(row);
  if (uses_token_counts(params)) {
    std::map<int32_t, int32_t> counts;  // of generated tokens
    for (const int32_t token : row.prompt) counts[token] = 0;
    for (const int32_t token : row.generated) ++counts[token];
    for (const auto& [token, count] : counts) {
      float& x = work[token];
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
      if (count > 0) {
        x -= params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
      }
    }
  }
  for (const auto& [token, bias] : params.logit_bias) work[token] += bias;
  for (size_t t = 0; !row.mask.empty() && t < work.size(); ++t) {
    if ((row.mask[t / 32] >> (t % 32) & 1U) == 0) work[t] = kMaskedLogit;
  }
  if (history.num_generated() < params.min_new_tokens) {
    std::vector<float> without = work;
    for (const int32_t token : row.eos) without[token] = kMaskedLogit;
    for (const int32_t token : params.stop_token_ids) without[token] = kMaskedLogit;
    if (std::any_of(without.begin(), without.end(), [](float x) { return x != kMaskedLogit; }))
      work = without;
  }
  return work;
}

// Returns the tokens that truncation of `work` keeps, best first. p and min_p are moved by `shift`, because
// implementations may differ for a token that lies at a border.
inline std::vector<int32_t> kept_tokens(const SamplingParams& params, const std::vector<float>& work,
                                        double shift = 0.0) {
  std::vector<int32_t> kept;
  for (size_t t = 0; t < work.size(); ++t) {
    if (work[t] != kMaskedLogit) kept.push_back(static_cast<int32_t>(t));
  }
  std::sort(kept.begin(), kept.end(),
            [&](int32_t a, int32_t b) { return work[a] != work[b] ? work[a] > work[b] : a < b; });
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(kept.size())) kept.resize(params.top_k);
  const double best = work[kept.front()];
  const auto weight = [&](int32_t token) {
    return std::exp((work[token] - best) / static_cast<double>(params.temperature));
  };
  if (params.top_p < 1.0F) {
    double total = 0.0;
    for (const int32_t token : kept) total += weight(token);
    double mass = 0.0;
    size_t keep = 0;
    while (keep < kept.size() && mass < (static_cast<double>(params.top_p) + shift) * total) {
      mass += weight(kept[keep++]);
    }
    kept.resize(std::max<size_t>(keep, 1));
  }
  while (kept.size() > 1 && weight(kept.back()) < static_cast<double>(params.min_p) * (1.0 + shift))
    kept.pop_back();
  return kept;
}

// Returns the probability of every token, [vocab].
inline std::vector<double> exact_probabilities(const SamplingCase& row) {
  const std::vector<float> work = changed_logits(row);
  const std::vector<int32_t> kept = kept_tokens(row.params, work);
  const double best = work[kept.front()];
  std::vector<double> probabilities(work.size());
  double total = 0.0;
  for (const int32_t token : kept) {
    probabilities[token] = std::exp((work[token] - best) / static_cast<double>(row.params.temperature));
    total += probabilities[token];
  }
  for (double& probability : probabilities) probability /= total;
  return probabilities;
}

// Returns one case for each truncation, each penalty and each mask, and some together.
inline std::vector<SamplingCase> sampling_cases() {
  std::mt19937_64 random(20261128);
  std::normal_distribution<float> normal(0.0F, 1.5F);
  SamplingCase base;
  base.logits.resize(32);
  for (float& logit : base.logits) logit = normal(random);
  base.logits[9] = base.logits[20];  // a tie
  base.prompt = {1, 2, 3, 20, 30};
  base.generated = {2, 4, 4, 4, 9, 31};
  base.eos = {5};
  std::vector<SamplingCase> cases;
  const auto add = [&](const char* name, auto&& change) {
    cases.push_back(base);
    cases.back().name = name;
    change(cases.back().params, cases.back());
  };
  add("temperature 1", [](auto&, auto&) {});
  add("temperature 0.6", [](auto& p, auto&) { p.temperature = 0.6F; });
  add("temperature 2", [](auto& p, auto&) { p.temperature = 2.0F; });
  add("top-k", [](auto& p, auto&) { p.top_k = 7; });
  add("top-p", [](auto& p, auto&) { p.top_p = 0.8F; });
  add("min-p", [](auto& p, auto&) { p.min_p = 0.05F; });
  add("top-k, top-p and min-p", [](auto& p, auto&) { p.top_k = 20, p.top_p = 0.95F, p.min_p = 0.02F; });
  add("repetition penalty", [](auto& p, auto&) { p.repetition_penalty = 1.4F; });
  add("frequency penalty", [](auto& p, auto&) { p.frequency_penalty = 0.6F; });
  add("presence penalty", [](auto& p, auto&) { p.presence_penalty = -0.9F; });
  add("bias", [](auto& p, auto&) { p.logit_bias = {{0, 2.0F}, {31, -3.0F}, {9, 1.5F}}; });
  add("mask and minimum length", [](auto& p, auto& row) {
    p.min_new_tokens = 9;
    p.stop_token_ids = {6};
    row.mask = {0x5a5af0f7U};
  });
  add("everything", [](auto& p, auto& row) {
    p.temperature = 0.8F, p.top_k = 12, p.top_p = 0.9F, p.min_p = 0.01F;
    p.repetition_penalty = 1.2F, p.frequency_penalty = 0.3F, p.presence_penalty = 0.2F;
    p.logit_bias = {{7, 1.0F}};
    row.mask = {0xffff0fffU};
  });
  return cases;
}

// Returns the probability that draws from `probabilities` differ from them as much as `counts` or more:
// Pearson's χ² test, with the cube-root approximation of its distribution by Wilson and Hilferty (1931). Rare
// tokens share a cell. The result is 0 if a token of probability 0 was drawn.
inline double chi_squared_p(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  double draws = 0.0;
  for (const int64_t count : counts) draws += static_cast<double>(count);
  double statistic = 0.0;
  double rare_count = 0.0;
  double rare_expected = 0.0;
  int cells = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t t = 0; t < counts.size(); ++t) {
    const auto count = static_cast<double>(counts[t]);
    const double expected = probabilities[t] * draws;
    if (expected == 0.0 && count > 0.0) return 0.0;
    if (expected >= 10.0) {
      add(count, expected);
    } else {
      rare_count += count;
      rare_expected += expected;
    }
  }
  if (rare_expected > 0.0) add(rare_count, rare_expected);
  if (cells < 2) return 1.0;
  const double freedom = cells - 1;
  const double spread = 2.0 / (9.0 * freedom);
  const double z = (std::cbrt(statistic / freedom) - (1.0 - spread)) / std::sqrt(spread);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

}  // namespace hadal::testing
