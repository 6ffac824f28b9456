#include <bit>

#include "base/fp8_table.h"
#include "tests/kernels/indexer_fixture.h"

namespace hadal::cpu {
namespace {

constexpr int kDim = kIndexHeadDim;
constexpr int kPositions = 500;

// Returns a table of cosines and sines [kPositions, 64] whose frequencies differ.
std::vector<float> rope_table() {
  std::vector<float> table(kPositions * 64);
  for (int position = 0; position < kPositions; ++position) {
    for (int i = 0; i < 32; ++i) {
      const double angle = position * std::pow(10000.0, -i / 32.0);
      table[position * 64 + i] = static_cast<float>(std::cos(angle));
      table[position * 64 + 32 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

// Returns rope by halves and the Hadamard matrix of values [128], in double and by definition.
std::vector<double> rotated(std::vector<double> values, const float* table) {
  for (int i = 0; i < 32; ++i) {
    const double a = values[i];
    const double b = values[i + 32];
    values[i] = a * table[i] - b * table[32 + i];
    values[i + 32] = a * table[32 + i] + b * table[i];
  }
  std::vector<double> out(kDim);
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      const bool negative = std::popcount(static_cast<unsigned>(i & j)) % 2 != 0;
      out[i] += (negative ? -values[j] : values[j]) / std::sqrt(128.0);
    }
  }
  return out;
}

double largest_of(const std::vector<double>& values) {
  double largest = 0.0;
  for (double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

// Returns the power of two that the contract gives these values.
double scale_of(const std::vector<double>& values) {
  return std::exp2(std::ceil(std::log2(std::max(largest_of(values), 1e-4) / 448.0)));
}

// `code` must be as near to value / scale as any code, except for the rounding of float32.
void expect_nearest_code(float code, double value, double scale, double largest) {
  double nearest = std::numeric_limits<double>::infinity();
  for (float other : e4m3_values()) {
    if (!std::isnan(other)) nearest = std::min(nearest, std::abs(other * scale - value));
  }
  EXPECT_LE(std::abs(code * scale - value), nearest + 2e-6 * largest) << value << " by " << scale;
}

struct KeyCase {
  int64_t m;
  KvIndex layout;
  int64_t stride = kDim + 5;
  int64_t num_pages;
  std::vector<float> k, weight, bias, table = rope_table();
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;

  KeyCase(int64_t tokens, KvIndex index_layout, Random& random)
      : m(tokens),
        layout(index_layout),
        num_pages(tokens / kPageSize + 2),
        k(random.normals(m * stride, 2.0F)),
        weight(random.normals(kDim, 1.5F)),
        bias(random.normals(kDim, 0.3F)) {
    for (int64_t i = 0; i < m; ++i) positions.push_back(static_cast<int32_t>(random.below(kPositions)));
    for (int64_t slot = 0; slot < num_pages * kPageSize; ++slot) slots.push_back(slot);
    random.shuffle(slots);
    slots.resize(m);
  }

  template <typename Kernel>
  std::vector<std::byte> run(Kernel kernel, int num_threads) {
    std::vector<std::byte> pool(num_pages * KvLayout{.index = layout}.index_page_bytes(), std::byte{0xa5});
    const IndexWriteParams params = {.k = k.data(),
                                     .k_stride = stride,
                                     .m = m,
                                     .norm_weight = weight.data(),
                                     .norm_bias = bias.data(),
                                     .norm_eps = 1e-3F,
                                     .positions = positions.data(),
                                     .cos_sin = table.data(),
                                     .slots = slots.data(),
                                     .pool = pool.data(),
                                     .layout = layout};
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
    return pool;
  }

  std::vector<double> expected_key(int64_t i) const {
    const float* x = k.data() + i * stride;
    double mean = 0.0;
    for (int j = 0; j < kDim; ++j) mean += x[j] / 128.0;
    double variance = 0.0;
    for (int j = 0; j < kDim; ++j) variance += (x[j] - mean) * (x[j] - mean) / 128.0;
    std::vector<double> y(kDim);
    for (int j = 0; j < kDim; ++j) y[j] = (x[j] - mean) / std::sqrt(variance + 1e-3F) * weight[j] + bias[j];
    return rotated(y, table.data() + positions[i] * 64);
  }
};

TEST(IndexWrite, MatchesReferenceBitForBitAndTouchesNothingElse) {
  const uint64_t seed = 71;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    for (int64_t m : {0, 1, 63, 300}) {
      SCOPED_TRACE(static_cast<int>(layout) * 1000 + m);
      Random random(seed + m);
      KeyCase c(m, layout, random);
      const auto expected = c.run(reference::index_write, 1);
      for_each_target([&] {
        EXPECT_EQ(c.run(simd::index_write, 1), expected);
        EXPECT_EQ(c.run(simd::index_write, 3), expected);
      });
    }
  }
}

TEST(IndexWrite, KeysAreThoseOfTheDefinitionInDouble) {
  const uint64_t seed = 72;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout));
    Random random(seed);
    KeyCase c(40, layout, random);
    std::fill_n(c.k.begin(), kDim, 3.0F);  // without variance the key is the rotated bias
    const auto pool = c.run(simd::index_write, 2);
    for (int64_t i = 0; i < c.m; ++i) {
      const std::vector<double> key = c.expected_key(i);
      const double largest = largest_of(key);
      float stored[kDim];
      const float scale = reference::load_index_key(pool.data(), layout, c.slots[i], stored);
      EXPECT_EQ(scale, layout == KvIndex::kE4M3 ? scale_of(key) : 1.0);
      for (int j = 0; j < kDim; ++j) {
        if (layout == KvIndex::kE4M3) {
          expect_nearest_code(stored[j], key[j], scale, largest);
        } else {
          EXPECT_NEAR(stored[j], key[j], 2e-6 * largest);
        }
      }
    }
  }
}

// Other devices read the page in this layout: 64 keys of 128 codes, then 64 scales.
TEST(IndexWrite, APageIsItsKeysAndThenTheirScales) {
  Random random(73);
  KeyCase c(1, KvIndex::kE4M3, random);
  c.slots = {64 + 3};
  const auto pool = c.run(simd::index_write, 1);
  const std::vector<double> key = c.expected_key(0);
  float scale = 0.0F;
  std::memcpy(&scale, pool.data() + 64 * 132 + 64 * 128 + 3 * 4, 4);
  EXPECT_EQ(scale, scale_of(key));
  for (int j = 0; j < kDim; ++j) {
    const auto code = static_cast<uint8_t>(pool[64 * 132 + 3 * 128 + j]);
    expect_nearest_code(e4m3_values()[code], key[j], scale, largest_of(key));
  }
}

TEST(IndexWrite, SmallKeysHaveTheLeastScale) {
  for (const float value : {0.0F, 1e-6F}) {
    Random random(74);
    KeyCase c(1, KvIndex::kE4M3, random);
    std::fill(c.weight.begin(), c.weight.end(), 0.0F);
    std::fill(c.bias.begin(), c.bias.end(), value);
    for_each_target([&] {
      const auto pool = c.run(simd::index_write, 1);
      float stored[kDim];
      EXPECT_EQ(reference::load_index_key(pool.data(), c.layout, c.slots[0], stored), std::exp2(-22.0F));
    });
  }
}

struct QueryCase {
  int64_t m;
  int num_heads;
  KvIndex layout;
  std::vector<float> q, w, table = rope_table();
  std::vector<int32_t> positions;

  QueryCase(int64_t tokens, int heads, KvIndex index_layout, Random& random)
      : m(tokens),
        num_heads(heads),
        layout(index_layout),
        q(random.normals(m * heads * kDim, 3.0F)),
        w(random.normals(m * heads)) {
    for (int64_t i = 0; i < m; ++i) positions.push_back(static_cast<int32_t>(random.below(kPositions)));
  }

  // Returns the queries, then the weights.
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads) {
    std::vector<float> out = q;
    std::vector<float> weights = w;
    const IndexQueryParams params = {.q = out.data(),
                                     .w = weights.data(),
                                     .m = m,
                                     .num_heads = num_heads,
                                     .positions = positions.data(),
                                     .cos_sin = table.data(),
                                     .layout = layout};
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
    out.insert(out.end(), weights.begin(), weights.end());
    return out;
  }
};

TEST(IndexQuery, MatchesReferenceBitForBit) {
  const uint64_t seed = 75;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    for (int heads : {1, 16, 32, 48, 64}) {
      SCOPED_TRACE(heads);
      Random random(seed + heads);
      QueryCase c(7, heads, layout, random);
      const auto expected = c.run(reference::index_query, 1);
      for_each_target([&] {
        EXPECT_TRUE(same_bits(c.run(simd::index_query, 1), expected));
        EXPECT_TRUE(same_bits(c.run(simd::index_query, 3), expected));
      });
    }
  }
}

TEST(IndexQuery, QueriesAndWeightsAreThoseOfTheDefinitionInDouble) {
  const uint64_t seed = 76;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout));
    Random random(seed);
    QueryCase c(3, 16, layout, random);
    const auto out = c.run(simd::index_query, 2);
    for (int64_t row = 0; row < c.m * c.num_heads; ++row) {
      const std::vector<double> values(c.q.begin() + row * kDim, c.q.begin() + (row + 1) * kDim);
      const auto query = rotated(values, c.table.data() + c.positions[row / c.num_heads] * 64);
      const double largest = largest_of(query);
      const double scale = layout == KvIndex::kE4M3 ? scale_of(query) : 1.0;
      for (int j = 0; j < kDim; ++j) {
        if (layout == KvIndex::kE4M3) {
          expect_nearest_code(out[row * kDim + j], query[j], scale, largest);
        } else {
          EXPECT_NEAR(out[row * kDim + j], query[j], 2e-6 * largest);
        }
      }
      const double weight = c.w[row] * scale / std::sqrt(16.0 * 128.0);
      EXPECT_NEAR(out[c.m * c.num_heads * kDim + row], weight, 1e-6 * std::abs(weight));
    }
  }
}

}  // namespace
}  // namespace hadal::cpu
