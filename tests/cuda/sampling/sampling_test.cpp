// Compares sampling on the device with engine/sampler.cpp, over random logits, parameters, histories and
// masks.
#include <fmt/format.h>

#include <array>
#include <tuple>

#include "tests/cuda/sampling/sampling_case.h"

namespace hadal::cuda_test {
namespace {

constexpr double kSlack =
    1e-5;  // the most by which single-precision weights may move a sum of logit and noise, and p
constexpr uint64_t kSeed = 20261121;

struct Tally {
  int exact = 0, near = 0, wrong = 0;
};

void check_token(const Request& request, int32_t token, Tally& tally) {
  const bool greedy = request.params.temperature == 0.0F || request.params.top_k == 1;
  const int32_t expected = cpu_token(request);
  if (token == expected) {
    ++tally.exact;
    return;
  }
  if (!greedy) {
    const auto acceptable = acceptable_tokens(request, kSlack);
    ASSERT_TRUE(acceptable.count(expected) != 0) << "the test's own oracle: " << describe(request);
    if (acceptable.count(token) != 0) {
      ++tally.near;
      return;
    }
  }
  if (++tally.wrong <= 5)
    ADD_FAILURE() << "token " << token << ", CPU " << expected << ": " << describe(request);
}

void check_state(const Request& request, const Outcome& out, size_t i) {
  const auto vocab = static_cast<int64_t>(request.logits.size());
  const int32_t token = out.results[i].token;
  EXPECT_EQ(out.results[i].has_nan, 0);
  EXPECT_EQ(out.last_token[i], token) << describe(request);
  EXPECT_EQ(out.slots[i].num_generated, static_cast<int64_t>(request.generated.size()) + 1);
  if (!uses_token_counts(request.params)) return;
  TokenHistory history = history_of(request);
  history.add_generated(token);
  std::vector<int> counts(static_cast<size_t>(vocab));
  for (const int32_t t : history.prompt()) counts[static_cast<size_t>(t)] = 0x8000;
  for (const auto& counted : history.generated()) counts[static_cast<size_t>(counted.token)] |= counted.count;
  int wrong = 0;
  for (int64_t t = 0; t < vocab; ++t) {
    const int expected = counts[static_cast<size_t>(t)];
    wrong += out.counts[i * vocab + t] != expected ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0) << "counts: " << describe(request);
}

void compare_with_cpu(int64_t vocab, int batches, int rows, bool reference, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tally tally;
  for (int batch = 0; batch < batches; ++batch) {
    std::vector<Request> requests;
    for (int i = 0; i < rows; ++i) requests.push_back(random_request(random, vocab));
    const Outcome out = run_on_device(requests, reference, random());
    ASSERT_EQ(out.results.size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      check_token(requests[i], out.results[i].token, tally);
      check_state(requests[i], out, i);
    }
  }
  EXPECT_EQ(tally.wrong, 0);
  EXPECT_LE(tally.near * 200, tally.exact) << "differences at borders are rare";
  fmt::print("vocab {}: {} equal, {} at a border, {} wrong\n", vocab, tally.exact, tally.near, tally.wrong);
}

TEST(CudaSampling, AgreesWithTheCpu) {
  for (const int64_t vocab : {1, 2, 31, 33, 127, 130, 1000, 4096, 16384, 16385}) {
    compare_with_cpu(vocab, 6, 40, false, kSeed + vocab);
  }
}

TEST(CudaSampling, AgreesWithTheCpuAtFullVocabularies) {
  for (const int64_t vocab : {102400, 129280, 131072, 100003})
    compare_with_cpu(vocab, 2, 32, false, kSeed + vocab);
}

TEST(CudaSampling, PlainKernelAgreesWithTheCpu) {
  for (const int64_t vocab : {1, 33, 1000, 16384}) compare_with_cpu(vocab, 3, 24, true, kSeed + 7 * vocab);
}

TEST(CudaSampling, VocabulariesAboveTheTunedKernelsLimitAgreeWithTheCpu) {
  compare_with_cpu(140001, 1, 8, false, kSeed);
}

TEST(CudaSampling, ManyDrawsOfOneRowFollowTheCpu) {
  std::mt19937_64 random(kSeed);
  const auto logits = random_logits(random, 5000, 1);
  Tally tally;
  for (const auto& [top_k, top_p, min_p] : {std::tuple{-1L, 1.0F, 0.0F}, std::tuple{40L, 1.0F, 0.0F},
                                            std::tuple{-1L, 0.9F, 0.0F}, std::tuple{50L, 0.95F, 0.05F}}) {
    std::vector<Request> requests(400);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].logits = logits;
      requests[i].params = {.temperature = 0.8F, .top_p = top_p, .top_k = top_k, .min_p = min_p};
      requests[i].seed = 11;
      requests[i].position = static_cast<int64_t>(i);
    }
    const Outcome out = run_on_device(requests, false);
    for (size_t i = 0; i < requests.size(); ++i) check_token(requests[i], out.results[i].token, tally);
  }
  EXPECT_EQ(tally.wrong, 0);
}

TEST(CudaSampling, TiesGoToTheLowerId) {
  for (const bool reference : {false, true}) {
    std::vector<Request> requests;
    for (const int64_t vocab_fill : {0, 1, 2}) {
      Request request;
      request.logits.assign(20000, 1.5F);  // all equal: the k lowest ids are kept
      if (vocab_fill == 1) std::fill(request.logits.begin() + 777, request.logits.end(), 2.5F);
      if (vocab_fill == 2) {  // −0 equals +0
        std::fill(request.logits.begin(), request.logits.end(), -0.0F);
        request.logits[9000] = 0.0F;
      }
      for (const int64_t k : {-1, 1, 2, 100, 19999}) {
        for (const float p : {1.0F, 0.3F}) {
          for (const float temperature : {0.0F, 1.0F}) {
            request.params = {.temperature = temperature, .top_p = p, .top_k = k};
            request.seed = static_cast<uint64_t>(requests.size()) * 77;
            requests.push_back(request);
          }
        }
      }
    }
    const Outcome out = run_on_device(requests, reference);
    Tally tally;
    for (size_t i = 0; i < requests.size(); ++i) check_token(requests[i], out.results[i].token, tally);
    EXPECT_EQ(tally.wrong, 0) << "reference " << reference;
  }
}

TEST(CudaSampling, EndsMasksAndExtremesAgreeWithTheCpu) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<Request> requests;
  std::mt19937_64 random(kSeed);
  for (const float temperature : {0.0F, 1.0F}) {
    Request base;
    base.logits = random_logits(random, 3000, 1);
    base.params.temperature = temperature;
    base.params.max_new_tokens = 10;
    base.params.min_new_tokens = 5;
    base.eos = {7, 2999};
    const std::vector<uint32_t> nothing((3000 + 31) / 32, 0);
    // The grammar allows only end tokens, and has precedence over min_new_tokens.
    Request only_ends = base;
    only_ends.mask = nothing;
    only_ends.mask[0] = 1U << 7;
    requests.push_back(only_ends);
    only_ends.params.logit_bias = {{7, -50.0F}, {8, 50.0F}};
    requests.push_back(only_ends);
    // If nothing is allowed, the token with the best original logit is chosen.
    Request none = base;
    none.mask = nothing;
    requests.push_back(none);
    none.params.min_new_tokens = 0;
    requests.push_back(none);
    // The best token is an end token that is not allowed yet, but is allowed later.
    Request early = base;
    early.logits[2999] = 30.0F;
    requests.push_back(early);
    early.generated = {1, 2, 3, 4, 5};
    requests.push_back(early);
    // Logits may be infinite or huge.
    Request huge = base;
    huge.logits[100] = kInf;
    requests.push_back(huge);
    huge.logits[100] = 3e38F;
    huge.logits[5] = -3e38F;
    requests.push_back(huge);
    Request minus = base;
    std::fill(minus.logits.begin(), minus.logits.end(), -kInf);
    requests.push_back(minus);
    minus.logits[1234] = -5.0F;
    requests.push_back(minus);
    for (const float t : {1e-20F, 1e-3F, 50.0F, 1e30F}) {
      Request extreme = base;
      if (temperature != 0.0F) extreme.params.temperature = t;
      requests.push_back(extreme);
      extreme.params.top_p = 0.5F;
      requests.push_back(extreme);
      extreme.params.top_p = 1.0F;
      extreme.params.top_k = 2999;
      requests.push_back(extreme);
    }
  }
  for (const bool reference : {false, true}) {
    const Outcome out = run_on_device(requests, reference);
    for (size_t i = 0; i < requests.size(); ++i) {
      Tally tally;
      check_token(requests[i], out.results[i].token, tally);
      EXPECT_EQ(tally.wrong, 0) << "case " << i << " reference " << reference;
    }
  }
}

TEST(CudaSampling, NanChangesNothing) {
  std::mt19937_64 random(kSeed);
  for (const bool reference : {false, true}) {
    std::vector<Request> requests;
    for (const int64_t at : {0, 1, 4095, 12345}) {
      Request request;
      request.logits = random_logits(random, 12346, 1);
      request.logits[at] = std::nanf("");
      request.params.frequency_penalty = 1.0F;
      request.generated = {3, 3};
      request.num_top = 4;
      requests.push_back(request);
    }
    const Outcome out = run_on_device(requests, reference);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(out.results[i].has_nan, 1);
      EXPECT_EQ(out.slots[i].num_generated, 2);
      EXPECT_EQ(out.last_token[i], -1) << "still poisoned";
      EXPECT_EQ(out.counts[i * 12346 + 3], 2);
    }
  }
}

TEST(CudaSampling, LogProbabilitiesAgreeWithTheCpu) {
  std::mt19937_64 random(kSeed);
  for (const bool reference : {false, true}) {
    for (const int64_t vocab : {3, 1000, 102400}) {
      std::vector<Request> requests;
      for (const int num_top : {0, 1, 5, 20, 128, -1}) {
        Request request = random_request(random, vocab);
        request.logits = random_logits(random, vocab, num_top + 1);
        request.num_top = num_top;
        requests.push_back(request);
      }
      const Outcome out = run_on_device(requests, reference);
      for (size_t i = 0; i < requests.size(); ++i) {
        const cuda::SampleResult& result = out.results[i];
        if (requests[i].num_top < 0) {
          EXPECT_EQ(result.num_top, 0);
          continue;
        }
        const TokenLogprob expected = token_logprob(requests[i].logits, result.token, requests[i].num_top);
        EXPECT_NEAR(result.logprob, expected.logprob, 1e-5 * (1.0 + std::abs(expected.logprob)));
        ASSERT_EQ(result.num_top, static_cast<int>(expected.top.size()));
        for (int j = 0; j < result.num_top; ++j) {
          const size_t at = i * cuda::kMaxTopLogprobs + j;
          EXPECT_EQ(out.top_ids[at], expected.top[j].first) << "place " << j << " of " << result.num_top;
          EXPECT_NEAR(out.top_logprobs[at], expected.top[j].second,
                      1e-5 * (1.0 + std::abs(expected.top[j].second)));
        }
      }
    }
  }
}

TEST(CudaSampling, ScoresOfGivenTokensAgreeWithTheCpu) {
  std::mt19937_64 random(kSeed);
  for (const bool reference : {false, true}) {
    for (const int64_t vocab : {5, 4097, 129280}) {
      constexpr int kRows = 6;
      std::vector<std::vector<float>> logits;
      std::vector<float> all;
      for (int i = 0; i < kRows; ++i) {
        logits.push_back(random_logits(random, vocab, i));
        if (i == 4) logits[i][vocab - 1] = std::nanf("");
        all.insert(all.end(), logits[i].begin(), logits[i].end());
      }
      const std::vector<int32_t> rows = {5, 0, 3, 4, 1, 2};
      const std::vector<int32_t> ids = random_tokens(random, vocab, kRows);
      const std::vector<int32_t> tops = {0, 1, 7, 3, 128, 20};
      const DeviceArray<float> device_logits(all);
      const DeviceArray<int32_t> device_rows(rows), device_ids(ids), device_tops(tops);
      const DeviceArray<cuda::SampleResult> results(kRows);
      const DeviceArray<int32_t> top_ids(kRows * cuda::kMaxTopLogprobs);
      const DeviceArray<float> top_logprobs(kRows * cuda::kMaxTopLogprobs);
      cuda::score_tokens({.logits = device_logits.data(),
                          .vocab = vocab,
                          .logit_rows = device_rows.data(),
                          .token_ids = device_ids.data(),
                          .top_num = device_tops.data(),
                          .num_rows = kRows,
                          .results = results.data(),
                          .top_ids = top_ids.data(),
                          .top_logprobs = top_logprobs.data()},
                         {.stream = testing::test_stream().handle(), .reference = reference});
      const auto found = results.download();
      const auto found_ids = top_ids.download();
      const auto found_logprobs = top_logprobs.download();
      for (int i = 0; i < kRows; ++i) {
        EXPECT_EQ(found[i].token, ids[i]);
        EXPECT_EQ(found[i].has_nan, rows[i] == 4 ? 1 : 0);
        if (rows[i] == 4) {
          EXPECT_TRUE(std::isnan(found[i].logprob));
          continue;
        }
        const TokenLogprob expected = token_logprob(logits[rows[i]], ids[i], tops[i]);
        EXPECT_NEAR(found[i].logprob, expected.logprob, 1e-5 * (1.0 + std::abs(expected.logprob)));
        ASSERT_EQ(found[i].num_top, static_cast<int>(expected.top.size()));
        for (int j = 0; j < found[i].num_top; ++j) {
          EXPECT_EQ(found_ids[i * cuda::kMaxTopLogprobs + j], expected.top[j].first);
          EXPECT_NEAR(found_logprobs[i * cuda::kMaxTopLogprobs + j], expected.top[j].second,
                      1e-5 * (1.0 + std::abs(expected.top[j].second)));
        }
      }
    }
  }
}

TEST(CudaSampling, EqualRequestsGiveEqualBits) {
  std::mt19937_64 random(kSeed);
  std::vector<Request> requests;
  for (int i = 0; i < 64; ++i) {
    requests.push_back(random_request(random, 50000));
    requests.back().num_top = 20;
  }
  const Outcome one = run_on_device(requests, false);
  const Outcome two = run_on_device(requests, false, 2);  // other slots
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(std::memcmp(&one.results[i], &two.results[i], sizeof(cuda::SampleResult)), 0);
  }
  EXPECT_EQ(one.top_ids, two.top_ids);
  EXPECT_EQ(
      std::memcmp(one.top_logprobs.data(), two.top_logprobs.data(), one.top_logprobs.size() * sizeof(float)),
      0);
}

TEST(CudaSampling, CountsSaturate) {
  const std::vector<int32_t> prompt = {2};
  const std::vector<int32_t> generated(40000, 2);
  const DeviceArray<int32_t> device_prompt(prompt), device_generated(generated);
  const DeviceArray<uint16_t> counts(2 * 5);
  cuda::start_counts(counts.data(), 5, 1, device_prompt.data(), 1, device_generated.data(), 40000,
                     {.stream = testing::test_stream().handle()});
  const auto found = counts.download();
  EXPECT_EQ(found[4], 0xffff) << "slot 0 is not touched";
  EXPECT_EQ(found[5 + 2], 0xffff);
  EXPECT_EQ(found[5 + 1], 0);
}

// Runs every path once on small rows, for compute-sanitizer.
TEST(CudaSampling, SmallRowsForSanitizersAgreeWithTheCpu) {
  for (const bool reference : {false, true}) {
    std::mt19937_64 random(kSeed);
    for (const int64_t vocab : {37, 2500}) {
      std::vector<Request> requests;
      for (int i = 0; i < 12; ++i) {
        requests.push_back(random_request(random, vocab));
        requests.back().num_top = i % 3 == 0 ? 5 : -1;
      }
      const Outcome out = run_on_device(requests, reference);
      Tally tally;
      for (size_t i = 0; i < requests.size(); ++i) check_token(requests[i], out.results[i].token, tally);
      EXPECT_EQ(tally.wrong, 0);
    }
  }
}

}  // namespace
}  // namespace hadal::cuda_test
