// Tests MLA decode on the device. The plain kernels are compared with the CPU's double-precision reference,
// the tuned ones with the plain one in double precision, over heads, verify lengths, ragged lengths, cache
// formats and schedules.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/cpu/cpu_kernels.h"
#include "tests/cuda/mla/decode_checks.h"

namespace hadal::testing {
namespace {

using cuda::DecodeKernel;

constexpr uint64_t kSeed = kDecodeSeed;

const std::vector<int> kShort = {0, 1, 63, 64, 65, 130, 2};
const std::vector<int> kRagged = {1000, 0, 4097, 1, 63, 64, 65, 640, 129};

class HeapScratch final : public cpu::Scratch {
 public:
  void* allocate(size_t size_bytes) override {
    blocks_.emplace_back(size_bytes + 64);
    return blocks_.back().data() + (64 - reinterpret_cast<uintptr_t>(blocks_.back().data()) % 64);
  }

 private:
  std::vector<std::vector<std::byte>> blocks_;
};

// Runs the CPU's reference, in which every query is a separate token.
std::vector<float> cpu_out(DecodeCache& cache, const DecodeBatch& batch) {
  static ThreadPool pool(0);
  HeapScratch scratch;
  cpu::Context context{pool, scratch};
  std::vector<float> q;
  for (bf16 value : batch.q) q.push_back(decode_value(cache.layout, value));
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
    for (int i = 0; i < kKvRowDim; ++i)
      dot += double{decode_value(cache.layout, batch.q[row * kKvRowDim + i])} * record[i];
    scores.push_back(dot * kDecodeScale);
  }
  if (keys <= 0) return -std::numeric_limits<double>::infinity();
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double score : scores) sum += std::exp(score - top);
  return top + std::log(sum);
}

// These kernels are the oracles of all tests below.
TEST(MlaDecodeReference, PlainKernelsMatchTheCpu) {
  for (int layout_idx = 0; layout_idx < static_cast<int>(kLayouts.size()); ++layout_idx) {
    auto& cache = const_cast<DecodeCache&>(cache_of(layout_idx, kShort));
    for (const auto& [heads, q_len] : {std::pair{3, 2}, std::pair{16, 1}, std::pair{7, 8}}) {
      SCOPED_TRACE(kLayouts[layout_idx].first + ", heads " + std::to_string(heads) + ", queries " +
                   std::to_string(q_len));
      const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads);
      const std::vector<float> on_cpu = cpu_out(cache, batch);
      const DecodeDoubles doubles = batch.run_double();
      for (size_t i = 0; i < on_cpu.size(); ++i) {
        ASSERT_NEAR(doubles.out[i], on_cpu[i], 1e-5 + 1e-5 * std::fabs(on_cpu[i]))
            << where(batch, static_cast<int64_t>(i) / kKvLatentDim);
      }
      for (int64_t row = 0; row < batch.num_rows(); row += 1 + row % 7) {
        const double lse = cpu_lse(cache, batch, row);
        if (lse != doubles.lse[row]) {
          ASSERT_NEAR(doubles.lse[row], lse, 1e-6) << where(batch, row);
        }
      }
      expect_close(batch, batch.run(DecodeRun{.reference = true}), doubles, {});
    }
  }
}

// Tests numbers of heads and of queries per sequence, in each cache format, with the kernel that the op
// chooses.
using Case = std::tuple<int, std::pair<int, int>>;  // layout, (heads, q_len)
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto [heads, q_len] = std::get<1>(info.param);
  return kLayouts[std::get<0>(info.param)].first + "H" + std::to_string(heads) + "Q" + std::to_string(q_len);
}
class MlaDecode : public ::testing::TestWithParam<Case> {};

TEST_P(MlaDecode, RaggedBatchMatchesDoublePrecision) {
  const auto [layout_idx, rows] = GetParam();
  const auto [heads, q_len] = rows;
  const DecodeCache& cache = cache_of(layout_idx, kRagged, {.flat = true});
  const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads * 10 + q_len, 0.1F);
  const DecodeDoubles expected = batch.run_double();
  const DecodeResult balanced = batch.run(DecodeRun{});
  expect_close(batch, balanced, expected);
  EXPECT_TRUE(same_bits(balanced, batch.run(DecodeRun{}))) << "run twice";
  EXPECT_TRUE(same_bits(balanced, batch.run(DecodeRun{.graphed = true}))) << "graph and eager";
  const DecodeResult without_lse = batch.run(DecodeRun{.want_lse = false});
  EXPECT_EQ(0, std::memcmp(balanced.out.data(), without_lse.out.data(), balanced.out.size() * sizeof(bf16)));
  for (int split_pages : {1, 5}) {
    SCOPED_TRACE("splits of " + std::to_string(split_pages) + " pages");
    expect_close(batch, batch.run(DecodeRun{.split_pages = split_pages}), expected);
  }
  if (q_len > 1) {
    SCOPED_TRACE("not causal");
    expect_close(batch, batch.run(DecodeRun{.causal = false}), batch.run_double(false));
  }
}

// The weights have widely different sizes.
TEST_P(MlaDecode, SharpScoresMatchDoublePrecision) {
  const auto [layout_idx, rows] = GetParam();
  const auto [heads, q_len] = rows;
  const DecodeCache& cache = cache_of(layout_idx, kRagged);
  const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads * 10 + q_len);
  const DecodeKernel kernel = cuda::decode_geometry(batch.shape()).kernel;
  Bounds bounds = bounds_of(cache.layout, kernel);
  // In FP8, scores (of deviation 2) have an error relative to their size, which is larger for queries of one
  // FP8 term.
  if (is_fp8(cache.layout)) bounds.lse = 2e-3, bounds.lse_relative = 5e-4;
  if (kernel == DecodeKernel::kTilesFp8) bounds = {2e-2, false, 0.5, 0.0};
  expect_close(batch, batch.run(DecodeRun{}), batch.run_double(), bounds);
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlaDecode,
                         ::testing::Combine(::testing::Range(0, 5),
                                            ::testing::ValuesIn(std::vector<std::pair<int, int>>{{1, 1},
                                                                                                 {3, 5},
                                                                                                 {7, 1},
                                                                                                 {8, 4},
                                                                                                 {16, 1},
                                                                                                 {16, 2},
                                                                                                 {16, 4},
                                                                                                 {32, 1},
                                                                                                 {48, 1},
                                                                                                 {64, 1},
                                                                                                 {100, 3},
                                                                                                 {128, 1},
                                                                                                 {128, 2},
                                                                                                 {16, 8}})),
                         case_name);

// For the kernel that the op chooses, in each format, fixed splits give the same bits in any batch.
TEST(MlaDecodeSplits, FixedSplitsDoNotDependOnTheBatch) {
  for (int layout_idx = 0; layout_idx < static_cast<int>(kLayouts.size()); ++layout_idx) {
    const DecodeCache& cache = cache_of(layout_idx, kRagged, {.flat = true});
    for (int heads : {16, 64}) {
      const DecodeBatch all(cache, {2, 2, 2, 0, 7, 2, 8}, heads, 1, kSeed);
      const DecodeResult together = all.run(DecodeRun{.split_pages = 2});
      DecodeBatch alone(cache, {2}, heads, 1, kSeed);  // the same queries as the first one's
      const DecodeResult result = alone.run(DecodeRun{.split_pages = 2});
      EXPECT_EQ(0, std::memcmp(result.out.data(), together.out.data(), result.out.size() * sizeof(bf16)))
          << kLayouts[layout_idx].first << ", heads " << heads;
    }
  }
}

TEST(MlaDecodeSplits, OneHugeSequenceAmongTinyOnesMatchesDoublePrecision) {
  for (int layout_idx : {0, 2, 4}) {
    const DecodeCache& cache = cache_of(layout_idx, {1, 163840, 65, 0}, {.flat = true});
    for (int heads : {16, 128}) {
      SCOPED_TRACE(kLayouts[layout_idx].first + ", heads " + std::to_string(heads));
      const DecodeBatch batch(cache, all_rows(cache), heads, 1, kSeed, 0.1F);
      expect_close(batch, batch.run(DecodeRun{}), batch.run_double());
    }
  }
}

// In a large, ragged batch some parts hold many sequences, and some sequences span several parts.
TEST(MlaDecodeSplits, ManySequencesMatchDoublePrecision) {
  std::mt19937_64 random(kSeed);
  std::vector<int> lengths(150);
  for (int& length : lengths) length = static_cast<int>(random() % 900);
  for (int layout_idx : {0, 2}) {
    const DecodeCache& cache = cache_of(layout_idx, lengths, {.flat = true});
    for (int heads : {16, 128}) {
      SCOPED_TRACE(kLayouts[layout_idx].first + ", heads " + std::to_string(heads));
      const DecodeBatch batch(cache, all_rows(cache), heads, 1, kSeed, 0.1F);
      expect_close(batch, batch.run(DecodeRun{}), batch.run_double());
    }
  }
}

// The rows belong to one sequence at growing lengths, as in an extension of a long prefix; then there are
// thousands of rows.
TEST(MlaDecodeSplits, ManyRowsOfOneSequenceMatchDoublePrecision) {
  const DecodeCache& cache = cache_of(0, {3000}, {.flat = true});
  for (const auto& [count, heads] : {std::pair{300, 16}, std::pair{200, 128}, std::pair{4096, 3}}) {
    SCOPED_TRACE(std::to_string(count) + " rows, heads " + std::to_string(heads));
    DecodeBatch batch(cache, std::vector<int>(count, 0), heads, 2, kSeed, 0.1F);
    std::vector<int> lengths(count);
    for (int i = 0; i < count; ++i) lengths[i] = count > 1000 ? 1 + i % 200 : 2000 + 2 * i;
    batch.set_lengths(lengths);
    expect_close(batch, batch.run(DecodeRun{}), batch.run_double());
  }
}

// Several caches are interleaved, of which one is read, on pages further apart than they need to be.
TEST(MlaDecodeStrides, SeveralKvHeadsMatchDoublePrecision) {
  for (int layout_idx : {0, 1}) {
    for (int heads_kv : {2, 3}) {
      const DecodeCache& cache = cache_of(layout_idx, kRagged, {.flat = true, .heads_kv = heads_kv});
      for (const auto& [heads, q_len] : {std::pair{5, 1}, std::pair{16, 3}, std::pair{64, 2}}) {
        for (bool causal : {true, false}) {
          SCOPED_TRACE(kLayouts[layout_idx].first + ", KV heads " + std::to_string(heads_kv) + ", heads " +
                       std::to_string(heads) + ", queries " + std::to_string(q_len) +
                       (causal ? ", causal" : ""));
          const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed, 0.1F);
          expect_close(batch, batch.run(DecodeRun{.causal = causal}), batch.run_double(causal));
        }
      }
    }
  }
}

// One score is far above the others, latents are large, and scales differ widely from record to record.
TEST(MlaDecodeScores, ExtremeOnesMatchDoublePrecision) {
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
      cpu::reference::write_record(latent.data(), rope.data(), cache.layout,
                                   cache.pool.data() + cache.offset_of(0, s));
    }
    cache.device_pool.upload(cache.pool);
    for (const auto& [heads, tolerance] : {std::pair{16, 1e-2}, std::pair{20, 1e-2}, std::pair{128, 1e-2}}) {
      const DecodeBatch batch(cache, {0}, heads, 1, kSeed);
      if (cuda::decode_geometry(batch.shape()).kernel == DecodeKernel::kTilesFp8)
        continue;  // decode_fp8_test.cpp
      const RowError error = worst_row_error(batch.run(DecodeRun{}), batch.run_double().out, cache.layout);
      EXPECT_LE(error.worst, tolerance) << "heads " << heads << ", " << where(batch, error.row);
    }
  }
}

// One key among 131,072 that a query points at outweighs all others, as it does in double precision.
TEST(MlaDecodeScores, OneKeyOutweighsALongContext) {
  constexpr int kKeys = 131072;
  constexpr int kNeedle = 77777;
  for (int layout_idx : {0, 2, 4}) {
    DecodeCache cache({kKeys}, kLayouts[layout_idx].second, kSeed, {.flat = true});
    std::vector<float> latent(kKvLatentDim), rope(kKvRopeDim);
    std::mt19937_64 random(kSeed);
    for (float& v : latent) v = random() % 2 == 0 ? 0.1F : -0.1F;
    for (float& v : rope) v = random() % 2 == 0 ? 0.1F : -0.1F;
    cpu::reference::write_record(latent.data(), rope.data(), cache.layout,
                                 cache.pool.data() + cache.offset_of(0, kNeedle));
    cache.device_pool.upload(cache.pool);
    std::vector<float> stored(kKvRowDim);  // rounded
    cpu::reference::read_record(cache.pool.data() + cache.offset_of(0, kNeedle), cache.layout, stored.data());
    for (int heads : {16, 128}) {
      SCOPED_TRACE(kLayouts[layout_idx].first + ", heads " + std::to_string(heads));
      DecodeBatch batch(cache, {0}, heads, 1, kSeed);
      // The key at which the query points has a score of about 21, and the other keys have scores within
      // ±0.9: e²¹ outweighs 131,072 · e^0.4 a thousandfold and more.
      std::vector<bf16> q(batch.q.size());
      for (size_t i = 0; i < q.size(); ++i) {
        const size_t column = i % kKvRowDim;
        const float direction = column < kKvLatentDim ? latent[column] : rope[column - kKvLatentDim];
        q[i] = to_bf16(32.0F * direction);
      }
      batch.set_queries(q);
      const DecodeDoubles expected = batch.run_double();
      double dot = 0.0, norm = 0.0;
      for (int i = 0; i < kKvLatentDim; ++i)
        dot += expected.out[i] * stored[i], norm += double{stored[i]} * stored[i];
      ASSERT_GT(dot / norm, 0.99) << "the needle does not outweigh the others in double precision";
      // The score is 21, or the share of it that rounding leaves.
      const DecodeKernel kernel = cuda::decode_geometry(batch.shape()).kernel;
      Bounds bounds = bounds_of(cache.layout, kernel);
      if (is_fp8(cache.layout)) bounds.lse_relative = kernel == DecodeKernel::kTilesFp8 ? 2e-2 : 1e-3;
      expect_close(batch, batch.run(DecodeRun{}), expected, bounds);
    }
  }
}

}  // namespace
}  // namespace hadal::testing
