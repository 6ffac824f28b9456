// MLA decode on the device: the plain kernel against the CPU's double-precision reference, the tuned kernels
// against both, over heads, verify lengths, ragged lengths and cache formats.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/cpu/cpu_kernels.h"
#include "tests/cuda/mla/decode_fixture.h"

namespace hadal::testing {
namespace {

constexpr uint64_t kSeed = 20261121;
constexpr double kTolerance = 1e-2;

const std::vector<std::pair<std::string, KvLayout>> kLayouts = {
    {"Bf16", {KvFormat::kBF16, KvScales::kPerToken}},
    {"E4m3PerToken", {KvFormat::kFp8E4M3, KvScales::kPerToken}},
    {"E4m3Per128", {KvFormat::kFp8E4M3, KvScales::kPer128}},
    {"E5m2", {KvFormat::kFp8E5M2, KvScales::kPerToken}},
};
const std::vector<int> kShort = {0, 1, 63, 64, 65, 130, 2};
const std::vector<int> kLong = {1000, 0, 4097, 1, 63, 64, 65, 640, 129};

// Caches are made once a layout: random numbers and rounding on the host are the slow part.
const DecodeCache& cache_of(int layout_idx, bool long_ones) {
  static std::map<std::pair<int, bool>, std::unique_ptr<DecodeCache>> caches;
  auto& cache = caches[{layout_idx, long_ones}];
  if (cache == nullptr) {
    cache = std::make_unique<DecodeCache>(long_ones ? kLong : kShort, kLayouts[layout_idx].second,
                                          kSeed + layout_idx);
  }
  return *cache;
}
std::vector<int> all_rows(const DecodeCache& cache) {
  std::vector<int> rows(cache.lengths.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int>(rows.size() - 1 - i);
  return rows;
}

class HeapScratch final : public cpu::Scratch {
 public:
  void* allocate(size_t size_bytes) override {
    blocks_.emplace_back(size_bytes + 64);
    return blocks_.back().data() + (64 - reinterpret_cast<uintptr_t>(blocks_.back().data()) % 64);
  }

 private:
  std::vector<std::vector<std::byte>> blocks_;
};

// The CPU's reference, every query a token of its own.
std::vector<float> cpu_out(DecodeCache& cache, const DecodeBatch& batch) {
  static ThreadPool pool(0);
  HeapScratch scratch;
  cpu::Context context{pool, scratch};
  const std::vector<float> q = widened(batch.q);
  std::vector<int32_t> seq_idx, kv_len;
  for (size_t s = 0; s < batch.seq_idx.size(); ++s) {
    for (int i = 0; i < batch.q_len; ++i) {
      seq_idx.push_back(std::max(batch.seq_idx[s], 0));
      kv_len.push_back(std::max(batch.kv_len[s] - batch.q_len + 1 + i, 0));
    }
  }
  std::vector<float> out(batch.num_rows() * kKvLatentDim);
  cpu::reference::mla_decode({.q = q.data(),
                              .out = out.data(),
                              .num_tokens = static_cast<int64_t>(seq_idx.size()),
                              .num_heads = batch.heads,
                              .kv = cache.host(),
                              .seq_idx = seq_idx.data(),
                              .kv_len = kv_len.data(),
                              .softmax_scale = kDecodeScale},
                             context);
  return out;
}

double cpu_lse(DecodeCache& cache, const DecodeBatch& batch, int64_t row) {
  const int64_t per_sequence = int64_t{batch.q_len} * batch.heads;
  const int64_t seq = row / per_sequence;
  const int64_t query = row % per_sequence / batch.heads;
  const int64_t keys = batch.kv_len[seq] - batch.q_len + 1 + query;
  std::vector<float> record(kKvRowDim);
  std::vector<double> scores;
  for (int64_t s = 0; s < keys; ++s) {
    cpu::reference::read_record(cpu::reference::record_address(cache.host(), batch.seq_idx[seq], s),
                                cache.layout, record.data());
    double dot = 0.0;
    for (int i = 0; i < kKvRowDim; ++i) dot += double{to_float(batch.q[row * kKvRowDim + i])} * record[i];
    scores.push_back(dot * kDecodeScale);
  }
  if (keys <= 0) return -std::numeric_limits<double>::infinity();
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double score : scores) sum += std::exp(score - top);
  return top + std::log(sum);
}

std::string where(const DecodeBatch& batch, int64_t row) {
  const int64_t per_sequence = int64_t{batch.q_len} * batch.heads;
  const int64_t seq = row / per_sequence;
  return "row " + std::to_string(row) + ": length " + std::to_string(batch.kv_len[seq]) + ", query " +
         std::to_string(row % per_sequence / batch.heads) + ", head " + std::to_string(row % batch.heads) +
         ", seed " + std::to_string(kSeed);
}

void expect_near(const DecodeBatch& batch, const DecodeResult& result, const DecodeResult& expected) {
  const RowError error = worst_row_error(result.out, expected.out);
  EXPECT_LE(error.worst, kTolerance) << where(batch, error.row);
  int shown = 0;
  for (size_t row = 0; row < expected.lse.size() && shown < 3; ++row) {
    const float a = result.lse[row];
    const float b = expected.lse[row];
    if (a == b || std::fabs(a - b) <= 2e-2F) continue;
    ++shown;
    ADD_FAILURE() << "lse " << a << ", expected " << b << " at " << where(batch, static_cast<int64_t>(row));
  }
}

bool same_bits(const DecodeResult& a, const DecodeResult& b) {
  return std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(bf16)) == 0 &&
         std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0;
}

using Case = std::tuple<int, int, int>;  // layout, heads, q_len
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return kLayouts[std::get<0>(info.param)].first + "H" + std::to_string(std::get<1>(info.param)) + "Q" +
         std::to_string(std::get<2>(info.param));
}

class MlaDecode : public ::testing::TestWithParam<Case> {};

TEST_P(MlaDecode, MatchesCpuOnShortRaggedBatch) {
  const auto [layout_idx, heads, q_len] = GetParam();
  auto& cache = const_cast<DecodeCache&>(cache_of(layout_idx, false));
  std::vector<int> rows = all_rows(cache);
  rows.insert(rows.begin() + 2, -1);
  const DecodeBatch batch(cache, rows, heads, q_len, kSeed + heads * 10 + q_len);
  const std::vector<float> expected = cpu_out(cache, batch);
  for (bool reference : {true, false}) {
    SCOPED_TRACE(reference ? "plain kernel" : "tuned kernel");
    const DecodeResult result = batch.run(reference);
    const RowError error = worst_row_error(result.out, expected);
    EXPECT_LE(error.worst, kTolerance) << where(batch, error.row);
    int shown = 0;
    for (int64_t row = 0; row < batch.num_rows() && shown < 3; row += 1 + row % 7) {
      const double lse = cpu_lse(cache, batch, row);
      if (lse == result.lse[row] || std::fabs(lse - result.lse[row]) <= 1e-2) continue;
      ++shown;
      ADD_FAILURE() << "lse " << result.lse[row] << ", expected " << lse << " at " << where(batch, row);
    }
  }
}

TEST_P(MlaDecode, MatchesPlainKernelOnLongRaggedBatch) {
  const auto [layout_idx, heads, q_len] = GetParam();
  const DecodeCache& cache = cache_of(layout_idx, true);
  const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads * 10 + q_len);
  const DecodeResult expected = batch.run(true);
  const DecodeResult balanced = batch.run(false);
  expect_near(batch, balanced, expected);
  EXPECT_TRUE(same_bits(balanced, batch.run(false))) << "run twice";
  EXPECT_TRUE(same_bits(balanced, batch.run(false, 0, true))) << "graph and eager";
  const DecodeResult without_lse = batch.run(false, 0, false, false);
  EXPECT_EQ(0, std::memcmp(balanced.out.data(), without_lse.out.data(), balanced.out.size() * sizeof(bf16)));
  for (int split_pages : {1, 5}) {
    SCOPED_TRACE(split_pages);
    expect_near(batch, batch.run(false, split_pages), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MlaDecode,
                         ::testing::Combine(::testing::Range(0, 4), ::testing::Values(1, 8, 16, 20, 64, 128),
                                            ::testing::Values(1, 2, 4)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(LongVerify, MlaDecode,
                         ::testing::Combine(::testing::Range(0, 4), ::testing::Values(5, 16, 33),
                                            ::testing::Values(7, 8)),
                         case_name);

// One sequence on the whole device: many splits of a page or two, merged.
TEST(MlaDecodeSplits, OneSequenceOverAllMultiprocessors) {
  for (int heads : {16, 128}) {
    for (int length : {64, 1024, 16384 + 17}) {
      SCOPED_TRACE(std::to_string(heads) + " heads, length " + std::to_string(length));
      const DecodeCache cache({length}, kLayouts[0].second, kSeed);
      const DecodeBatch batch(cache, {0}, heads, 1, kSeed);
      expect_near(batch, batch.run(false), batch.run(true));
    }
  }
}

// A large, ragged batch: parts that hold many sequences, sequences that span several parts.
TEST(MlaDecodeSplits, ManySequences) {
  std::mt19937_64 random(kSeed);
  std::vector<int> lengths(150);
  for (int& length : lengths) length = static_cast<int>(random() % 900);
  for (int layout_idx : {0, 1}) {
    const DecodeCache cache(lengths, kLayouts[layout_idx].second, kSeed);
    for (int heads : {16, 128}) {
      SCOPED_TRACE(kLayouts[layout_idx].first + ", heads " + std::to_string(heads));
      const DecodeBatch batch(cache, all_rows(cache), heads, 1, kSeed);
      expect_near(batch, batch.run(false), batch.run(true));
    }
  }
}

TEST(MlaDecodeSplits, FixedSplitsDoNotDependOnTheBatch) {
  const DecodeCache& cache = cache_of(0, true);
  for (int heads : {16, 64}) {
    const DecodeBatch all(cache, all_rows(cache), heads, 1, kSeed);
    const DecodeResult together = all.run(false, 4);
    for (size_t s = 0; s < all.seq_idx.size(); ++s) {
      DecodeBatch alone(cache, {all.seq_idx[s]}, heads, 1, kSeed);
      const int64_t values = int64_t{heads} * kKvRowDim;
      alone.set_queries(std::vector<bf16>(all.q.begin() + s * values, all.q.begin() + (s + 1) * values));
      const DecodeResult result = alone.run(false, 4);
      EXPECT_EQ(0, std::memcmp(result.out.data(), together.out.data() + s * heads * kKvLatentDim,
                               result.out.size() * sizeof(bf16)))
          << "heads " << heads << ", length " << all.kv_len[s];
    }
  }
}

// A score far above the others, large latents, and scales that differ widely from record to record.
TEST(MlaDecodeScores, ExtremeOnes) {
  for (size_t layout_idx = 0; layout_idx < kLayouts.size(); ++layout_idx) {
    SCOPED_TRACE(kLayouts[layout_idx].first);
    DecodeCache cache({700}, kLayouts[layout_idx].second, kSeed);
    std::vector<float> latent(kKvLatentDim), rope(kKvRopeDim);
    std::mt19937_64 random(kSeed);
    std::normal_distribution<float> normal;
    for (int s = 0; s < 700; ++s) {
      const float sigma = s % 3 == 0 ? 20.0F : s % 3 == 1 ? 1.0F : 0.01F;
      for (int i = 0; i < kKvLatentDim; ++i)
        latent[i] = normal(random) * sigma * (i / 128 == s % 4 ? 0.05F : 1.0F);
      for (float& v : rope) v = normal(random) * 4.0F;
      cpu::reference::write_record(
          latent.data(), rope.data(), cache.layout,
          const_cast<std::byte*>(cpu::reference::record_address(cache.host(), 0, s)));
    }
    cache.device_pool.upload(cache.pool);
    for (int heads : {16, 20, 128}) {
      const DecodeBatch batch(cache, {0}, heads, 1, kSeed);
      const std::vector<float> expected = cpu_out(cache, batch);
      const RowError error = worst_row_error(batch.run(false).out, expected);
      EXPECT_LE(error.worst, kTolerance) << "heads " << heads << ", " << where(batch, error.row);
    }
  }
}

}  // namespace
}  // namespace hadal::testing
