// Compares the choice of drafts on the device with engine/sampler.cpp.
#include "tests/cuda/sampling/sampling_case.h"

namespace hadal::cuda_test {
namespace {

constexpr uint64_t kDraftsSeed = 20261130;
// Sums of logit and noise are computed in single precision, and shares are sums of rounded weights.
constexpr double kShareSlack = 2e-4;

std::vector<DraftChoice> cpu_drafts(const Request& request, int64_t count) {
  SamplerScratch scratch;
  return choose_drafts(request.logits, request.params, history_of(request), request.eos, request.seed,
                       request.position, count, scratch);
}

// Returns what differs, or nothing. A draft may change places with one whose share is as large.
std::string difference(const Request& request, const cuda::DraftGuess* got, int count) {
  const auto vocab = static_cast<int64_t>(request.logits.size());
  const std::vector<DraftChoice> expected = cpu_drafts(request, count);
  const std::vector<DraftChoice> all = cpu_drafts(request, vocab);
  for (int i = 0; i < count; ++i) {
    const bool there = i < static_cast<int>(expected.size());
    if ((got[i].token >= 0) != there) {
      // A share may be negligible on one side only.
      const double share = there ? expected[i].log_share : got[i].log_share;
      if (share > -kNegligibleScore + kShareSlack) return "number of drafts, at " + std::to_string(i);
      return {};
    }
    if (!there) return {};
    if (!(std::fabs(got[i].log_share - expected[i].log_share) <= kShareSlack))
      return fmt::format("draft {}: share {}, expected {}", i, got[i].log_share, expected[i].log_share);
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.token == got[i].token; });
    if (same == all.end() || !(std::fabs(got[i].log_share - same->log_share) <= kShareSlack))
      return fmt::format("draft {}: token {}, expected {}", i, got[i].token, expected[i].token);
    for (int j = 0; j < i; ++j) {
      if (got[j].token == got[i].token) return fmt::format("drafts {} and {} are equal", j, i);
    }
  }
  return {};
}

void compare_drafts(int64_t vocab, int rows, int count, bool reference) {
  std::mt19937_64 random(kDraftsSeed + vocab + count);
  std::vector<Request> requests;
  for (int i = 0; i < rows; ++i) {
    requests.push_back(random_request(random, vocab));
    requests.back().mask.clear();
  }
  const Outcome out = run_on_device(requests, reference, random(), count);
  int wrong = 0;
  for (int i = 0; i < rows; ++i) {
    const std::string what = difference(requests[i], out.guesses.data() + int64_t{i} * count, count);
    if (!what.empty() && ++wrong > rows / 40) ADD_FAILURE() << what << ": " << describe(requests[i]);
    EXPECT_EQ(out.slots[i].num_generated, static_cast<int64_t>(requests[i].generated.size()))
        << "drafts change no slot";
  }
  fmt::print("vocab {}, {} drafts: {} of {} rows at a border\n", vocab, count, wrong, rows);
}

TEST(CudaDrafts, AreThoseOfTheCpu) {
  for (const int64_t vocab : {1, 2, 33, 130, 1000, 4096, 16385}) {
    for (const int count : {1, 4, 64}) compare_drafts(vocab, 40, count, false);
  }
}

TEST(CudaDrafts, AreThoseOfTheCpuAtFullVocabularies) {
  for (const int64_t vocab : {102400, 129280, 131072, 100003}) compare_drafts(vocab, 24, 8, false);
}

TEST(CudaDrafts, PlainKernelAgreesWithTheCpu) {
  for (const int64_t vocab : {1, 33, 1000}) compare_drafts(vocab, 24, 5, true);
}

TEST(CudaDrafts, OfEqualLogitsTheLowerIdsComeFirst) {
  Request request;
  request.logits.assign(20000, 1.0F);
  for (const int id : {7, 900, 19999}) request.logits[id] = 3.0F;
  request.params.temperature = 0.0F;
  for (const bool reference : {false, true}) {
    const Outcome out = run_on_device({request}, reference, 1, 5);
    const int32_t expected[] = {7, 900, 19999, 0, 1};
    for (int i = 0; i < 5; ++i) EXPECT_EQ(out.guesses[i].token, expected[i]) << i;
  }
}

TEST(CudaDrafts, RowsWithNanOrInfinityHaveNone) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Request request;
    request.logits.assign(5000, 0.5F);
    request.logits[4321] = bad;
    for (const bool reference : {false, true}) {
      const Outcome out = run_on_device({request}, reference, 1, 4);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(out.guesses[i].token, -1) << bad << ", draft " << i;
    }
  }
}

// All tokens but one are too improbable to be drafts.
TEST(CudaDrafts, NegligibleTokensAreNone) {
  Request request;
  request.logits.assign(3000, -40.0F);
  request.logits[123] = 0.0F;
  request.params.temperature = 0.0F;
  for (const bool reference : {false, true}) {
    const Outcome out = run_on_device({request}, reference, 1, 3);
    EXPECT_EQ(out.guesses[0].token, 123);
    EXPECT_EQ(out.guesses[0].log_share, 0.0F);
    EXPECT_EQ(out.guesses[1].token, -1);
  }
}

}  // namespace
}  // namespace hadal::cuda_test
