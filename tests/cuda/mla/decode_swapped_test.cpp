// Compares the swapped decode kernel, on plans made by hand, with the plain kernel: any cluster size,
// sequences cut at odd places, and both row tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "tests/cuda/device_array.h"
#include "tests/cuda/mla/decode_swapped_case.h"

namespace hadal::testing {
namespace {

constexpr uint64_t kSeed = 20261122;
constexpr float kScale = 0.1147F;

using Case = SwappedCase;

bool is_f16(const Case& c) {
  return c.layout.format == KvFormat::kF16;
}

struct Result {
  std::vector<uint16_t> out;
  std::vector<float> lse;
};

class Batch {
 public:
  explicit Batch(const Case& c) : case_(c), rows_(c.rows()) {
    std::mt19937_64 random(kSeed + c.heads * 100 + c.q_len);
    const auto num_seqs = static_cast<int64_t>(c.lengths.size());
    int64_t num_pages = 3;
    for (int length : c.lengths) {
      const int64_t pages = (length + kPageSize - 1) / kPageSize;
      stride_ = std::max(stride_, pages + 3);
      num_pages += pages;
    }
    std::vector<int32_t> ids(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    std::vector<int32_t> table;
    for (int64_t i = 0; i < num_seqs * stride_; ++i)
      table.push_back(i % 2 == 0 ? std::numeric_limits<int32_t>::max() : -123456789);
    // Unused records are NaN in both types.
    std::vector<uint16_t> pool(num_pages * kPageSize * c.heads_kv * kKvRowDim, 0xffff);
    std::normal_distribution<float> normal;
    size_t used = 0;
    for (int64_t seq = 0; seq < num_seqs; ++seq) {
      const int64_t row = num_seqs - 1 - seq;
      seq_idx_.push_back(static_cast<int32_t>(row));
      for (int key = 0; key < c.lengths[seq]; ++key) {
        if (key % kPageSize == 0) table[row * stride_ + key / kPageSize] = ids[used++];
        const int64_t page = table[row * stride_ + key / kPageSize];
        uint16_t* record =
            pool.data() + ((page * kPageSize + key % kPageSize) * c.heads_kv + c.heads_kv - 1) * kKvRowDim;
        const float sigma = 0.5F + 0.01F * static_cast<float>(key % 100);
        for (int i = 0; i < kKvRowDim; ++i) record[i] = value(normal(random) * sigma);
      }
    }
    std::vector<uint16_t> q(num_seqs * rows_ * kKvRowDim);
    for (uint16_t& v : q) v = value(normal(random) * 0.3F);
    pool_ = DeviceArray<uint16_t>(pool);
    table_ = DeviceArray<int32_t>(table);
    q_ = DeviceArray<uint16_t>(q);
    device_seq_idx_ = DeviceArray<int32_t>(seq_idx_);
    kv_len_ = DeviceArray<int32_t>(std::vector<int32_t>(c.lengths.begin(), c.lengths.end()));
  }

  int64_t num_rows() const { return static_cast<int64_t>(case_.lengths.size()) * rows_; }

  Result plain() const {
    DeviceArray<uint16_t> out(num_rows() * kKvLatentDim);
    DeviceArray<float> lse(num_rows());
    cuda::DeviceDecodeParams p;
    p.shape = {.num_seqs = static_cast<int64_t>(case_.lengths.size()),
               .q_len = case_.q_len,
               .num_heads = case_.heads,
               .layout = case_.layout};
    p.q = q_.data();
    p.out = out.data();
    p.lse = lse.data();
    p.kv = {.pool = pool(),
            .layout = case_.layout,
            .page_table = table_.data(),
            .page_table_stride = stride_,
            .record_stride = record_stride(),
            .page_stride = record_stride() * kPageSize};
    p.seq_idx = device_seq_idx_.data();
    p.kv_len = kv_len_.data();
    p.softmax_scale = kScale;
    p.causal = case_.causal;
    cuda::reference::mla_decode(p, {.stream = test_stream().handle()});
    test_stream().synchronize();
    return {out.download(), lse.download()};
  }

  // Runs the tuned kernel `calls` times into the same poisoned outputs; every call must leave the plan as it
  // was.
  Result tuned(int calls = 1) const {
    SwappedLaunch<uint16_t> launch(case_, kScale);
    launch.args.q = q_.data();
    launch.args.pool = pool();
    launch.args.record_stride = record_stride();
    launch.args.page_stride = record_stride() * kPageSize;
    launch.args.page_table = table_.data();
    launch.args.page_table_stride = stride_;
    launch.args.seq_idx = device_seq_idx_.data();
    for (int i = 0; i < calls; ++i) launch.run();
    return {launch.out.download(), launch.lse.download()};
  }

 private:
  uint16_t value(float v) const { return is_f16(case_) ? to_f16(v).bits : to_bf16(v).bits; }
  int64_t record_stride() const { return int64_t{kKvRowDim} * 2 * case_.heads_kv; }
  const std::byte* pool() const {
    return reinterpret_cast<const std::byte*>(pool_.data() + (case_.heads_kv - 1) * kKvRowDim);
  }

  Case case_;
  int rows_;
  int64_t stride_ = 0;
  std::vector<int32_t> seq_idx_;
  DeviceArray<uint16_t> pool_;
  DeviceArray<int32_t> table_;
  DeviceArray<uint16_t> q_;
  DeviceArray<int32_t> device_seq_idx_;
  DeviceArray<int32_t> kv_len_;
};

double value_of(const Case& c, uint16_t bits) {
  return is_f16(c) ? to_float(f16{bits}) : to_float(bf16{bits});
}

// Reports the first wrong rows, and shows the wrong columns of the first one.
void expect_near(const Case& c, const Result& result, const Result& expected) {
  int shown = 0;
  double worst = 0.0;
  const int rows = c.heads * c.q_len;
  int wrong = 0;
  for (size_t row = 0; row < expected.lse.size(); ++row) {
    double difference = 0.0;
    double norm = 0.0;
    int wrong_columns = 0;
    int first_wrong = -1;
    for (int d = 0; d < kKvLatentDim; ++d) {
      const double a = value_of(c, result.out[row * kKvLatentDim + d]);
      const double b = value_of(c, expected.out[row * kKvLatentDim + d]);
      difference += (a - b) * (a - b);
      norm += b * b;
      if (!(std::fabs(a - b) <= 0.02 * (std::fabs(b) + 0.02))) {
        if (first_wrong < 0) first_wrong = d;
        ++wrong_columns;
      }
    }
    const double error = norm > 0.0 ? std::sqrt(difference / norm) : difference > 0.0 ? 1e30 : 0.0;
    const float lse = result.lse[row];
    const bool lse_wrong = lse != expected.lse[row] && !(std::fabs(lse - expected.lse[row]) <= 1e-3F);
    if (error <= 6e-3 && !lse_wrong) {
      worst = std::max(worst, error);
      continue;
    }
    ++wrong;
    if (++shown > 3) continue;
    ADD_FAILURE() << describe(c) << "\n  seq " << row / rows << " (length " << c.lengths[row / rows]
                  << ") row " << row % rows << ": error " << error << ", lse " << lse << " not "
                  << expected.lse[row] << ", " << wrong_columns << " columns wrong from " << first_wrong
                  << " on: "
                  << (first_wrong < 0 ? 0.0 : value_of(c, result.out[row * kKvLatentDim + first_wrong]))
                  << " not "
                  << (first_wrong < 0 ? 0.0 : value_of(c, expected.out[row * kKvLatentDim + first_wrong]));
  }
  if (wrong > 0) ADD_FAILURE() << wrong << " of " << expected.lse.size() << " rows wrong, seed " << kSeed;
  ::testing::Test::RecordProperty("worst", std::to_string(worst));
}

void check(const Case& c) {
  SCOPED_TRACE(describe(c));
  const Batch batch(c);
  const Result expected = batch.plain();
  const Result first = batch.tuned();
  expect_near(c, first, expected);
  const Result again = batch.tuned(3);
  EXPECT_EQ(0, std::memcmp(first.out.data(), again.out.data(), first.out.size() * 2)) << "three more runs";
  EXPECT_EQ(0, std::memcmp(first.lse.data(), again.lse.data(), first.lse.size() * 4)) << "three more runs";
}

const std::vector<int> kRagged = {0, 1, 63, 64, 65, 130, 1000, 2, 640, 0};

TEST(MlaSwapped, OnePageMatchesThePlainKernel) {
  check({.lengths = {64}});
}
TEST(MlaSwapped, PartOfAPageMatchesThePlainKernel) {
  check({.lengths = {37}});
}
TEST(MlaSwapped, TwoPagesMatchThePlainKernel) {
  check({.lengths = {128}});
}
TEST(MlaSwapped, ManyPagesMatchThePlainKernel) {
  check({.lengths = {1500}});
}
TEST(MlaSwapped, Float16MatchesThePlainKernel) {
  check({.layout = {KvFormat::kF16}, .lengths = {1500}});
}
TEST(MlaSwapped, WideTilesMatchThePlainKernel) {
  check({.heads = 32, .tile_rows = 32, .lengths = {1500}});
}
TEST(MlaSwapped, RaggedBatchMatchesThePlainKernel) {
  check({.num_parts = 3, .lengths = kRagged});
}
TEST(MlaSwapped, RaggedBatchInManyPartsMatchesThePlainKernel) {
  check({.num_parts = 24, .lengths = kRagged});
}
TEST(MlaSwapped, MergeKernelJoinsSplits) {
  check({.num_parts = 9, .lengths = kRagged, .merge_inside = false});
}
TEST(MlaSwapped, SeveralQueriesMatchThePlainKernel) {
  for (bool causal : {true, false}) {
    check({.heads = 7, .q_len = 3, .num_parts = 5, .lengths = kRagged, .causal = causal});
    check({.heads = 8, .q_len = 4, .tile_rows = 32, .num_parts = 5, .lengths = kRagged, .causal = causal});
  }
}
TEST(MlaSwapped, ManyTilesMatchThePlainKernel) {
  check({.heads = 128, .tile_rows = 16, .num_parts = 4, .lengths = kRagged});
  check({.heads = 100, .tile_rows = 32, .num_parts = 4, .lengths = kRagged});
}
TEST(MlaSwapped, StridedRecordsMatchThePlainKernel) {
  check({.heads = 3, .num_parts = 2, .lengths = kRagged, .heads_kv = 3});
}
TEST(MlaSwapped, SettledInputsMatchThePlainKernel) {
  check({.num_parts = 3, .lengths = kRagged, .settled = true});
}

class MlaSwappedClusters : public ::testing::TestWithParam<int> {};
TEST_P(MlaSwappedClusters, OneSequenceMatchesThePlainKernel) {
  check({.cluster = GetParam(), .lengths = {1024}});
  check({.cluster = GetParam(), .lengths = {1500}});
}
TEST_P(MlaSwappedClusters, FewPagesMatchThePlainKernel) {
  check({.cluster = GetParam(), .lengths = {100}});
}
TEST_P(MlaSwappedClusters, RaggedBatchMatchesThePlainKernel) {
  check({.cluster = GetParam(), .num_parts = 1, .lengths = kRagged});
  check({.cluster = GetParam(), .num_parts = 3, .lengths = kRagged});
}
TEST_P(MlaSwappedClusters, WideTilesMatchThePlainKernel) {
  check({.heads = 30, .tile_rows = 32, .cluster = GetParam(), .num_parts = 2, .lengths = kRagged});
}
TEST_P(MlaSwappedClusters, ManyTilesOfTwoQueriesMatchThePlainKernel) {
  check({.layout = {KvFormat::kF16},
         .heads = 20,
         .q_len = 2,
         .cluster = GetParam(),
         .num_parts = 2,
         .lengths = kRagged,
         .settled = true});
}
// Pieces of all lengths follow each other in a ring that holds little more than a page.
TEST_P(MlaSwappedClusters, ManySequencesInWideTilesMatchThePlainKernel) {
  std::mt19937_64 random(kSeed);
  std::vector<int> lengths(48);
  for (int& length : lengths) length = static_cast<int>(random() % 900);
  for (int num_parts : {1, 96 / GetParam()}) {
    check({.heads = 32, .tile_rows = 32, .cluster = GetParam(), .num_parts = num_parts, .lengths = lengths});
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, MlaSwappedClusters, ::testing::Values(2, 4, 8, 16),
                         [](const auto& given) { return std::to_string(given.param); });

}  // namespace
}  // namespace hadal::testing
