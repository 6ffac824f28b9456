#include <algorithm>

#include "base/error.h"
#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

constexpr int kQkDim = 192;
constexpr int kValueDim = 128;

// Makes kv_b_proj in one of the weight types.
struct KvB {
  std::vector<float> f32;
  std::vector<bf16> half;
  std::vector<fp8_e4m3> codes;
  std::vector<int8_t> int8_codes;
  std::vector<float> scales;
  MatrixWeight w;

  KvB(int num_heads, WeightType type, Random& random) {
    const int64_t n = num_heads * int64_t{256};
    w = {.type = type, .n = n, .k = kKvLatentDim, .row_stride = kKvLatentDim};
    for (int64_t i = 0; i < n * kKvLatentDim; ++i) {
      const float v = random.normal(0.05F);
      f32.push_back(v);
      half.push_back(to_bf16(v));
      codes.push_back(to_fp8_e4m3(v * 1000.0F));
      int8_codes.push_back(static_cast<int8_t>(std::clamp(v * 1000.0F, -128.0F, 127.0F)));
    }
    for (int64_t i = 0; i < n / 128 * 4; ++i) scales.push_back(0.001F + 0.0001F * static_cast<float>(i % 7));
    w.data = f32.data();
    if (type == WeightType::kBF16) w.data = half.data();
    if (is_block_scaled(type)) {
      w.data = type == WeightType::kFp8Block ? static_cast<const void*>(codes.data()) : int8_codes.data();
      w.scales = scales.data();
      w.scale_stride = 4;
    }
  }
};

// Holds prompts whose last q_len[i] of kv_len[i] tokens are queries.
struct PrefillCase {
  int num_heads = 0;
  std::vector<int> q_len;
  std::vector<int> kv_len;
  PagedCache cache;
  KvB kv_b;
  std::vector<float> q;
  // This is the selection, bits [tokens, selected_stride]; it is empty if there is none.
  std::vector<uint64_t> selected;
  int64_t selected_stride = 0;

  PrefillCase(int heads, std::vector<int> queries, std::vector<int> keys, KvLayout layout, WeightType type,
              uint64_t seed)
      : PrefillCase(heads, std::move(queries), std::move(keys), layout, type, Random(seed)) {}

  int64_t num_tokens() const { return std::accumulate(q_len.begin(), q_len.end(), int64_t{0}); }

  template <typename Kernel>
  void run_segments(Kernel kernel, int num_threads, const std::vector<PrefillSegment>& segments,
                    std::vector<float>& out) {
    const MlaPrefillParams params = {.q = q.data(),
                                     .out = out.data(),
                                     .num_heads = num_heads,
                                     .kv = cache.view(),
                                     .segments = segments.data(),
                                     .num_segments = static_cast<int>(segments.size()),
                                     .kv_b = kv_b.w,
                                     .softmax_scale = 0.115F,
                                     .selected = selected.empty() ? nullptr : selected.data(),
                                     .selected_stride = selected_stride};
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
  }

  // Sets a bit of every row and position where chooses(row, position) says so, whether it is visible or not.
  template <typename Chooses>
  void select(Chooses chooses) {
    selected_stride = (*std::max_element(kv_len.begin(), kv_len.end()) + 63) / 64 + 1;
    selected.assign(num_tokens() * selected_stride, 0);
    for (int64_t row = 0; row < num_tokens(); ++row) {
      for (int64_t s = 0; s < selected_stride * 64; ++s) {
        if (chooses(row, s)) selected[row * selected_stride + s / 64] |= uint64_t{1} << (s % 64);
      }
    }
  }

  // Runs all segments in one call.
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads) {
    std::vector<PrefillSegment> segments;
    int32_t q_begin = 0;
    for (size_t i = 0; i < q_len.size(); ++i) {
      segments.push_back({static_cast<int32_t>(i), q_begin, q_len[i], kv_len[i]});
      q_begin += q_len[i];
    }
    std::vector<float> out(num_tokens() * num_heads * kValueDim, kNan);
    run_segments(kernel, num_threads, segments, out);
    return out;
  }

  // Runs every segment by itself, with at most `chunk` queries per call.
  template <typename Kernel>
  std::vector<float> run_chunked(Kernel kernel, int num_threads, int chunk) {
    std::vector<float> out(num_tokens() * num_heads * kValueDim, kNan);
    int32_t q_begin = 0;
    for (size_t i = 0; i < q_len.size(); ++i) {
      for (int done = 0; done < q_len[i]; done += chunk) {
        const int count = std::min(chunk, q_len[i] - done);
        run_segments(kernel, num_threads,
                     {{static_cast<int32_t>(i), q_begin + done, count, kv_len[i] - q_len[i] + done + count}},
                     out);
      }
      q_begin += q_len[i];
    }
    return out;
  }

 private:
  PrefillCase(int heads, std::vector<int> queries, std::vector<int> keys, KvLayout layout, WeightType type,
              Random random)
      : num_heads(heads),
        q_len(std::move(queries)),
        kv_len(std::move(keys)),
        cache(kv_len, layout, random),
        kv_b(heads, type, random) {
    q = random.normals(num_tokens() * heads * kQkDim, 1.0F);
  }
};

constexpr KvLayout kBf16 = {KvFormat::kBF16, KvScales::kPerToken};

TEST(MlaPrefill, MatchesReferenceOnRaggedBatch) {
  const uint64_t seed = 31;
  SCOPED_TRACE(seed);
  struct Shape {
    int heads;
    std::vector<int> q_len, kv_len;
  };
  const Shape shapes[] = {
      {1, {1, 0, 63, 64, 65, 127, 128, 50}, {1, 40, 63, 64, 65, 127, 128, 1500}},
      {2, {1, 1, 13, 100, 1}, {64, 65, 513, 130, 700}},
      {8, {65, 7}, {65, 129}},
      {16, {3, 20}, {66, 20}},
      {128, {5}, {9}},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.heads);
    PrefillCase c(shape.heads, shape.q_len, shape.kv_len, kBf16, WeightType::kBF16, seed + shape.heads);
    const auto expected = c.run(reference::mla_prefill, 2);
    for_each_target(
        [&] { EXPECT_LE(worst_row_error(c.run(simd::mla_prefill, 2), expected, kValueDim), 1e-5); });
  }
}

TEST(MlaPrefill, ReadsEveryCacheAndWeightFormat) {
  const uint64_t seed = 32;
  SCOPED_TRACE(seed);
  for (const KvLayout& layout : all_layouts()) {
    for (WeightType type :
         {WeightType::kF32, WeightType::kBF16, WeightType::kFp8Block, WeightType::kInt8Block}) {
      SCOPED_TRACE(static_cast<int>(layout.format) * 10 + static_cast<int>(type));
      PrefillCase c(2, {40, 3}, {40, 70}, layout, type, seed);
      const auto expected = c.run(reference::mla_prefill, 2);
      for_each_target(
          [&] { EXPECT_LE(worst_row_error(c.run(simd::mla_prefill, 2), expected, kValueDim), 1e-5); });
    }
  }
}

TEST(MlaPrefill, BitsDoNotDependOnThreadsChunksOrBatch) {
  const uint64_t seed = 33;
  SCOPED_TRACE(seed);
  for (WeightType type : {WeightType::kBF16, WeightType::kFp8Block, WeightType::kInt8Block}) {
    PrefillCase c(2, {700, 33, 129}, {700, 600, 129}, kBf16, type, seed);
    for_each_target([&] {
      if (std::string(simd::target_name()) == "SCALAR")
        return;  // the target is the reference itself, which is too slow for this size
      const auto whole = c.run(simd::mla_prefill, 1);
      EXPECT_TRUE(same_bits(whole, c.run(simd::mla_prefill, 2)));
      EXPECT_TRUE(same_bits(whole, c.run(simd::mla_prefill, 3)));
      EXPECT_TRUE(same_bits(whole, c.run_chunked(simd::mla_prefill, 2, 100)));
      EXPECT_TRUE(same_bits(whole, c.run_chunked(simd::mla_prefill, 2, 37)));
    });
  }
  PrefillCase c(1, {70, 66}, {70, 130}, kBf16, WeightType::kBF16, seed);
  for_each_target(
      [&] { EXPECT_TRUE(same_bits(c.run(simd::mla_prefill, 2), c.run_chunked(simd::mla_prefill, 2, 1))); });
}

TEST(MlaPrefill, ChannelWeightsAreRefused) {
  for (const WeightType type : {WeightType::kFp8Channel, WeightType::kInt8Channel}) {
    PrefillCase c(1, {2}, {2}, kBf16, WeightType::kFp8Block, 35);
    c.kv_b.w.type = type;
    EXPECT_THROW(c.run(simd::mla_prefill, 1), Error);
    EXPECT_THROW(c.run(reference::mla_prefill, 1), Error);
  }
}

// Sums over the head's 128 rows of W_UK (half 0) or W_UV (half 1), in double.
double weight_at(const KvB& kv_b, int64_t head, int64_t half, int64_t row, int64_t k) {
  return kv_b.f32[(head * 256 + half * 128 + row) * kKvLatentDim + k];
}

// The absorbed path (decode) and the un-absorbed one (prefill) compute the same attention: both are compared
// with plain double-precision sums over explicit keys and values.
TEST(MlaPrefill, AgreesWithDecodeAndWithDoubles) {
  const uint64_t seed = 34;
  SCOPED_TRACE(seed);
  constexpr int kHeads = 3;
  constexpr int kKeys = 150;
  PrefillCase c(kHeads, {1}, {kKeys}, kBf16, WeightType::kF32, seed);
  const auto prefill = c.run(simd::mla_prefill, 2);

  std::vector<float> records(kKeys * kKvRowDim);
  for (int s = 0; s < kKeys; ++s) {
    reference::read_record(reference::record_address(c.cache.view(), 0, s), kBf16, &records[s * kKvRowDim]);
  }
  std::vector<float> oracle(kHeads * kValueDim);
  std::vector<float> absorbed_q(kHeads * kKvRowDim);
  for (int h = 0; h < kHeads; ++h) {
    const float* q = c.q.data() + h * kQkDim;
    std::vector<double> p(kKeys);
    double peak = -1e300;
    for (int s = 0; s < kKeys; ++s) {
      const float* record = &records[s * kKvRowDim];
      double score = 0.0;
      for (int d = 0; d < 128; ++d) {
        double key = 0.0;
        for (int k = 0; k < kKvLatentDim; ++k) key += weight_at(c.kv_b, h, 0, d, k) * record[k];
        score += q[d] * key;
      }
      for (int d = 0; d < kKvRopeDim; ++d)
        score += static_cast<double>(q[128 + d]) * record[kKvLatentDim + d];
      p[s] = score * 0.115;
      peak = std::max(peak, p[s]);
    }
    double sum = 0.0;
    for (double& v : p) sum += v = std::exp(v - peak);
    for (int d = 0; d < kValueDim; ++d) {
      double total = 0.0;
      for (int s = 0; s < kKeys; ++s) {
        double value = 0.0;
        for (int k = 0; k < kKvLatentDim; ++k)
          value += weight_at(c.kv_b, h, 1, d, k) * records[s * kKvRowDim + k];
        total += p[s] / sum * value;
      }
      oracle[h * kValueDim + d] = static_cast<float>(total);
    }
    for (int k = 0; k < kKvLatentDim; ++k) {
      double total = 0.0;
      for (int d = 0; d < 128; ++d) total += q[d] * weight_at(c.kv_b, h, 0, d, k);
      absorbed_q[h * kKvRowDim + k] = static_cast<float>(total);
    }
    std::copy_n(q + 128, kKvRopeDim, &absorbed_q[h * kKvRowDim + kKvLatentDim]);
  }
  EXPECT_LE(worst_row_error(prefill, oracle, kValueDim), 1e-4);

  std::vector<float> latent(kHeads * kKvLatentDim, kNan);
  const int32_t seq_idx = 0;
  const int32_t kv_len = kKeys;
  const MlaDecodeParams params = {.q = absorbed_q.data(),
                                  .out = latent.data(),
                                  .num_tokens = 1,
                                  .num_heads = kHeads,
                                  .kv = c.cache.view(),
                                  .seq_idx = &seq_idx,
                                  .kv_len = &kv_len,
                                  .softmax_scale = 0.115F};
  run_on(2, [&](Context& ctx) { simd::mla_decode(params, ctx); });
  std::vector<float> decode(kHeads * kValueDim);
  for (int h = 0; h < kHeads; ++h) {
    for (int d = 0; d < kValueDim; ++d) {
      double total = 0.0;
      for (int k = 0; k < kKvLatentDim; ++k)
        total += weight_at(c.kv_b, h, 1, d, k) * latent[h * kKvLatentDim + k];
      decode[h * kValueDim + d] = static_cast<float>(total);
    }
  }
  EXPECT_LE(worst_row_error(decode, oracle, kValueDim), 1e-4);
  EXPECT_LE(worst_row_error(decode, prefill, kValueDim), 1e-4);
}

// The bits beyond the keys that are visible to a row are set as well, and are ignored.
TEST(MlaPrefillSelected, SelectionOfEverythingHasTheBitsOfNone) {
  const uint64_t seed = 36;
  SCOPED_TRACE(seed);
  for (const KvLayout& layout : {kBf16, {KvFormat::kFp8E4M3, KvScales::kPer128}}) {
    SCOPED_TRACE(static_cast<int>(layout.format));
    PrefillCase c(2, {70, 1, 20, 0, 5}, {70, 64, 65, 10, 200}, layout, WeightType::kBF16, seed);
    PrefillCase all = c;
    all.select([](int64_t, int64_t) { return true; });
    EXPECT_TRUE(same_bits(all.run(reference::mla_prefill, 2), c.run(reference::mla_prefill, 2)));
    for_each_target(
        [&] { EXPECT_TRUE(same_bits(all.run(simd::mla_prefill, 2), c.run(simd::mla_prefill, 2))); });
  }
}

// Row r selects about a third of its keys and nothing of page r mod 4, and nothing at all before page r mod
// 3. The last key that is visible to a row is always selected.
bool chooses_some(int64_t row, int64_t position) {
  const int64_t page = position / kPageSize;
  if (page % 4 == row % 4 && position % 64 != 5) return position % 977 == row;
  return page >= row % 3 && (position * 2654435761 + row * 40503) / 64 % 3 == 0;
}

struct SelectedShape {
  int heads;
  std::vector<int> q_len, kv_len;
};

// Row r of segment i is its token q_begin + r, to which its own position is visible.
void select_some(PrefillCase& c) {
  std::vector<int64_t> own;
  for (size_t i = 0; i < c.q_len.size(); ++i) {
    for (int j = 0; j < c.q_len[i]; ++j) own.push_back(c.kv_len[i] - c.q_len[i] + j);
  }
  c.select(
      [&](int64_t row, int64_t position) { return position == own[row] || chooses_some(row, position); });
}

TEST(MlaPrefillSelected, MatchesReferenceOnRaggedBatch) {
  const uint64_t seed = 37;
  SCOPED_TRACE(seed);
  const SelectedShape shapes[] = {
      {1, {1, 0, 63, 65, 128, 50}, {1, 40, 63, 65, 200, 600}},
      {2, {1, 13}, {64, 300}},
      {17, {3}, {66}},
      {128, {2}, {66}},
  };
  for (const SelectedShape& shape : shapes) {
    SCOPED_TRACE(shape.heads);
    PrefillCase c(shape.heads, shape.q_len, shape.kv_len, kBf16, WeightType::kBF16, seed + shape.heads);
    select_some(c);
    const auto expected = c.run(reference::mla_prefill, 2);
    for_each_target(
        [&] { EXPECT_LE(worst_row_error(c.run(simd::mla_prefill, 2), expected, kValueDim), 1e-5); });
  }
}

TEST(MlaPrefillSelected, ReadsEveryCacheFormat) {
  const uint64_t seed = 38;
  SCOPED_TRACE(seed);
  for (const KvLayout& layout : all_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout.format));
    PrefillCase c(2, {40, 3}, {140, 70}, layout, WeightType::kFp8Block, seed);
    select_some(c);
    const auto expected = c.run(reference::mla_prefill, 2);
    for_each_target(
        [&] { EXPECT_LE(worst_row_error(c.run(simd::mla_prefill, 2), expected, kValueDim), 1e-5); });
  }
}

// A row that selects one key has that key's value, so the reference's use of the mask needs no other oracle.
TEST(MlaPrefillSelected, RowsOfOneKeyHaveItsValue) {
  const uint64_t seed = 39;
  SCOPED_TRACE(seed);
  constexpr int kKeys = 150;
  PrefillCase c(2, {kKeys}, {kKeys}, kBf16, WeightType::kF32, seed);
  const auto key_of = [](int64_t row) { return row * 7 % (row + 1); };
  c.select([&](int64_t row, int64_t position) { return position == key_of(row); });
  const auto naive = c.run(reference::mla_prefill, 2);
  const auto fast = c.run(simd::mla_prefill, 2);
  for (int64_t row = 0; row < kKeys; row += 9) {
    float record[kKvRowDim];
    reference::read_record(reference::record_address(c.cache.view(), 0, key_of(row)), kBf16, record);
    std::vector<float> value(2 * kValueDim);
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < kValueDim; ++d) {
        double sum = 0.0;
        for (int k = 0; k < kKvLatentDim; ++k) sum += weight_at(c.kv_b, h, 1, d, k) * record[k];
        value[h * kValueDim + d] = static_cast<float>(sum);
      }
    }
    const auto rows_of = [&](const std::vector<float>& out) {
      return std::vector<float>(out.begin() + row * 2 * kValueDim, out.begin() + (row + 1) * 2 * kValueDim);
    };
    EXPECT_LE(worst_row_error(rows_of(naive), value, kValueDim), 1e-5);
    EXPECT_LE(worst_row_error(rows_of(fast), value, kValueDim), 1e-5);
  }
}

TEST(MlaPrefillSelected, RowsWithoutAKeyAreZero) {
  const uint64_t seed = 40;
  SCOPED_TRACE(seed);
  PrefillCase c(1, {80}, {200}, kBf16, WeightType::kBF16, seed);
  c.select([](int64_t row, int64_t) { return row % 2 == 1; });
  const auto expected = c.run(reference::mla_prefill, 2);
  for_each_target([&] {
    const auto out = c.run(simd::mla_prefill, 2);
    EXPECT_LE(worst_row_error(out, expected, kValueDim), 1e-5);
    for (int i = 0; i < kValueDim; ++i) EXPECT_EQ(out[i], 0.0F);
  });
}

TEST(MlaPrefillSelected, BitsDoNotDependOnThreadsBatchOrChunk) {
  const uint64_t seed = 41;
  SCOPED_TRACE(seed);
  PrefillCase c(1, {100, 9, 20}, {100, 333, 150}, kBf16, WeightType::kBF16, seed);
  select_some(c);
  for_each_target([&] {
    const auto together = c.run(simd::mla_prefill, 1);
    EXPECT_TRUE(same_bits(together, c.run(simd::mla_prefill, 3)));
    for (int chunk : {9, 64, 1000}) {
      SCOPED_TRACE(chunk);
      EXPECT_TRUE(same_bits(together, c.run_chunked(simd::mla_prefill, 2, chunk)));
    }
  });
}

}  // namespace
}  // namespace hadal::cpu
