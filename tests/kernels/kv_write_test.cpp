#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

struct WriteCase {
  int64_t m = 0;
  KvLayout layout;
  int64_t num_pages = 0;
  int64_t stride = 0;  // stride of latent and rope rows, in the layout of kv_a_proj's output
  std::vector<float> rows;
  std::vector<int64_t> slots;

  WriteCase(int64_t tokens, KvLayout kv_layout, Random& random)
      : m(tokens), layout(kv_layout), num_pages(tokens / kPageSize + 2), stride(kKvRowDim + 5) {
    rows = random.normals(m * stride);
    for (int64_t i = 0; i < m; ++i) {
      const float scale = std::exp2(static_cast<float>(random.below(30)) - 20.0F);
      for (int64_t k = 0; k < stride; ++k) rows[i * stride + k] *= scale;
    }
    for (int64_t slot = 0; slot < num_pages * kPageSize; ++slot) slots.push_back(slot);
    random.shuffle(slots);
    slots.resize(m);
  }

  template <typename Kernel>
  std::vector<std::byte> run(Kernel kernel, int num_threads) {
    std::vector<std::byte> pool(num_pages * layout.page_bytes(), std::byte{0xa5});
    const KvWriteParams params = {.latent = rows.data(),
                                  .k_rope = rows.data() + kKvLatentDim,
                                  .latent_stride = stride,
                                  .k_rope_stride = stride,
                                  .m = m,
                                  .slots = slots.data(),
                                  .pool = pool.data(),
                                  .layout = layout};
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
    return pool;
  }
};

// Returns all layouts, with the scales that only V3.2 has.
std::vector<KvLayout> written_layouts() {
  std::vector<KvLayout> layouts = all_layouts();
  layouts.push_back({KvFormat::kFp8E4M3, KvScales::kPer128PowersOfTwo});
  return layouts;
}

TEST(KvWrite, MatchesReferenceBitForBitAndTouchesNothingElse) {
  const uint64_t seed = 41;
  SCOPED_TRACE(seed);
  for (const KvLayout& layout : written_layouts()) {
    for (int64_t m : {0, 1, 63, 200}) {
      SCOPED_TRACE(static_cast<int>(layout.format) * 1000 + m);
      Random random(seed + m);
      WriteCase c(m, layout, random);
      const auto expected = c.run(reference::kv_write, 1);
      for_each_target([&] {
        EXPECT_EQ(c.run(simd::kv_write, 1), expected);
        EXPECT_EQ(c.run(simd::kv_write, 3), expected);
      });
    }
  }
}

// Tests zeros, ties, subnormal results, overflow, infinities and NaN in every lane.
TEST(KvWrite, SpecialValuesRoundLikeTheScalarConversions) {
  std::vector<float> special = {0.0F,     -0.0F,    1.0F,          448.0F,         449.0F,   -463.9F,
                                464.0F,   480.0F,   1e9F,          -1e9F,          57344.0F, 61440.0F,
                                65504.0F, 65519.9F, 65520.0F,      1e-40F,         1.5e-5F,  6e-8F,
                                2.98e-8F, -3e-8F,   0.0009765625F, 0.00048828125F, 1e-9F};
  special.push_back(std::numeric_limits<float>::infinity());
  special.push_back(-std::numeric_limits<float>::infinity());
  special.push_back(std::numeric_limits<float>::quiet_NaN());
  special.push_back(-std::numeric_limits<float>::quiet_NaN());
  for (int exponent = -20; exponent < 17; ++exponent) {  // ties of every format
    for (int mantissa = 0; mantissa < 64; ++mantissa) {
      special.push_back(std::ldexp(1.0F + static_cast<float>(mantissa) / 64.0F, exponent));
    }
  }
  for (const KvLayout& layout : written_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout.format));
    Random random(1);
    WriteCase c(static_cast<int64_t>(special.size()) / 100 + 6, layout, random);
    std::fill(c.rows.begin(), c.rows.end(), 0.0F);  // row 0 stays zero: amax 0
    for (size_t i = 0; i < c.rows.size() - c.stride; ++i) c.rows[c.stride + i] = special[i % special.size()];
    const auto expected = c.run(reference::kv_write, 1);
    for_each_target([&] { EXPECT_EQ(c.run(simd::kv_write, 1), expected); });
  }
}

TEST(KvWrite, E4m3ScalesFollowTheLayout) {
  std::vector<float> row(kKvRowDim);
  for (int i = 0; i < kKvLatentDim; ++i) row[i] = i / 128 == 2 ? 0.0F : static_cast<float>(i / 128 + 1);
  for (KvScales scales : {KvScales::kPerToken, KvScales::kPer128}) {
    const KvLayout layout = {KvFormat::kFp8E4M3, scales};
    std::vector<std::byte> pool(layout.page_bytes());
    const int64_t slot = 3;
    const KvWriteParams params = {.latent = row.data(),
                                  .k_rope = row.data() + kKvLatentDim,
                                  .latent_stride = kKvRowDim,
                                  .k_rope_stride = kKvRowDim,
                                  .m = 1,
                                  .slots = &slot,
                                  .pool = pool.data(),
                                  .layout = layout};
    run_on(1, [&](Context& ctx) { simd::kv_write(params, ctx); });
    float stored[4];
    std::memcpy(stored, pool.data() + 3 * 656 + 512, sizeof(stored));
    const bool per_token = scales == KvScales::kPerToken;
    for (int g = 0; g < 4; ++g) {
      const float amax = per_token ? 4.0F : static_cast<float>(g + 1);
      EXPECT_EQ(stored[g], !per_token && g == 2 ? 1.0F : amax / 448.0F);
    }
    EXPECT_EQ(static_cast<uint8_t>(pool[3 * 656 + 2 * 128]), 0);     // zeros stay zero
    EXPECT_EQ(static_cast<uint8_t>(pool[3 * 656 + 3 * 128]), 0x7e);  // amax becomes 448
  }
}

TEST(KvWrite, ScalesOfV32AreTheNextPowersOfTwo) {
  // These are the amax of each group of 128, and the scale: 448 and 449 lie on the two sides of a rounding
  // step.
  const float amax[4] = {448.0F, 449.0F, 3.0F, 0.0F};
  const float expected[4] = {1.0F, 2.0F, 0x1p-7F, 0x1p-22F};  // the last is that of an amax of 1e-4
  std::vector<float> row(kKvRowDim);
  for (int g = 0; g < 4; ++g) row[g * 128 + 5] = -amax[g];
  const KvLayout layout = {KvFormat::kFp8E4M3, KvScales::kPer128PowersOfTwo};
  for (const bool naive : {false, true}) {
    std::vector<std::byte> pool(layout.page_bytes());
    const int64_t slot = 0;
    const KvWriteParams params = {.latent = row.data(),
                                  .k_rope = row.data() + kKvLatentDim,
                                  .latent_stride = kKvRowDim,
                                  .k_rope_stride = kKvRowDim,
                                  .m = 1,
                                  .slots = &slot,
                                  .pool = pool.data(),
                                  .layout = layout};
    run_on(1, [&](Context& ctx) { naive ? reference::kv_write(params, ctx) : simd::kv_write(params, ctx); });
    float stored[4];
    std::memcpy(stored, pool.data() + kKvFp8ScaleOffset, sizeof(stored));
    for (int g = 0; g < 4; ++g) EXPECT_EQ(stored[g], expected[g]) << g;
  }
}

}  // namespace
}  // namespace hadal::cpu
