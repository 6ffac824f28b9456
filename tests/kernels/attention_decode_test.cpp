#include <limits>

#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct DecodeCase {
  int num_heads = 0;
  std::vector<int> kv_len;  // keys of each token; token i belongs to sequence i
  PagedCache cache;
  std::vector<float> q;
  std::vector<int32_t> seq_idx;

  DecodeCase(int heads, std::vector<int> lengths, KvLayout layout, uint64_t seed)
      : DecodeCase(heads, std::move(lengths), layout, Random(seed)) {}

  // Runs tokens [begin, begin + count) and returns their outputs.
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads, size_t begin, size_t count) {
    std::vector<float> out(count * num_heads * kKvLatentDim, kNan);
    const MlaDecodeParams params = {.q = q.data() + begin * num_heads * kKvRowDim,
                                    .out = out.data(),
                                    .num_tokens = static_cast<int64_t>(count),
                                    .num_heads = num_heads,
                                    .kv = cache.view(),
                                    .seq_idx = seq_idx.data() + begin,
                                    .kv_len = kv_len.data() + begin,
                                    .softmax_scale = 0.11F};
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
    return out;
  }
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads) {
    return run(kernel, num_threads, 0, kv_len.size());
  }

 private:
  DecodeCase(int heads, std::vector<int> lengths, KvLayout layout, Random random)
      : num_heads(heads),
        kv_len(std::move(lengths)),
        cache(kv_len, layout, random),
        q(random.normals(static_cast<int64_t>(kv_len.size()) * heads * kKvRowDim, 0.8F)) {
    for (size_t i = 0; i < kv_len.size(); ++i) seq_idx.push_back(static_cast<int32_t>(i));
  }
};

const std::vector<int> kRagged = {0, 1, 63, 64, 65, 127, 128, 129, 513, 1500, 2, 0, 300};

TEST(MlaDecode, MatchesReferenceOnRaggedBatch) {
  const uint64_t seed = 20240501;
  SCOPED_TRACE(seed);
  for (int heads : {1, 2, 8, 16, 128}) {
    SCOPED_TRACE(heads);
    DecodeCase c(heads, kRagged, {KvFormat::kBF16, KvScales::kPerToken}, seed + heads);
    const auto expected = c.run(reference::mla_decode, 2);
    for_each_target(
        [&] { EXPECT_LE(worst_row_error(c.run(simd::mla_decode, 2), expected, kKvLatentDim), 1e-5); });
  }
}

TEST(MlaDecode, ReadsEveryCacheFormat) {
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  for (const KvLayout& layout : all_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout.format));
    DecodeCase c(3, {1, 64, 65, 200}, layout, seed);
    const auto expected = c.run(reference::mla_decode, 1);
    for_each_target(
        [&] { EXPECT_LE(worst_row_error(c.run(simd::mla_decode, 1), expected, kKvLatentDim), 1e-5); });
  }
}

TEST(MlaDecode, BitsDoNotDependOnThreadsOrBatch) {
  const uint64_t seed = 99;
  SCOPED_TRACE(seed);
  DecodeCase c(16, kRagged, {KvFormat::kBF16, KvScales::kPerToken}, seed);
  for_each_target([&] {
    const auto together = c.run(simd::mla_decode, 1);
    EXPECT_TRUE(same_bits(together, c.run(simd::mla_decode, 2)));
    EXPECT_TRUE(same_bits(together, c.run(simd::mla_decode, 3)));
    std::vector<float> alone;
    for (size_t i = 0; i < c.kv_len.size(); ++i) {
      const auto one = c.run(simd::mla_decode, 2, i, 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(same_bits(together, alone));
  });
}

// Verification processes several tokens of one sequence, each of which sees one more key.
TEST(MlaDecode, TokensOfOneSequenceSeeOnlyEarlierKeys) {
  const uint64_t seed = 5;
  SCOPED_TRACE(seed);
  DecodeCase c(8, {130, 130, 130}, {KvFormat::kF32, KvScales::kPerToken}, seed);
  c.seq_idx = {1, 1, 1};
  c.kv_len = {128, 129, 130};
  EXPECT_LE(worst_row_error(c.run(simd::mla_decode, 2), c.run(reference::mla_decode, 2), kKvLatentDim), 1e-5);
}

// There are more partials than one window of scratch can store: 128 heads × 20,000 keys.
TEST(MlaDecode, LongContextsAreMergedInWindows) {
  const uint64_t seed = 11;
  SCOPED_TRACE(seed);
  DecodeCase c(128, {100, 20000, 70}, {KvFormat::kFp8E5M2, KvScales::kPerToken}, seed);
  EXPECT_LE(worst_row_error(c.run(simd::mla_decode, 2), c.run(reference::mla_decode, 2), kKvLatentDim), 1e-5);
}

TEST(MlaDecode, LargeScoresNeitherOverflowNorVanish) {
  const uint64_t seed = 13;
  SCOPED_TRACE(seed);
  DecodeCase c(4, {600, 70}, {KvFormat::kF32, KvScales::kPerToken}, seed);
  for (float& v : c.q) v *= 40.0F;
  // Scores of several hundred: float32 products have errors of about 1e-4 in the exponent.
  EXPECT_LE(worst_row_error(c.run(simd::mla_decode, 2), c.run(reference::mla_decode, 2), kKvLatentDim), 1e-3);
}

}  // namespace
}  // namespace hadal::cpu
