#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

struct DecodeCase {
  int num_heads = 0;
  std::vector<int> kv_len;  // keys of each token; token i belongs to sequence i
  PagedCache cache;
  std::vector<float> q;
  std::vector<int32_t> seq_idx;
  // This is the selection; it is empty if there is none.
  std::vector<int32_t> counts;
  std::vector<int32_t> selected;  // [tokens, selected_stride]
  int64_t selected_stride = 0;

  DecodeCase(int heads, std::vector<int> lengths, KvLayout layout, uint64_t seed)
      : DecodeCase(heads, std::move(lengths), layout, Random(seed)) {}

  // Runs tokens [begin, begin + count) and returns their outputs.
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads, size_t begin, size_t count) {
    std::vector<float> out(count * num_heads * kKvLatentDim, kNan);
    MlaDecodeParams params = {.q = q.data() + begin * num_heads * kKvRowDim,
                              .out = out.data(),
                              .num_tokens = static_cast<int64_t>(count),
                              .num_heads = num_heads,
                              .kv = cache.view(),
                              .seq_idx = seq_idx.data() + begin,
                              .kv_len = kv_len.data() + begin,
                              .softmax_scale = 0.11F};
    if (!counts.empty()) {  // a selection replaces the page table and kv_len
      params.seq_idx = nullptr;
      params.kv_len = nullptr;
      params.kv.page_table = nullptr;
      params.selected = selected.data() + begin * selected_stride;
      params.selected_stride = selected_stride;
      params.counts = counts.data() + begin;
    }
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
    return out;
  }
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads) {
    return run(kernel, num_threads, 0, kv_len.size());
  }

  // Token i selects the positions of positions[i], which ascend.
  void select(const std::vector<std::vector<int>>& positions) {
    selected_stride = 3;
    for (const auto& row : positions) {
      selected_stride = std::max(selected_stride, static_cast<int64_t>(row.size()) + 3);
      counts.push_back(static_cast<int32_t>(row.size()));
    }
    selected.assign(positions.size() * selected_stride, -1);
    for (size_t i = 0; i < positions.size(); ++i) {
      for (size_t j = 0; j < positions[i].size(); ++j) {
        const auto* record = reference::record_address(cache.view(), seq_idx[i], positions[i][j]);
        selected[i * selected_stride + j] =
            static_cast<int32_t>((record - cache.pool.data()) / cache.layout.row_bytes());
      }
    }
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

// Verification processes several tokens of one sequence, each of which attends to one more key.
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
  // With scores of several hundred, float32 products have errors of about 1e-4 in the exponent.
  EXPECT_LE(worst_row_error(c.run(simd::mla_decode, 2), c.run(reference::mla_decode, 2), kKvLatentDim), 1e-3);
}

// Returns `count` of `length` positions at random, in ascending order.
std::vector<int> some_positions(int count, int length, Random& random) {
  std::vector<int> positions(length);
  std::iota(positions.begin(), positions.end(), 0);
  random.shuffle(positions);
  positions.resize(count);
  std::sort(positions.begin(), positions.end());
  return positions;
}

TEST(MlaDecodeSelected, SelectingAllKeysGivesTheBitsOfNoSelection) {
  const uint64_t seed = 14;
  SCOPED_TRACE(seed);
  for (const KvLayout& layout : all_layouts()) {
    for (int heads : {1, 6, 16}) {
      if (heads != 6 && layout.format != KvFormat::kBF16) continue;
      SCOPED_TRACE(static_cast<int>(layout.format) * 100 + heads);
      DecodeCase c(heads, {0, 1, 64, 65, 128, 200, 129}, layout, seed);
      DecodeCase all = c;
      Random random(seed);
      std::vector<std::vector<int>> positions;
      for (int length : c.kv_len) positions.push_back(some_positions(length, length, random));
      all.select(positions);
      EXPECT_TRUE(same_bits(all.run(reference::mla_decode, 2), c.run(reference::mla_decode, 2)));
      for_each_target(
          [&] { EXPECT_TRUE(same_bits(all.run(simd::mla_decode, 2), c.run(simd::mla_decode, 2))); });
    }
  }
}

// A token's result equals that over a cache which has only the selected records.
TEST(MlaDecodeSelected, HasTheBitsOfACacheOfTheSelectedRecords) {
  const uint64_t seed = 15;
  SCOPED_TRACE(seed);
  const std::vector<int> lengths = {100, 10, 70, 64, 300, 1, 200, 150};
  const std::vector<int> counts = {0, 1, 63, 64, 65, 1, 128, 129};
  for (const KvLayout& layout : all_layouts()) {
    for (int heads : {1, 2, 5, 16, 77, 128}) {
      if (heads != 5 && layout.format != KvFormat::kBF16) continue;
      SCOPED_TRACE(static_cast<int>(layout.format) * 1000 + heads);
      Random random(seed + heads);
      DecodeCase c(heads, lengths, layout, seed);
      DecodeCase compact(heads, counts, layout, seed);
      compact.q = c.q;
      std::vector<std::vector<int>> positions;
      for (size_t i = 0; i < lengths.size(); ++i) {
        positions.push_back(some_positions(counts[i], lengths[i], random));
        for (int j = 0; j < counts[i]; ++j) {
          const auto* from = reference::record_address(c.cache.view(), c.seq_idx[i], positions[i][j]);
          std::copy_n(from, layout.row_bytes(),
                      const_cast<std::byte*>(reference::record_address(compact.cache.view(), i, j)));
        }
      }
      c.select(positions);
      const auto expected = compact.run(reference::mla_decode, 2);
      EXPECT_TRUE(same_bits(c.run(reference::mla_decode, 2), expected));
      for_each_target([&] {
        const auto out = c.run(simd::mla_decode, 2);
        EXPECT_TRUE(same_bits(out, compact.run(simd::mla_decode, 2)));
        EXPECT_LE(worst_row_error(out, expected, kKvLatentDim), 1e-5);
      });
    }
  }
}

TEST(MlaDecodeSelected, BitsDoNotDependOnThreadsOrBatch) {
  const uint64_t seed = 16;
  SCOPED_TRACE(seed);
  Random random(seed);
  DecodeCase c(16, {500, 90, 200, 64}, {KvFormat::kFp8E4M3, KvScales::kPer128}, seed);
  std::vector<std::vector<int>> positions;
  for (int length : c.kv_len) positions.push_back(some_positions(length * 2 / 3, length, random));
  c.select(positions);
  for_each_target([&] {
    const auto together = c.run(simd::mla_decode, 1);
    EXPECT_TRUE(same_bits(together, c.run(simd::mla_decode, 2)));
    EXPECT_TRUE(same_bits(together, c.run(simd::mla_decode, 5)));
    std::vector<float> alone;
    for (size_t i = 0; i < c.kv_len.size(); ++i) {
      const auto one = c.run(simd::mla_decode, 2, i, 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(same_bits(together, alone));
  });
}

}  // namespace
}  // namespace hadal::cpu
