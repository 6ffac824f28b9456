// MLA decode on the device. The plain kernels against the CPU's double-precision reference, the tuned ones
// against the plain one in double precision: over heads, verify lengths, ragged lengths, cache formats and
// schedules.
//
// Tolerances. 16-bit caches: cosine difference (of a sequence's rows) at most 5e-6, each output
// within 2.01/128 of its own size or 8e-4 for latents of deviation 0.1, LSE within 1.2e-4 of its size (or
// 2e-5). Weights and outputs are rounded to the cache's 16-bit type: in bf16 a rounding is up to 2⁻⁹ =
// 0.25/128 of a value, covered by the relative bound, and adds about 7e-7 to the cosine difference. FP8
// caches, against the same math on the dequantised record: cosine at least 0.9995, LSE within 1e-3.
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

using cuda::DecodeKernel;
using cuda::DecodeSchedule;

constexpr uint64_t kSeed = 20261121;

const std::vector<std::pair<std::string, KvLayout>> kLayouts = {
    {"Bf16", {KvFormat::kBF16, KvScales::kPerToken}},
    {"F16", {KvFormat::kF16, KvScales::kPerToken}},
    {"E4m3PerToken", {KvFormat::kFp8E4M3, KvScales::kPerToken}},
    {"E4m3Per128", {KvFormat::kFp8E4M3, KvScales::kPer128}},
    {"E5m2", {KvFormat::kFp8E5M2, KvScales::kPerToken}},
};
const std::vector<int> kShort = {0, 1, 63, 64, 65, 130, 2};
const std::vector<int> kRagged = {1000, 0, 4097, 1, 63, 64, 65, 640, 129};

bool is_fp8(const KvLayout& layout) {
  return layout.format == KvFormat::kFp8E4M3 || layout.format == KvFormat::kFp8E5M2;
}

// Caches are made once: random numbers and rounding on the host are the slow part.
const DecodeCache& cache_of(int layout_idx, const std::vector<int>& lengths, CacheOptions options = {}) {
  static std::map<std::tuple<int, std::vector<int>, bool, int>, std::unique_ptr<DecodeCache>> caches;
  auto& cache = caches[{layout_idx, lengths, options.flat, options.heads_kv}];
  if (cache == nullptr)
    cache = std::make_unique<DecodeCache>(lengths, kLayouts[layout_idx].second, kSeed + layout_idx, options);
  return *cache;
}
// With one row of padding.
std::vector<int> all_rows(const DecodeCache& cache) {
  std::vector<int> rows(cache.lengths.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int>(rows.size() - 1 - i);
  if (rows.size() > 2) rows.insert(rows.begin() + 2, -1);
  return rows;
}

std::string where(const DecodeBatch& batch, int64_t row) {
  const int64_t per_sequence = int64_t{batch.q_len} * batch.heads;
  const int64_t seq = row / per_sequence;
  return "row " + std::to_string(row) + ": sequence " + std::to_string(seq) + " of " +
         std::to_string(batch.seq_idx.size()) + ", length " + std::to_string(batch.kv_len[seq]) + ", query " +
         std::to_string(row % per_sequence / batch.heads) + ", head " + std::to_string(row % batch.heads) +
         ", seed " + std::to_string(kSeed);
}

struct Bounds {
  double cosine_difference = 5e-6;
  bool outputs = true;  // each within a bound of its own
  double lse = 2e-5;
  double lse_relative = 1.2e-4;
};
Bounds bounds_of(const KvLayout& layout) {
  if (is_fp8(layout)) return {5e-4, false, 1e-3, 0.0};
  return {};
}

// At most three failures of a kind are shown.
void expect_close(const DecodeBatch& batch, const DecodeResult& result, const DecodeDoubles& expected,
                  const Bounds& bounds) {
  const KvLayout& layout = batch.cache().layout;
  const int64_t per_sequence = int64_t{batch.q_len} * batch.heads;
  int shown[3] = {};
  for (int64_t seq = 0; seq < static_cast<int64_t>(batch.seq_idx.size()); ++seq) {
    double product = 0.0, norms = 0.0, worst = 0.0;
    int64_t worst_row = seq * per_sequence;
    for (int64_t row = seq * per_sequence; row < (seq + 1) * per_sequence; ++row) {
      double row_error = 0.0, row_norm = 0.0;
      for (int64_t column = 0; column < kKvLatentDim; ++column) {
        const int64_t i = row * kKvLatentDim + column;
        const double a = decode_value(layout, result.out[i]);
        const double b = expected.out[i];
        product += 2.0 * a * b;
        norms += a * a + b * b;
        row_error += (a - b) * (a - b);
        row_norm += b * b;
        if (!bounds.outputs) continue;
        const double error = std::fabs(a - b);
        const double allowed = std::max(8e-3 * batch.cache().deviation(column), 2.01 / 128 * std::fabs(b));
        if (!(error <= allowed) && shown[0]++ < 3) {
          ADD_FAILURE() << "output " << a << ", expected " << b << ", column " << column << " of "
                        << where(batch, row);
        }
      }
      const double error = row_norm > 0.0 ? row_error / row_norm : row_error;
      if (!(error <= worst)) worst = error, worst_row = row;
      const double lse = result.lse[row], lse_expected = expected.lse[row];
      const double lse_allowed = std::max(bounds.lse, bounds.lse_relative * std::fabs(lse_expected));
      if (lse != lse_expected && !(std::fabs(lse - lse_expected) <= lse_allowed) && shown[1]++ < 3)
        ADD_FAILURE() << "lse " << lse << ", expected " << lse_expected << " at " << where(batch, row);
    }
    const double difference = norms > 0.0 ? 1.0 - product / norms : 0.0;
    if (!(difference <= bounds.cosine_difference) && shown[2]++ < 3) {
      ADD_FAILURE() << "cosine difference " << difference << " of a sequence; its worst, "
                    << where(batch, worst_row) << ": relative error " << std::sqrt(worst);
    }
  }
}
void expect_close(const DecodeBatch& batch, const DecodeResult& result, const DecodeDoubles& expected) {
  expect_close(batch, result, expected, bounds_of(batch.cache().layout));
}

bool same_bits(const DecodeResult& a, const DecodeResult& b) {
  return std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(bf16)) == 0 &&
         std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0;
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

// The oracles of everything below.
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

// Heads and queries a sequence, in each cache format, by the op's own choice of a kernel.
using Case = std::tuple<int, std::pair<int, int>>;  // layout, (heads, q_len)
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto [heads, q_len] = std::get<1>(info.param);
  return kLayouts[std::get<0>(info.param)].first + "H" + std::to_string(heads) + "Q" + std::to_string(q_len);
}
class MlaDecode : public ::testing::TestWithParam<Case> {};

TEST_P(MlaDecode, RaggedBatch) {
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

// Weights of widely different size.
TEST_P(MlaDecode, SharpScores) {
  const auto [layout_idx, rows] = GetParam();
  const auto [heads, q_len] = rows;
  const DecodeCache& cache = cache_of(layout_idx, kRagged);
  const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads * 10 + q_len);
  Bounds bounds = bounds_of(cache.layout);
  // Queries of one FP8 term and scores of deviation 2: an error of the score itself.
  const DecodeKernel kernel = cuda::decode_geometry(batch.shape()).kernel;
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

// Every schedule of every format by hand, whatever the op would choose.
struct ScheduleCase {
  int layout;
  DecodeSchedule schedule;
};
std::vector<ScheduleCase> all_schedules() {
  std::vector<ScheduleCase> cases;
  for (int layout_idx = 0; layout_idx < static_cast<int>(kLayouts.size()); ++layout_idx) {
    const KvLayout& layout = kLayouts[layout_idx].second;
    for (const DecodeSchedule& schedule : cuda::decode_schedules(layout))
      cases.push_back({layout_idx, schedule});
  }
  return cases;
}
std::string schedule_name(const ::testing::TestParamInfo<ScheduleCase>& info) {
  const auto& [layout_idx, schedule] = info.param;
  const char* kernel = schedule.kernel == DecodeKernel::kSwapped ? "Swapped"
                       : schedule.kernel == DecodeKernel::kTiles ? "Tiles"
                                                                 : "TilesFp8";
  return kLayouts[layout_idx].first + kernel + "Rows" + std::to_string(schedule.tile_rows) + "Cluster" +
         std::to_string(schedule.cluster);
}
class MlaDecodeSchedules : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(MlaDecodeSchedules, SmallAndLargeBatches) {
  const auto& [layout_idx, schedule] = GetParam();
  if (cuda::device_capacity(cuda_device_info(0).num_sms).clusters[0] < 1) GTEST_SKIP();
  std::vector<int> many;
  for (int i = 0; i < 40; ++i) many.push_back(i * i * 3 % 700);
  many.push_back(9000);
  for (const std::vector<int>& lengths : {std::vector<int>{64}, {3000}, {5, 0, 1300}, many}) {
    const DecodeCache& cache = cache_of(layout_idx, lengths, {.flat = true});
    for (const auto& [heads, q_len] :
         {std::pair{16, 1}, std::pair{5, 2}, std::pair{20, 3}, std::pair{128, 2}}) {
      SCOPED_TRACE(std::to_string(lengths.size()) + " sequences, heads " + std::to_string(heads) +
                   ", queries " + std::to_string(q_len));
      const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads, 0.1F);
      const cuda::MlaPlanShape shape = batch.shape();
      const cuda::ClusterCapacity capacity = cuda::device_capacity(shape.num_sms);
      const int tiles = (heads * q_len + schedule.tile_rows - 1) / schedule.tile_rows;
      int i = 0;
      while ((1 << i) < schedule.cluster) ++i;
      if (tiles > capacity.clusters[i]) continue;  // not all tiles of a part at once
      const DecodeDoubles expected = batch.run_double();
      const DecodeResult result = batch.run(DecodeRun{.schedule = schedule});
      expect_close(batch, result, expected);
      EXPECT_TRUE(same_bits(result, batch.run(DecodeRun{.graphed = true, .schedule = schedule})));
      if (schedule.cluster == 1)
        expect_close(batch, batch.run(DecodeRun{.split_pages = 3, .schedule = schedule}), expected);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MlaDecodeSchedules, ::testing::ValuesIn(all_schedules()), schedule_name);

// A sequence alone and the same one in a batch, with fixed splits: equal bits, in every kernel.
TEST_P(MlaDecodeSchedules, FixedSplitsDoNotDependOnTheBatch) {
  const auto& [layout_idx, schedule] = GetParam();
  if (schedule.cluster > 1) GTEST_SKIP() << "fixed splits are for single blocks";
  const DecodeCache& cache = cache_of(layout_idx, kRagged, {.flat = true});
  const int heads = schedule.tile_rows == 64 ? 64 : 20;
  const DecodeBatch all(cache, all_rows(cache), heads, 1, kSeed);
  const DecodeRun how{.split_pages = 4, .schedule = schedule};
  const DecodeResult together = all.run(how);
  for (size_t s = 0; s < all.seq_idx.size(); ++s) {
    DecodeBatch alone(cache, {all.seq_idx[s]}, heads, 1, kSeed);
    const int64_t values = int64_t{heads} * kKvRowDim;
    alone.set_queries(std::vector<bf16>(all.q.begin() + s * values, all.q.begin() + (s + 1) * values));
    const DecodeResult result = alone.run(how);
    EXPECT_EQ(0, std::memcmp(result.out.data(), together.out.data() + s * heads * kKvLatentDim,
                             result.out.size() * sizeof(bf16)))
        << "length " << all.kv_len[s];
    EXPECT_EQ(
        0, std::memcmp(result.lse.data(), together.lse.data() + s * heads, result.lse.size() * sizeof(float)))
        << "length " << all.kv_len[s];
  }
}

// The op's own choice likewise, in each format.
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

TEST(MlaDecodeSplits, OneHugeAmongTiny) {
  for (int layout_idx : {0, 2, 4}) {
    const DecodeCache& cache = cache_of(layout_idx, {1, 163840, 65, 0}, {.flat = true});
    for (int heads : {16, 128}) {
      SCOPED_TRACE(kLayouts[layout_idx].first + ", heads " + std::to_string(heads));
      const DecodeBatch batch(cache, all_rows(cache), heads, 1, kSeed, 0.1F);
      expect_close(batch, batch.run(DecodeRun{}), batch.run_double());
    }
  }
}

// A large, ragged batch: parts that hold many sequences, sequences that span several parts.
TEST(MlaDecodeSplits, ManySequences) {
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

// Rows of one sequence at growing lengths, as an extension of a long prefix makes them; then thousands.
TEST(MlaDecodeSplits, ManyRowsOfOneSequence) {
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

// Several interleaved caches, of which one is read, on pages further apart than they need to be.
TEST(MlaDecodeStrides, SeveralKvHeads) {
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
TEST(MlaDecodeScores, NeedleInALongContext) {
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
    for (int heads : {16, 128}) {
      SCOPED_TRACE(kLayouts[layout_idx].first + ", heads " + std::to_string(heads));
      DecodeBatch batch(cache, {0}, heads, 1, kSeed);
      // A score of about 21 against ±0.9 of the others: e²¹ outweighs 131,072 · e^0.4 a thousandfold and
      // more.
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
        dot += expected.out[i] * latent[i], norm += double{latent[i]} * latent[i];
      ASSERT_GT(dot / norm, 0.99) << "the needle does not outweigh the others in double precision";
      expect_close(batch, batch.run(DecodeRun{}), expected);
    }
  }
}

}  // namespace
}  // namespace hadal::testing
