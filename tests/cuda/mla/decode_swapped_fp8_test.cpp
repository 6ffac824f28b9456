// Compares the swapped decode kernel over FP8 caches, on plans made by hand, with double precision on the
// dequantised records: both scale granularities, both row tiles, clusters, and one key among 131,072.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "tests/cuda/mla/decode_fixture.h"
#include "tests/cuda/mla/decode_swapped_case.h"

namespace hadal::testing {
namespace {

constexpr uint64_t kSeed = 20261121;
constexpr KvLayout kE4m3PerToken = {KvFormat::kFp8E4M3, KvScales::kPerToken};
constexpr KvLayout kE4m3Per128 = {KvFormat::kFp8E4M3, KvScales::kPer128};
constexpr KvLayout kE5m2 = {KvFormat::kFp8E5M2, KvScales::kPerToken};

using Case = SwappedCase;

// Holds the exact output and log-sum-exp of a row; exact_row() computes them from `values`, the sequence's
// records, widened.
struct ExactRow {
  std::vector<double> out = std::vector<double>(kKvLatentDim);
  double lse = -std::numeric_limits<double>::infinity();
};
ExactRow exact_row(const bf16* q, const std::vector<float>& values, int visible) {
  ExactRow row;
  if (visible <= 0) return row;
  std::vector<double> scores(visible);
  float query[kKvRowDim];
  for (int i = 0; i < kKvRowDim; ++i) query[i] = to_float(q[i]);
  for (int key = 0; key < visible; ++key) {
    const float* record = values.data() + int64_t{key} * kKvRowDim;
    double dot = 0.0;
    for (int i = 0; i < kKvRowDim; ++i) dot += double{query[i]} * record[i];
    scores[key] = dot * kDecodeScale;
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (int key = 0; key < visible; ++key) {
    const double weight = std::exp(scores[key] - top);
    sum += weight;
    const float* record = values.data() + int64_t{key} * kKvRowDim;
    for (int i = 0; i < kKvLatentDim; ++i) row.out[i] += weight * record[i];
  }
  for (double& v : row.out) v /= sum;
  row.lse = top + std::log(sum);
  return row;
}

DecodeResult tuned(const Case& c, const DecodeCache& cache, const DeviceArray<bf16>& q) {
  std::vector<int32_t> seq_idx(c.num_seqs());
  std::iota(seq_idx.begin(), seq_idx.end(), 0);
  const DeviceArray<int32_t> device_seq_idx(seq_idx);
  SwappedLaunch<bf16> launch(c, kDecodeScale);
  launch.args.q = q.data();
  launch.args.pool = cache.device_pool.data();
  launch.args.record_stride = cache.layout.row_bytes();
  launch.args.page_stride = cache.layout.page_bytes();
  launch.args.page_table = cache.device_table.data();
  launch.args.page_table_stride = cache.stride;
  launch.args.seq_idx = device_seq_idx.data();
  launch.run();
  return {launch.out.download(), launch.lse.download()};
}

// Checks a case; the record of key `needle` is ten times the first row's query.
void check(const Case& c, int needle = -1) {
  SCOPED_TRACE(describe(c) + ", seed " + std::to_string(kSeed));
  DecodeCache cache(c.lengths, c.layout, kSeed + c.heads);
  const int rows = c.rows();
  const int64_t num_rows = c.num_seqs() * rows;
  const std::vector<bf16> q = random_bf16(num_rows * kKvRowDim, kSeed + c.q_len, 0.3F);
  if (needle >= 0) {
    std::vector<float> record = widened<bf16>(std::vector<bf16>(q.begin(), q.begin() + kKvRowDim));
    for (float& v : record) v *= 10.0F;
    cpu::reference::write_record(
        record.data(), record.data() + kKvLatentDim, c.layout,
        const_cast<std::byte*>(cpu::reference::record_address(cache.host(), 0, needle)));
    cache.device_pool.upload(cache.pool);
  }
  if (c.mixed_scales) {
    std::vector<float> values(kKvRowDim);
    for (size_t seq = 0; seq < c.lengths.size(); ++seq) {
      for (int key = 0; key < c.lengths[seq]; ++key) {
        if (key / 16 % 3 != 0) continue;
        auto* record = const_cast<std::byte*>(
            cpu::reference::record_address(cache.host(), static_cast<int64_t>(seq), key));
        cpu::reference::read_record(record, c.layout, values.data());
        cpu::reference::write_record(values.data(), values.data() + kKvLatentDim, kE4m3PerToken, record);
      }
    }
    cache.device_pool.upload(cache.pool);
  }
  const DeviceArray<bf16> device_q(q);
  const DecodeResult result = tuned(c, cache, device_q);
  const DecodeResult again = tuned(c, cache, device_q);
  EXPECT_EQ(0, std::memcmp(result.out.data(), again.out.data(), result.out.size() * 2)) << "a second run";
  EXPECT_EQ(0, std::memcmp(result.lse.data(), again.lse.data(), result.lse.size() * 4)) << "a second run";

  double worst_cosine = 0.0, worst_lse = 0.0, worst_error = 0.0;
  int shown = 0, wrong = 0;
  for (size_t seq = 0; seq < c.lengths.size(); ++seq) {
    std::vector<float> values(int64_t{c.lengths[seq]} * kKvRowDim);
    for (int key = 0; key < c.lengths[seq]; ++key) {
      cpu::reference::read_record(
          cpu::reference::record_address(cache.host(), static_cast<int64_t>(seq), key), c.layout,
          values.data() + int64_t{key} * kKvRowDim);
    }
    std::vector<ExactRow> exact(rows);
    std::vector<std::thread> threads;
    const int num_threads =
        std::min<int>(16, std::max<int>(1, static_cast<int>(std::thread::hardware_concurrency())));
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, t] {
        for (int r = t; r < rows; r += num_threads) {
          const int visible = c.lengths[seq] - (c.causal ? c.q_len - 1 - r / c.heads : 0);
          exact[r] = exact_row(q.data() + (seq * rows + r) * kKvRowDim, values, visible);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < rows; ++r) {
      const size_t row = seq * rows + r;
      const ExactRow& want = exact[r];
      const bool empty = std::isinf(want.lse);
      double dot = 0.0, own = 0.0, norm = 0.0, difference = 0.0;
      int first_wrong = -1;
      for (int d = 0; d < kKvLatentDim; ++d) {
        const double a = to_float(result.out[row * kKvLatentDim + d]);
        const double b = want.out[d];
        dot += a * b;
        own += a * a;
        norm += b * b;
        difference += (a - b) * (a - b);
        if (!(std::fabs(a - b) <= 0.02 * (std::fabs(b) + 0.05)) && first_wrong < 0) first_wrong = d;
      }
      const double cosine = 1.0 - dot / std::sqrt(own * norm);
      const double error = std::sqrt(difference / norm);
      const double lse_error = std::fabs(result.lse[row] - want.lse);
      // FP8's bound is a cosine of 0.9995; with two terms per query and weight only bf16's rounding of the
      // output is left.
      const bool right = empty ? own == 0.0 && result.lse[row] == -std::numeric_limits<float>::infinity()
                               : cosine <= 2e-5 && lse_error <= 1e-3 * std::max(1.0, std::fabs(want.lse));
      if (!empty && std::isfinite(cosine)) {
        worst_cosine = std::max(worst_cosine, cosine);
        worst_lse = std::max(worst_lse, lse_error);
        worst_error = std::max(worst_error, error);
      }
      if (right) continue;
      ++wrong;
      if (++shown > 2) continue;
      const size_t at = row * kKvLatentDim + std::max(first_wrong, 0);
      ADD_FAILURE() << "seq " << seq << " (length " << c.lengths[seq] << ") row " << r << ": 1 - cosine "
                    << cosine << ", error " << error << ", lse " << result.lse[row] << " not " << want.lse
                    << ", first wrong column " << first_wrong << ": " << to_float(result.out[at]) << " not "
                    << want.out[std::max(first_wrong, 0)];
    }
  }
  EXPECT_EQ(wrong, 0) << "rows, of " << num_rows;
  ::testing::Test::RecordProperty("worst_cosine", std::to_string(worst_cosine));
  ::testing::Test::RecordProperty("worst_error", std::to_string(worst_error));
  ::testing::Test::RecordProperty("worst_lse", std::to_string(worst_lse));
}

const std::vector<int> kRagged = {0, 1, 63, 64, 65, 130, 1000, 2, 640, 0};

TEST(MlaSwappedFp8Scales, BothKindsInAPageMatchDoublePrecision) {
  check({.layout = kE4m3Per128, .num_parts = 3, .lengths = kRagged, .mixed_scales = true});
  check({.layout = kE4m3Per128,
         .heads = 32,
         .tile_rows = 32,
         .cluster = 2,
         .lengths = kRagged,
         .mixed_scales = true});
}

class MlaSwappedFp8 : public ::testing::TestWithParam<int> {
 protected:
  static KvLayout layout() { return GetParam() == 0 ? kE4m3PerToken : GetParam() == 1 ? kE4m3Per128 : kE5m2; }
};
TEST_P(MlaSwappedFp8, OnePageMatchesDoublePrecision) {
  check({.layout = layout(), .lengths = {64}});
}
TEST_P(MlaSwappedFp8, PartOfAPageMatchesDoublePrecision) {
  check({.layout = layout(), .lengths = {37}});
}
TEST_P(MlaSwappedFp8, ManyPagesMatchDoublePrecision) {
  check({.layout = layout(), .lengths = {1500}});
}
TEST_P(MlaSwappedFp8, WideTilesMatchDoublePrecision) {
  check({.layout = layout(), .heads = 32, .tile_rows = 32, .lengths = {1500}});
}
TEST_P(MlaSwappedFp8, RaggedBatchMatchesDoublePrecision) {
  check({.layout = layout(), .num_parts = 3, .lengths = kRagged});
  check({.layout = layout(), .num_parts = 24, .lengths = kRagged});
  check({.layout = layout(), .num_parts = 9, .lengths = kRagged, .merge_inside = false});
}
TEST_P(MlaSwappedFp8, SeveralQueriesMatchDoublePrecision) {
  for (bool causal : {true, false}) {
    check({.layout = layout(), .heads = 7, .q_len = 3, .num_parts = 5, .lengths = kRagged, .causal = causal});
    check({.layout = layout(),
           .heads = 8,
           .q_len = 4,
           .tile_rows = 32,
           .num_parts = 5,
           .lengths = kRagged,
           .causal = causal});
  }
}
TEST_P(MlaSwappedFp8, ManyTilesMatchDoublePrecision) {
  check({.layout = layout(), .heads = 128, .tile_rows = 16, .num_parts = 4, .lengths = kRagged});
  check({.layout = layout(), .heads = 100, .tile_rows = 32, .num_parts = 4, .lengths = kRagged});
}
TEST_P(MlaSwappedFp8, ClustersMatchDoublePrecision) {
  for (int cluster : {2, 4, 8, 16}) {
    check({.layout = layout(), .cluster = cluster, .lengths = {1500}});
    check({.layout = layout(), .cluster = cluster, .num_parts = 3, .lengths = kRagged, .settled = true});
    check({.layout = layout(),
           .heads = 30,
           .tile_rows = 32,
           .cluster = cluster,
           .num_parts = 2,
           .lengths = kRagged});
  }
}
TEST_P(MlaSwappedFp8, OneKeyOutweighsALongContext) {
  check({.layout = layout(), .heads = 2, .cluster = 4, .num_parts = 30, .lengths = {131072}}, 77777);
}
INSTANTIATE_TEST_SUITE_P(Layouts, MlaSwappedFp8, ::testing::Values(0, 1, 2), [](const auto& p) {
  return std::string(p.param == 0 ? "E4m3PerToken" : p.param == 1 ? "E4m3Per128" : "E5m2");
});

}  // namespace
}  // namespace hadal::testing
