// Compares the distribution of draws on the device with the exact one.
#include "tests/cuda/sampling/sampling_case.h"

namespace hadal::cuda_test {
namespace {

using hadal::testing::SamplingCase;

constexpr uint64_t kSeed = 20261121;

// Makes a million draws of each case, in launches whose rows share one row of logits but not a slot.
TEST(CudaSampling, DrawsFollowTheExactDistributionWithEveryTruncationAndPenalty) {
  constexpr int64_t kDraws = 1'000'000;
  constexpr int kRows = 5000;
  for (const SamplingCase& row : hadal::testing::sampling_cases()) {
    const auto vocab = static_cast<int64_t>(row.logits.size());
    const std::vector<double> exact = exact_probabilities(row);
    const DeviceArray<float> logits(row.logits);
    Request request;
    static_cast<SamplingCase&>(request) = row;
    request.seed = kSeed;
    const cuda::SlotSampling slot = slot_of(request);
    std::vector<int32_t> bias_ids(static_cast<size_t>(kRows) * cuda::kMaxBias);
    std::vector<float> bias_values(bias_ids.size());
    std::vector<uint16_t> counts(static_cast<size_t>(kRows) * vocab);
    for (int i = 0; i < kRows; ++i) {
      for (size_t j = 0; j < row.params.logit_bias.size(); ++j) {
        const auto& [token, value] = row.params.logit_bias[j];
        bias_ids[static_cast<size_t>(i) * cuda::kMaxBias + j] = token;
        bias_values[static_cast<size_t>(i) * cuda::kMaxBias + j] = value;
      }
      for (const int32_t token : row.prompt) counts[i * vocab + token] = 0x8000;
      for (const int32_t token : row.generated) ++counts[i * vocab + token];
    }
    const DeviceArray<int32_t> device_bias_ids(bias_ids);
    const DeviceArray<float> device_bias_values(bias_values);
    const DeviceArray<uint32_t> mask(row.mask.empty() ? std::vector<uint32_t>{~0U} : row.mask);
    const DeviceArray<int32_t> last_token(kRows);
    const DeviceArray<cuda::SampleResult> results(kRows);
    for (const bool reference : {false, true}) {
      std::vector<int64_t> drawn(vocab);
      for (int64_t first = 0; first < kDraws; first += kRows) {
        std::vector<cuda::SampleRow> rows(kRows);
        for (int i = 0; i < kRows; ++i) {
          rows[i] = {.slot = i, .position = first + i, .mask_row = row.mask.empty() ? -1 : 0};
        }
        // A draw changes its slot and its counts, so each launch has new ones.
        const DeviceArray<cuda::SampleRow> device_rows(rows);
        const DeviceArray<cuda::SlotSampling> slots(std::vector<cuda::SlotSampling>(kRows, slot));
        const DeviceArray<uint16_t> device_counts(counts);
        cuda::sample({.logits = logits.data(),
                      .vocab = vocab,
                      .rows = device_rows.data(),
                      .num_rows = kRows,
                      .slots = slots.data(),
                      .bias_ids = device_bias_ids.data(),
                      .bias_values = device_bias_values.data(),
                      .counts = device_counts.data(),
                      .masks = mask.data(),
                      .last_token = last_token.data(),
                      .results = results.data()},
                     {.stream = testing::test_stream().handle(), .reference = reference});
        testing::test_stream().synchronize();
        for (const cuda::SampleResult& result : results.download()) ++drawn.at(result.token);
      }
      EXPECT_GT(hadal::testing::chi_squared_p(drawn, exact), 1e-4) << row.name << " reference " << reference;
    }
  }
}

}  // namespace
}  // namespace hadal::cuda_test
