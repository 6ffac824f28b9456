// Makes a batch of random sampling requests, on the host in the form of the CPU's sampler and on the device
// in that of the op.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/gumbel.h"
#include "engine/sampler.h"
#include "kernels/cuda/sampling/sampling.h"
#include "tests/cuda/device_array.h"
#include "tests/engine/sampling_oracle.h"

namespace hadal::cuda_test {

using testing::DeviceArray;

struct Request : hadal::testing::SamplingCase {
  uint64_t seed = 0;
  int64_t position = 0;
  int num_top = -1;  // −1: no log-probabilities
};

inline std::vector<float> random_logits(std::mt19937_64& random, int64_t vocab, int kind) {
  std::vector<float> logits(vocab);
  std::normal_distribution<float> normal;
  const float sigma = std::array{0.5F, 2.0F, 6.0F, 3.0F, 3.0F, 20.0F}[kind % 6];
  for (float& x : logits) x = sigma * normal(random);
  if (kind % 6 == 3) {  // many ties
    for (float& x : logits) x = std::round(x * 4.0F) / 4.0F;
  } else if (kind % 6 == 4) {  // nearly all mass on few tokens
    for (int i = 0; i < 5; ++i) logits[random() % vocab] = 18.0F + normal(random);
  }
  return logits;
}

inline std::vector<int32_t> random_tokens(std::mt19937_64& random, int64_t vocab, int count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

inline Request random_request(std::mt19937_64& random, int64_t vocab) {
  auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
  };
  auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  Request request;
  SamplingParams& params = request.params;
  params.max_new_tokens = 1000;
  request.logits = random_logits(random, vocab, static_cast<int>(random() % 6));
  request.seed = random();
  request.position = static_cast<int64_t>(random() % (uint64_t{1} << (chance(10) ? 40 : 15)));
  request.prompt = random_tokens(random, vocab, 1 + static_cast<int>(random() % 200));
  request.generated = random_tokens(random, vocab, static_cast<int>(random() % 100));
  params.temperature = chance(15) ? 0.0F : uniform(0.1F, 2.0F);
  if (chance(30)) params.top_k = 1 + static_cast<int64_t>(random() % (chance(50) ? 60 : vocab + 10));
  if (chance(35)) params.top_p = uniform(0.02F, 0.999F);
  if (chance(20)) params.min_p = uniform(0.0F, 0.5F);
  if (chance(20)) params.repetition_penalty = uniform(0.5F, 2.0F);
  if (chance(20)) params.frequency_penalty = uniform(-2.0F, 2.0F);
  if (chance(20)) params.presence_penalty = uniform(-2.0F, 2.0F);
  if (chance(20)) {
    const auto count = static_cast<int>(1 + random() % (chance(20) ? 1024 : 12));
    for (int i = 0; i < count; ++i) {
      params.logit_bias.emplace_back(static_cast<int32_t>(random() % vocab), uniform(-20.0F, 20.0F));
    }
    if (chance(30)) params.logit_bias.back().first = params.logit_bias.front().first;
  }
  if (chance(20)) {
    request.mask.assign((vocab + 31) / 32, 0);
    const bool dense = chance(50);
    for (uint32_t& word : request.mask)
      word = static_cast<uint32_t>(random()) & (dense ? ~0U : random() % 8 == 0 ? ~0U : 0U);
    request.mask[0] |= 1;  // something is allowed
  }
  if (chance(25)) {
    params.min_new_tokens = static_cast<int64_t>(random() % 120);
    request.eos = random_tokens(random, vocab, 1 + static_cast<int>(random() % 3));
    params.stop_token_ids = random_tokens(random, vocab, static_cast<int>(random() % 13));
  }
  return request;
}

inline std::string describe(const Request& request) {
  const SamplingParams& p = request.params;
  return fmt::format(
      "vocab {} seed {} position {} T {} top_p {} top_k {} min_p {} penalties {} {} {} bias {} mask {} "
      "min_new {} "
      "generated {}",
      request.logits.size(), request.seed, request.position, p.temperature, p.top_p, p.top_k, p.min_p,
      p.repetition_penalty, p.frequency_penalty, p.presence_penalty, p.logit_bias.size(),
      !request.mask.empty(), p.min_new_tokens, request.generated.size());
}

// Returns a request's values in the form that the device stores.
inline cuda::SlotSampling slot_of(const Request& request) {
  const SamplingParams& params = request.params;
  cuda::SlotSampling slot;
  slot.temperature = params.temperature;
  slot.top_p = params.top_p;
  slot.min_p = params.min_p;
  slot.top_k = static_cast<int32_t>(params.top_k);
  slot.frequency_penalty = params.frequency_penalty;
  slot.presence_penalty = params.presence_penalty;
  slot.repetition_penalty = params.repetition_penalty;
  slot.seed = request.seed;
  slot.min_new_tokens = params.min_new_tokens;
  slot.num_generated = static_cast<int64_t>(request.generated.size());
  for (const int32_t token : request.eos) slot.ends[slot.num_ends++] = token;
  for (const int32_t token : params.stop_token_ids) slot.ends[slot.num_ends++] = token;
  slot.num_bias = static_cast<int32_t>(params.logit_bias.size());
  slot.uses_counts = uses_token_counts(params) ? 1 : 0;
  slot.num_top_logprobs = request.num_top;
  return slot;
}

struct Outcome {
  std::vector<cuda::SampleResult> results;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
  std::vector<cuda::SlotSampling> slots;
  std::vector<uint16_t> counts;
  std::vector<int32_t> last_token;
  std::vector<cuda::DraftGuess> guesses;  // [requests, num_drafts]
};

// Runs the op on requests of one vocabulary or, if num_drafts is above 0, choose_drafts. Each request has its
// own slot, in shuffled order; every third row of the batch is padding, whose result must stay poisoned.
inline Outcome run_on_device(const std::vector<Request>& requests, bool reference, uint64_t shuffle_seed = 1,
                             int num_drafts = 0) {
  const auto vocab = static_cast<int64_t>(requests.front().logits.size());
  const auto num = static_cast<int>(requests.size());
  const int num_slots = num + 2;
  std::vector<int32_t> slot_ids(num_slots);
  for (int i = 0; i < num_slots; ++i) slot_ids[i] = i;
  std::shuffle(slot_ids.begin(), slot_ids.end(), std::mt19937_64(shuffle_seed));

  std::vector<float> logits(static_cast<size_t>(num) * vocab);
  std::vector<cuda::SlotSampling> slots(num_slots);
  std::vector<int32_t> bias_ids(static_cast<size_t>(num_slots) * cuda::kMaxBias, -1);
  std::vector<float> bias_values(bias_ids.size(), std::nanf(""));
  const int64_t words = (vocab + 31) / 32;
  std::vector<uint32_t> masks;
  std::vector<cuda::SampleRow> rows;
  DeviceArray<uint16_t> counts(static_cast<size_t>(num_slots) * vocab);
  const cuda::Launch launch{.stream = testing::test_stream().handle(), .reference = reference};

  for (int i = 0; i < num; ++i) {
    const Request& request = requests[i];
    const SamplingParams& params = request.params;
    const int32_t slot_idx = slot_ids[i];
    std::copy(request.logits.begin(), request.logits.end(), logits.begin() + (num - 1 - i) * vocab);
    cuda::SlotSampling& slot = slots[slot_idx];
    slot = slot_of(request);
    int num_bias = 0;
    for (const auto& [token, value] : params.logit_bias) {
      bias_ids[static_cast<size_t>(slot_idx) * cuda::kMaxBias + num_bias] = token;
      bias_values[static_cast<size_t>(slot_idx) * cuda::kMaxBias + num_bias++] = value;
    }
    if (slot.uses_counts != 0) {
      const DeviceArray<int32_t> prompt(request.prompt);
      const DeviceArray<int32_t> generated(request.generated);
      cuda::start_counts(counts.data(), vocab, slot_idx, prompt.data(), static_cast<int64_t>(prompt.size()),
                         generated.data(), static_cast<int64_t>(generated.size()), launch);
      testing::test_stream().synchronize();
    }
    cuda::SampleRow row{.slot = slot_idx, .logit_row = num - 1 - i, .position = request.position};
    if (!request.mask.empty()) {
      row.mask_row = static_cast<int32_t>(masks.size() / words);
      masks.insert(masks.end(), request.mask.begin(), request.mask.end());
    }
    rows.push_back(row);
    if (i % 2 == 1) rows.push_back({});
  }

  const DeviceArray<float> device_logits(logits);
  const DeviceArray<cuda::SlotSampling> device_slots(slots);
  const DeviceArray<int32_t> device_bias_ids(bias_ids);
  const DeviceArray<float> device_bias_values(bias_values);
  const DeviceArray<uint32_t> device_masks(masks);
  const DeviceArray<cuda::SampleRow> device_rows(rows);
  const DeviceArray<cuda::SampleResult> results(rows.size());
  const DeviceArray<int32_t> last_token(num_slots);
  const DeviceArray<int32_t> top_ids(rows.size() * cuda::kMaxTopLogprobs);
  const DeviceArray<float> top_logprobs(rows.size() * cuda::kMaxTopLogprobs);
  const auto num_rows = static_cast<int>(rows.size());
  const DeviceArray<cuda::DraftGuess> guesses(rows.size() * num_drafts);
  const cuda::SampleParams params{.logits = device_logits.data(),
                                  .vocab = vocab,
                                  .rows = device_rows.data(),
                                  .num_rows = num_rows,
                                  .slots = device_slots.data(),
                                  .bias_ids = device_bias_ids.data(),
                                  .bias_values = device_bias_values.data(),
                                  .counts = counts.data(),
                                  .masks = device_masks.data(),
                                  .last_token = last_token.data(),
                                  .results = results.data(),
                                  .top_ids = top_ids.data(),
                                  .top_logprobs = top_logprobs.data()};
  if (num_drafts > 0) {
    cuda::choose_drafts(params, num_drafts, guesses.data(), launch);
  } else {
    cuda::sample(params, launch);
  }
  testing::test_stream().synchronize();
  EXPECT_EQ(std::memcmp(device_logits.download().data(), logits.data(), logits.size() * sizeof(float)), 0)
      << "logits were changed";

  // Restores the order of the requests.
  Outcome out;
  const auto all_results = results.download();
  const auto all_ids = top_ids.download();
  const auto all_logprobs = top_logprobs.download();
  const auto all_slots = device_slots.download();
  const auto all_counts = counts.download();
  const auto all_last = last_token.download();
  const auto all_guesses = guesses.download();
  int i = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto row_guesses = all_guesses.begin() + static_cast<std::ptrdiff_t>(r) * num_drafts;
    if (rows[r].slot < 0) {
      EXPECT_EQ(all_results[r].num_top, -1) << "padding row " << r << " was written";
      for (int j = 0; j < num_drafts; ++j)
        EXPECT_TRUE(std::isnan(row_guesses[j].log_share)) << "padding row " << r << " was written";
      continue;
    }
    out.guesses.insert(out.guesses.end(), row_guesses, row_guesses + num_drafts);
    out.results.push_back(all_results[r]);
    const auto first = static_cast<std::ptrdiff_t>(r) * cuda::kMaxTopLogprobs;
    out.top_ids.insert(out.top_ids.end(), all_ids.begin() + first,
                       all_ids.begin() + first + cuda::kMaxTopLogprobs);
    out.top_logprobs.insert(out.top_logprobs.end(), all_logprobs.begin() + first,
                            all_logprobs.begin() + first + cuda::kMaxTopLogprobs);
    const int32_t slot = slot_ids[i++];
    out.slots.push_back(all_slots[slot]);
    out.last_token.push_back(all_last[slot]);
    out.counts.insert(out.counts.end(), all_counts.begin() + slot * vocab,
                      all_counts.begin() + (slot + 1) * vocab);
  }
  return out;
}

inline int32_t cpu_token(const Request& request) {
  SamplerScratch scratch;
  return sample_token(request.logits, request.params, history_of(request), request.eos, request.mask,
                      request.seed, request.position, scratch);
}

// Returns the tokens that may be drawn if a token's sum of logit and noise, p and min_p each differ by at
// most `slack`, computed in double from the definition.
inline std::set<int32_t> acceptable_tokens(const Request& request, double slack) {
  const std::vector<float> work = hadal::testing::changed_logits(request);
  std::set<int32_t> tokens;
  for (const double shift : {-slack, 0.0, slack}) {
    const std::vector<int32_t> kept = hadal::testing::kept_tokens(request.params, work, shift);
    const double best = work[kept.front()];
    std::vector<double> sums;
    for (const int32_t token : kept) {
      const uint32_t bits =
          noise_bits(request.seed, static_cast<uint64_t>(request.position), static_cast<uint32_t>(token));
      sums.push_back((work[token] - best) / static_cast<double>(request.params.temperature) -
                     std::log(static_cast<double>(exponential_noise(bits))));
    }
    const double largest = *std::max_element(sums.begin(), sums.end());
    for (size_t i = 0; i < kept.size(); ++i) {
      if (sums[i] >= largest - slack) tokens.insert(kept[i]);
    }
  }
  return tokens;
}

}  // namespace hadal::cuda_test
