// Compares MLA decode by FP8 products (64 rows per tile) with the same math in double precision, over the
// records as they are stored and the queries as the kernel quantises them. The tolerances allow for the error
// of weights with three significant bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>

#include "kernels/cuda/mla/decode/decode.h"
#include "tests/cuda/mla/decode_fixture.h"

namespace hadal::testing {
namespace {

constexpr uint64_t kSeed = 20261122;
constexpr double kMinCosine = 0.9995;  // of a batch
constexpr double kMinRowCosine = 0.998;
constexpr double kMaxLseError = 2e-3;  // of max(1, the value): sums of 128 products keep 14 bits

const KvLayout kE4m3{KvFormat::kFp8E4M3, KvScales::kPerToken};
const KvLayout kE5m2{KvFormat::kFp8E5M2, KvScales::kPerToken};
const KvLayout kLayouts[] = {kE4m3, kE5m2};

struct Options {
  int split_pages = 0;
  bool causal = true;
  bool settled = false;
};

// Runs FP8 products for any number of rows, whatever kernel the op would choose.
DecodeResult run_fp8(const DecodeCache& cache, const DecodeBatch& batch, const Options& options = {}) {
  const cuda::MlaPlanShape shape = batch.shape(options.split_pages);
  const cuda::DecodeGeometry geometry = cuda::decode_geometry(shape, {cuda::DecodeKernel::kTilesFp8, 64, 1},
                                                              cuda::full_capacity(shape.num_sms));
  const DeviceArray<bf16> q(batch.q);
  const DeviceArray<int32_t> seq_idx(std::vector<int32_t>(batch.seq_idx.begin(), batch.seq_idx.end()));
  const DeviceArray<int32_t> kv_len(std::vector<int32_t>(batch.kv_len.begin(), batch.kv_len.end()));
  const DeviceArray<std::byte> plan(cuda::decode_plan_bytes(geometry));
  const DeviceArray<std::byte> scratch(cuda::decode_scratch_bytes(geometry));
  const DeviceArray<bf16> out(batch.num_rows() * kKvLatentDim);
  const DeviceArray<float> lse(batch.num_rows());
  const cuda::Launch launch{.stream = test_stream().handle(), .num_sms = shape.num_sms};
  const cuda::DevicePagedKv kv = cache.device();
  auto* partial = reinterpret_cast<float*>(scratch.data());
  const cuda::DecodeArgs args{
      .q = q.data(),
      .out = out.data(),
      .lse = lse.data(),
      .pool = kv.pool,
      .record_stride = kv.layout.row_bytes(),
      .page_stride = kv.layout.page_bytes(),
      .page_table = kv.page_table,
      .page_table_stride = kv.page_table_stride,
      .seq_idx = seq_idx.data(),
      .kv_len = kv_len.data(),
      .plan = cuda::decode_plan_view(geometry, plan.data()),
      .partial_out = partial,
      .partial_lse = partial + geometry.max_slots * geometry.rows * kKvLatentDim,
      .num_seqs = static_cast<int>(shape.num_seqs),
      .num_heads = shape.num_heads,
      .q_len = shape.q_len,
      .rows = geometry.rows,
      .num_tiles = geometry.num_tiles,
      .scale_log2 = kDecodeScale * 1.4426950408889634F,
      .causal = options.causal,
      .settled = options.settled,
  };
  cuda::mla_decode_plan(geometry, kv_len.data(), plan.data(), launch);
  if (options.settled) test_stream().synchronize();  // the plan is one of the settled inputs
  const auto decode = kv.layout.format == KvFormat::kFp8E4M3
                          ? cuda::mla_decode_fp8_products<KvFormat::kFp8E4M3, false>
                          : cuda::mla_decode_fp8_products<KvFormat::kFp8E5M2, false>;
  decode(args, geometry, launch);
  cuda::mla_merge(args, geometry, launch);
  test_stream().synchronize();
  return {out.download(), lse.download()};
}

// Returns a row's query as the kernel multiplies it.
std::vector<double> quantised(const bf16* q, const KvLayout& layout) {
  const bool is_e4m3 = layout.format == KvFormat::kFp8E4M3;
  float amax = 0.0F;
  for (int i = 0; i < (is_e4m3 ? kKvLatentDim : kKvRowDim); ++i)
    amax = std::max(amax, std::fabs(to_float(q[i])));
  float scale = amax == 0.0F ? 1.0F : std::exp2(std::ceil(std::log2(amax / 448.0F)));
  std::vector<double> values(kKvRowDim);
  for (int i = 0; i < kKvRowDim; ++i) {
    const float value = to_float(q[i]);
    values[i] = is_e4m3 && i >= kKvLatentDim ? value : to_float(to_fp8_e4m3(value / scale)) * double{scale};
  }
  return values;
}

struct Accuracy {
  double cosine = 1.0, row_cosine = 1.0, lse = 0.0, unquantised_cosine = 1.0;
  int64_t row = -1, lse_row = -1;
  bool finite = true;
};

// Computes the accuracy over every `stride`-th row.
Accuracy accuracy(DecodeCache& cache, const DecodeBatch& batch, const DecodeResult& result,
                  bool causal = true, int stride = 1) {
  Accuracy worst;
  const int64_t per_sequence = int64_t{batch.q_len} * batch.heads;
  double sums[2][3] = {};
  std::vector<float> records;
  for (size_t seq = 0; seq < batch.seq_idx.size(); ++seq) {
    const int length = batch.kv_len[seq];
    records.resize(int64_t{length} * kKvRowDim);
    for (int s = 0; s < length; ++s) {
      cpu::reference::read_record(cpu::reference::record_address(cache.host(), batch.seq_idx[seq], s),
                                  cache.layout, records.data() + int64_t{s} * kKvRowDim);
    }
    for (int64_t r = static_cast<int64_t>(seq) % stride; r < per_sequence; r += stride) {
      const int64_t row = static_cast<int64_t>(seq) * per_sequence + r;
      const int keys = causal ? length - batch.q_len + 1 + static_cast<int>(r / batch.heads) : length;
      const bf16* q = batch.q.data() + row * kKvRowDim;
      for (const bool is_quantised : {true, false}) {
        std::vector<double> query(kKvRowDim);
        for (int i = 0; i < kKvRowDim; ++i) query[i] = to_float(q[i]);
        if (is_quantised) query = quantised(q, cache.layout);
        std::vector<double> scores(std::max(keys, 0));
        for (int s = 0; s < keys; ++s) {
          const float* record = records.data() + int64_t{s} * kKvRowDim;
          double dot = 0.0;
          for (int i = 0; i < kKvRowDim; ++i) dot += query[i] * record[i];
          scores[s] = dot * double{kDecodeScale};
        }
        double top = -std::numeric_limits<double>::infinity();
        for (const double score : scores) top = std::max(top, score);
        double total = 0.0;
        std::vector<double> out(kKvLatentDim);
        for (int s = 0; s < keys; ++s) {
          const double weight = std::exp(scores[s] - top);
          total += weight;
          for (int i = 0; i < kKvLatentDim; ++i) out[i] += weight * records[int64_t{s} * kKvRowDim + i];
        }
        const double lse = keys > 0 ? top + std::log(total) : -std::numeric_limits<double>::infinity();
        double xy = 0.0, xx = 0.0, yy = 0.0;
        for (int i = 0; i < kKvLatentDim; ++i) {
          const double x = to_float(result.out[row * kKvLatentDim + i]);
          const double y = keys > 0 ? out[i] / total : 0.0;
          xy += x * y;
          xx += x * x;
          yy += y * y;
        }
        const int kind = is_quantised ? 0 : 1;
        sums[kind][0] += xy;
        sums[kind][1] += xx;
        sums[kind][2] += yy;
        if (!is_quantised) continue;
        if (!std::isfinite(xx)) worst.finite = false;
        const double cosine = yy == 0.0 ? (xx == 0.0 ? 1.0 : 0.0) : 2.0 * xy / (xx + yy);
        if (!(cosine >= worst.row_cosine)) {
          worst.row_cosine = cosine;
          worst.row = row;
        }
        const double found = result.lse[row];
        const double error = found == lse ? 0.0 : std::fabs(found - lse) / std::max(1.0, std::fabs(lse));
        if (!(error <= worst.lse)) {
          worst.lse = error;
          worst.lse_row = row;
        }
      }
    }
  }
  const auto cosine = [](const double(&s)[3]) {
    return s[1] + s[2] == 0.0 ? 1.0 : 2.0 * s[0] / (s[1] + s[2]);
  };
  worst.cosine = cosine(sums[0]);
  worst.unquantised_cosine = cosine(sums[1]);
  return worst;
}

void expect_accurate(DecodeCache& cache, const DecodeBatch& batch, const DecodeResult& result,
                     bool causal = true, int stride = 1) {
  const Accuracy a = accuracy(cache, batch, result, causal, stride);
  const std::string facts = "cosine " + std::to_string(a.cosine) + ", worst row " + std::to_string(a.row) +
                            " with " + std::to_string(a.row_cosine) + ", lse off by " +
                            std::to_string(a.lse) + " at row " + std::to_string(a.lse_row) +
                            ", cosine to unquantised queries " + std::to_string(a.unquantised_cosine) +
                            "; seed " + std::to_string(kSeed);
  std::printf("  %s\n", facts.c_str());
  EXPECT_TRUE(a.finite) << facts;
  EXPECT_GE(a.cosine, kMinCosine) << facts;
  EXPECT_GE(a.row_cosine, kMinRowCosine) << facts;
  EXPECT_LE(a.lse, kMaxLseError) << facts;
}

bool same_bits(const DecodeResult& a, const DecodeResult& b) {
  return std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(bf16)) == 0 &&
         std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0;
}

std::vector<int> all_rows(const DecodeCache& cache) {
  std::vector<int> rows(cache.lengths.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int>(rows.size() - 1 - i);
  return rows;
}

using Case = std::tuple<int, int, int>;  // layout, heads, q_len
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(std::get<0>(info.param) == 0 ? "E4m3" : "E5m2") + "H" +
         std::to_string(std::get<1>(info.param)) + "Q" + std::to_string(std::get<2>(info.param));
}
class MlaDecodeFp8 : public ::testing::TestWithParam<Case> {};

TEST_P(MlaDecodeFp8, MatchesDoublePrecisionOnShortRaggedBatch) {
  const auto [layout, heads, q_len] = GetParam();
  DecodeCache cache({0, 1, 63, 64, 65, 130, 2, 257}, kLayouts[layout], kSeed);
  const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads);
  expect_accurate(cache, batch, run_fp8(cache, batch));
}

TEST_P(MlaDecodeFp8, MatchesDoublePrecisionOnLongRaggedBatch) {
  const auto [layout, heads, q_len] = GetParam();
  DecodeCache cache({1000, 0, 4097, 1, 640, 129}, kLayouts[layout], kSeed + 1);
  const DecodeBatch batch(cache, all_rows(cache), heads, q_len, kSeed + heads);
  const DecodeResult result = run_fp8(cache, batch);
  expect_accurate(cache, batch, result, true, 13);
  EXPECT_TRUE(same_bits(result, run_fp8(cache, batch, {.settled = true})));
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlaDecodeFp8,
                         ::testing::Values(Case{0, 64, 1}, Case{0, 128, 1}, Case{0, 128, 2}, Case{0, 48, 1},
                                           Case{0, 100, 3}, Case{0, 16, 8}, Case{1, 64, 1}, Case{1, 128, 2},
                                           Case{1, 48, 5}),
                         case_name);

TEST(MlaDecodeFp8Batch, QueriesThatSeeAllKeysMatchDoublePrecision) {
  for (const KvLayout& layout : kLayouts) {
    DecodeCache cache({3, 64, 200, 1}, layout, kSeed + 2);
    const DecodeBatch batch(cache, all_rows(cache), 128, 3, kSeed);
    expect_accurate(cache, batch, run_fp8(cache, batch, {.causal = false}), false);
  }
}

// With fixed splits a sequence has the same bits alone and in a batch.
TEST(MlaDecodeFp8Batch, FixedSplitsDoNotDependOnNeighbours) {
  DecodeCache cache({1500, 700, 64, 3000}, kE4m3, kSeed + 3);
  const DecodeBatch all(cache, {0, 1, 2, 3}, 128, 1, kSeed);
  const DecodeResult together = run_fp8(cache, all, {.split_pages = 4});
  const int64_t row_values = int64_t{128} * kKvLatentDim;
  for (int seq = 0; seq < 4; ++seq) {
    DecodeBatch alone(cache, {seq}, 128, 1, kSeed);
    alone.q.assign(all.q.begin() + seq * 128 * kKvRowDim, all.q.begin() + (seq + 1) * 128 * kKvRowDim);
    const DecodeResult single = run_fp8(cache, alone, {.split_pages = 4});
    EXPECT_EQ(std::memcmp(single.out.data(), together.out.data() + seq * row_values, row_values * 2), 0)
        << seq;
  }
}

// With many sequences per part, the ring, the queries and the hand-overs continue from piece to piece.
TEST(MlaDecodeFp8Batch, ManySequencesPerPartMatchDoublePrecision) {
  for (const KvLayout& layout : kLayouts) {
    std::vector<int> lengths;
    for (int i = 0; i < 300; ++i) lengths.push_back(i * 37 % 200);
    DecodeCache cache(lengths, layout, kSeed + 4);
    const DecodeBatch batch(cache, all_rows(cache), 64, 2, kSeed);
    const DecodeResult result = run_fp8(cache, batch);
    expect_accurate(cache, batch, result, true, 11);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(result, run_fp8(cache, batch))) << "run " << i;
  }
}

}  // namespace
}  // namespace hadal::testing
