#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/gumbel.h"
#include "tests/engine/sampling_oracle.h"
#include "tests/sanitized.h"

namespace hadal {
namespace {

constexpr uint64_t kSeed = 7;

int32_t draw(const std::vector<float>& logits, const SamplingParams& params, int64_t position = 0,
             const TokenHistory& history = TokenHistory({}), std::span<const uint32_t> allowed = {},
             std::span<const int32_t> eos = {}) {
  SamplerScratch scratch;
  return sample_token(logits, params, history, eos, allowed, kSeed, position, scratch);
}

// Measures the frequencies of tokens drawn at `draws` successive positions.
std::map<int32_t, double> frequencies(const std::vector<float>& logits, const SamplingParams& params,
                                      int draws = 40000) {
  std::map<int32_t, double> counts;
  SamplerScratch scratch;
  const TokenHistory history({});
  for (int i = 0; i < draws; ++i) {
    counts[sample_token(logits, params, history, {}, {}, kSeed, i, scratch)] += 1.0 / draws;
  }
  return counts;
}

TEST(Sampler, TemperatureZeroTakesTheBestAndTiesGoToTheLowestId) {
  EXPECT_EQ(draw({0.1F, 3.0F, 2.0F}, {.temperature = 0.0F}), 1);
  EXPECT_EQ(draw({3.0F, 1.0F, 3.0F}, {.temperature = 0.0F}), 0);
}

TEST(Sampler, DrawsFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F, -1.0F};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    double total = 0.0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    const auto seen = frequencies(logits, {.temperature = temperature});
    for (int32_t id = 0; id < 4; ++id) {
      const double expected = std::exp(logits[id] / temperature) / total;
      EXPECT_NEAR(seen.count(id) ? seen.at(id) : 0.0, expected, 4 * std::sqrt(expected / 40000))
          << "token " << id << " temperature " << temperature;
    }
  }
}

TEST(Sampler, TopKKeepsExactlyKEvenWithTies) {
  const auto seen = frequencies({1.0F, 2.0F, 2.0F, 2.0F, 0.0F}, {.top_k = 2});
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_TRUE(seen.count(1) && seen.count(2));
}

TEST(Sampler, TopPKeepsTheFewestTokensThatReachTheMass) {
  // The probabilities are 0.5, 0.3, 0.15 and 0.05.
  const std::vector<float> logits = {std::log(0.3F), std::log(0.5F), std::log(0.05F), std::log(0.15F)};
  EXPECT_EQ(frequencies(logits, {.top_p = 0.49F}).size(), 1U);
  EXPECT_EQ(frequencies(logits, {.top_p = 0.6F}).size(), 2U);
  EXPECT_EQ(frequencies(logits, {.top_p = 0.9F}).size(), 3U);
  EXPECT_EQ(frequencies(logits, {.top_p = 1.0F}).size(), 4U);
  EXPECT_NEAR(frequencies(logits, {.top_p = 0.6F})[1], 0.625, 0.01);
}

TEST(Sampler, MinPIsRelativeToTheBestToken) {
  const std::vector<float> logits = {std::log(0.3F), std::log(0.5F), std::log(0.05F), std::log(0.15F)};
  EXPECT_EQ(frequencies(logits, {.min_p = 0.2F}).size(), 3U);
  EXPECT_EQ(frequencies(logits, {.min_p = 0.7F}).size(), 1U);
  EXPECT_EQ(frequencies(logits, {.min_p = 1.0F}).size(), 1U);
}

TEST(Sampler, SameSeedAndPositionGiveTheSameToken) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(500);
  for (float& logit : logits) logit = normal(random);
  for (int64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(draw(logits, {}, position), draw(logits, {}, position));
  }
}

// A million draws of each case take about ten seconds in all, so an unoptimised or sanitized build makes
// fewer draws.
TEST(Sampler, DrawsFollowTheExactDistributionWithEveryTruncationAndPenalty) {
#ifdef __OPTIMIZE__
  constexpr int64_t kDraws = testing::kSanitized ? 50'000 : 1'000'000;
#else
  constexpr int64_t kDraws = 50'000;
#endif
  SamplerScratch scratch;
  for (const testing::SamplingCase& row : testing::sampling_cases()) {
    const TokenHistory history = history_of(row);
    std::vector<int64_t> counts(row.logits.size());
    for (int64_t i = 0; i < kDraws; ++i) {
      ++counts[sample_token(row.logits, row.params, history, row.eos, row.mask, kSeed, i, scratch)];
    }
    EXPECT_GT(testing::chi_squared_p(counts, exact_probabilities(row)), 1e-4) << row.name;
  }
}

TEST(Sampler, TheChosenTokenHasTheLargestSumOfLogitAndNoise) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  for (const int vocab : {1, 5, 1000, 50000}) {
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = normal(random);
    for (int64_t position = 0; position < 20; ++position) {
      const float temperature = 0.3F + 0.2F * static_cast<float>(position);
      int32_t chosen = 0;
      double largest = -1e300;
      for (int32_t id = 0; id < vocab; ++id) {
        const double noise = -std::log(exponential_noise(noise_bits(kSeed, position, id)));
        const double sum = logits[id] / static_cast<double>(temperature) + noise;
        if (sum > largest) {
          largest = sum;
          chosen = id;
        }
      }
      EXPECT_EQ(draw(logits, {.temperature = temperature}, position), chosen) << vocab << " " << position;
    }
  }
}

TEST(Sampler, NoiseBelongsToATokenWhateverElseIsKept) {
  // Leaving out tokens that were not chosen changes no choice.
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> logits(300);
  for (float& logit : logits) logit = normal(random);
  int kept = 0;
  for (int64_t position = 0; position < 200; ++position) {
    const int32_t token = draw(logits, {}, position);
    const int32_t of_few = draw(logits, {.top_k = 100}, position);
    const bool among =
        std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logits[token]; }) < 100;
    if (among) {
      EXPECT_EQ(of_few, token);
      ++kept;
    }
  }
  EXPECT_GT(kept, 80);
}

TEST(Sampler, NeighbouringSeedsDrawUnrelatedTokens) {
  const std::vector<float> logits(16, 0.0F);  // the choices of a request with n > 1 have such seeds
  std::vector<int64_t> pairs(256);
  SamplerScratch scratch;
  for (int64_t i = 0; i < 100000; ++i) {
    const int32_t one = sample_token(logits, {}, TokenHistory({}), {}, {}, kSeed, i, scratch);
    const int32_t two = sample_token(logits, {}, TokenHistory({}), {}, {}, kSeed + 1, i, scratch);
    ++pairs[one * 16 + two];
  }
  EXPECT_GT(testing::chi_squared_p(pairs, std::vector<double>(256, 1.0 / 256)), 1e-4);
}

TEST(Sampler, AnInfiniteLogitAndExtremeTemperaturesAreDrawnWithoutNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(draw({1.0F, infinity, 2.0F}, {}), 1);
  EXPECT_EQ(draw({1.0F, infinity, 2.0F}, {.top_p = 0.5F}), 1);
  EXPECT_EQ(draw({3e38F, -3e38F, 2.9e38F}, {.temperature = 1e-20F}), 0);
  EXPECT_GT(frequencies({3.0F, 2.0F, 1.0F}, {.temperature = 1e30F}, 300).size(), 2U);
}

TEST(Sampler, RepetitionPenaltyShrinksSeenTokensOfEitherSign) {
  const std::vector<int32_t> prompt = {0, 1};
  const TokenHistory history(prompt);
  SamplingParams params{.temperature = 0.0F, .repetition_penalty = 2.0F};
  EXPECT_EQ(draw({3.0F, -1.0F, 2.0F}, params, 0, history), 2);    // 1.5, -2, 2
  EXPECT_EQ(draw({-1.0F, -1.5F, -1.9F}, params, 0, history), 2);  // -2, -3, -1.9
}

TEST(Sampler, FrequencyAndPresencePenaltiesCountGeneratedTokensOnly) {
  const std::vector<int32_t> prompt = {0, 0, 0};
  TokenHistory history(prompt);
  SamplingParams frequency{.temperature = 0.0F, .frequency_penalty = 1.0F};
  SamplingParams presence{.temperature = 0.0F, .presence_penalty = 1.0F};
  EXPECT_EQ(draw({1.0F, 0.5F}, frequency, 0, history), 0);
  EXPECT_EQ(draw({1.0F, 0.5F}, presence, 0, history), 0);
  history.add_generated(0);
  EXPECT_EQ(draw({1.0F, 0.5F}, presence, 0, history), 1);
  EXPECT_EQ(draw({2.0F, 0.5F}, frequency, 0, history), 0);
  history.add_generated(0);
  EXPECT_EQ(draw({2.0F, 0.5F}, frequency, 0, history), 1);
  EXPECT_EQ(draw({2.0F, 0.5F}, presence, 0, history), 0);
}

TEST(TokenHistory, CountsEachGeneratedTokenAndKnowsThoseOfThePrompt) {
  const TokenIds prompt{900, 3, 3, 17};
  TokenHistory history(prompt);
  TokenHistory other(prompt);
  EXPECT_EQ(history.prompt().data(), other.prompt().data()) << "the prompt is counted once";
  EXPECT_THAT(std::vector<int32_t>(history.prompt().begin(), history.prompt().end()),
              ::testing::ElementsAre(3, 17, 900));
  std::mt19937 random(7);
  std::map<int32_t, int32_t> expected;
  for (int i = 0; i < 5000; ++i) {
    const auto token = static_cast<int32_t>(random() % 1000 * 64);  // equal low bits
    history.add_generated(token);
    ++expected[token];
  }
  for (int i = 0; i < 3; ++i) history.add_generated(17);
  expected[17] = 3;
  EXPECT_EQ(history.num_generated(), 5003);
  EXPECT_EQ(history.generated().size(), expected.size());
  for (const auto& [token, count, in_prompt] : history.generated()) {
    EXPECT_EQ(count, expected[token]) << token;
    EXPECT_EQ(in_prompt, token == 17) << token;
  }
  EXPECT_TRUE(other.generated().empty());
  const TokenHistory copy = history;
  EXPECT_EQ(copy.generated().size(), expected.size());
}

TEST(TokenHistory, WithoutPenaltiesOnlyTheNumberOfTokensIsKept) {
  TokenHistory history(TokenIds{1, 2}, false);
  history.add_generated(5);
  EXPECT_EQ(history.num_generated(), 1);
  EXPECT_TRUE(history.prompt().empty());
  EXPECT_TRUE(history.generated().empty());
}

TEST(Sampler, LogitBiasAndGrammarMaskRestrictTheChoice) {
  SamplingParams biased{.temperature = 0.0F, .logit_bias = {{2, 10.0F}}};
  EXPECT_EQ(draw({1.0F, 2.0F, 0.0F}, biased), 2);
  const std::vector<uint32_t> only_zero = {1U};
  EXPECT_EQ(draw({1.0F, 2.0F, 0.0F}, biased, 0, TokenHistory({}), only_zero), 0);
  for (int64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(draw({1.0F, 2.0F, 0.0F}, {}, position, TokenHistory({}), only_zero), 0);
  }
}

TEST(Sampler, PenaltiesDoNotScaleTheLogitBias) {
  const std::vector<int32_t> prompt = {0};
  const SamplingParams params{.temperature = 0.0F, .repetition_penalty = 2.0F, .logit_bias = {{0, -2.0F}}};
  EXPECT_EQ(draw({1.0F, -1.7F}, params, 0, TokenHistory(prompt)),
            0);  // 1/2 − 2 = −1.5; (1 − 2)·2 would be −2
}

TEST(Sampler, EndTokensAreMaskedUntilMinNewTokens) {
  const std::vector<int32_t> eos = {2};
  const std::vector<float> logits = {0.0F, 50.0F, 100.0F};  // so far apart that every draw is the best token
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingParams params{.min_new_tokens = 1, .temperature = temperature, .stop_token_ids = {1}};
    TokenHistory history({});
    EXPECT_EQ(draw(logits, params, 0, history, {}, eos), 0) << temperature;
    history.add_generated(0);
    EXPECT_EQ(draw(logits, params, 1, history, {}, eos), 2) << temperature;
  }
}

TEST(Sampler, AGrammarThatAllowsOnlyTheEndWinsOverMinNewTokens) {
  const SamplingParams params{.min_new_tokens = 5, .temperature = 0.0F};
  const std::vector<int32_t> eos = {2};
  const std::vector<uint32_t> only_eos = {0b100U};
  EXPECT_EQ(draw({9.0F, 8.0F, 1.0F}, params, 0, TokenHistory({}), only_eos, eos), 2);
}

TEST(Sampler, IfEverythingIsMaskedTheModelsOwnChoiceIsTaken) {
  const std::vector<uint32_t> nothing = {0};
  EXPECT_EQ(draw({0.1F, 0.2F, 3.0F, 2.0F}, {.temperature = 1.0F}, 0, TokenHistory({}), nothing), 2);
  EXPECT_EQ(draw({0.1F, 0.2F, 3.0F, 2.0F}, {.temperature = 0.0F}, 0, TokenHistory({}), nothing), 2);
}

TEST(Sampler, LogprobsAreTheLogSoftmaxOfTheRawLogits) {
  const std::vector<float> logits = {1.0F, 2.0F, 3.0F, 3.0F};
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  const TokenLogprob result = token_logprob(logits, 0, 3);
  EXPECT_NEAR(result.logprob, 1.0 - std::log(total), 1e-6);
  ASSERT_EQ(result.top.size(), 3U);
  EXPECT_EQ(result.top[0].first, 2);
  EXPECT_EQ(result.top[1].first, 3);
  EXPECT_EQ(result.top[2].first, 1);
  EXPECT_NEAR(result.top[0].second, 3.0 - std::log(total), 1e-6);
  EXPECT_EQ(token_logprob(logits, 0, 100).top.size(), 4U);
}

TEST(SamplingParams, EveryFieldOutOfRangeIsNamed) {
  const auto message = [](const SamplingParams& params) {
    const Result<void> result = validate(params, 10);
    return result.ok() ? std::string() : result.status().message;
  };
  EXPECT_EQ(message({}), "");
  const float nan = std::nanf("");
  EXPECT_THAT(message({.temperature = -1.0F}), ::testing::HasSubstr("temperature"));
  EXPECT_THAT(message({.temperature = nan}), ::testing::HasSubstr("temperature"));
  EXPECT_THAT(message({.top_p = 0.0F}), ::testing::HasSubstr("top_p"));
  EXPECT_THAT(message({.top_p = 1.5F}), ::testing::HasSubstr("top_p"));
  EXPECT_THAT(message({.top_k = 0}), ::testing::HasSubstr("top_k"));
  EXPECT_THAT(message({.min_p = nan}), ::testing::HasSubstr("min_p"));
  EXPECT_THAT(message({.frequency_penalty = 2.5F}), ::testing::HasSubstr("frequency_penalty"));
  EXPECT_THAT(message({.presence_penalty = -2.5F}), ::testing::HasSubstr("presence_penalty"));
  EXPECT_THAT(message({.repetition_penalty = 0.0F}), ::testing::HasSubstr("repetition_penalty"));
  EXPECT_THAT(message({.max_new_tokens = -1}), ::testing::HasSubstr("max_new_tokens"));
  EXPECT_THAT(message({.max_new_tokens = 2, .min_new_tokens = 3}), ::testing::HasSubstr("min_new_tokens"));
  EXPECT_THAT(message({.stop_token_ids = {10}}), ::testing::HasSubstr("stop_token_ids"));
  EXPECT_THAT(message({.logit_bias = {{-1, 0.0F}}}), ::testing::HasSubstr("logit_bias"));
  EXPECT_THAT(message({.logit_bias = {{1, 101.0F}}}), ::testing::HasSubstr("logit_bias"));
}

}  // namespace
}  // namespace hadal
