#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

constexpr int64_t kMaxPositions = 300;

// Makes the table of plain RoPE with base 10000.
std::vector<float> table() {
  std::vector<float> cos_sin(kMaxPositions * 64);
  for (int64_t position = 0; position < kMaxPositions; ++position) {
    for (int pair = 0; pair < 32; ++pair) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -pair / 32.0);
      cos_sin[position * 64 + pair] = static_cast<float>(std::cos(angle));
      cos_sin[position * 64 + 32 + pair] = static_cast<float>(std::sin(angle));
    }
  }
  return cos_sin;
}

// Rotates the last 64 values of each head of 192, which is q's layout.
template <typename Kernel>
std::vector<float> rotate(Kernel kernel, std::vector<float> x, int64_t heads,
                          const std::vector<int32_t>& positions, int num_threads) {
  const std::vector<float> cos_sin = table();
  const RopeParams params = {.x = x.data() + 128,
                             .m = static_cast<int64_t>(positions.size()),
                             .num_heads = heads,
                             .row_stride = heads * 192,
                             .head_stride = 192,
                             .positions = positions.data(),
                             .cos_sin = cos_sin.data()};
  run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
  return x;
}

TEST(Rope, MatchesReferenceBitForBit) {
  const uint64_t seed = 61;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int64_t heads : {1, 3, 16}) {
    for (int64_t m : {0, 1, 2, 700}) {
      SCOPED_TRACE(heads * 1000 + m);
      std::vector<int32_t> positions(m);
      for (auto& position : positions) position = static_cast<int32_t>(random.below(kMaxPositions));
      const auto x = random.normals(m * heads * 192 + 1);
      const auto expected = rotate(reference::rope, x, heads, positions, 1);
      for_each_target([&] {
        EXPECT_TRUE(same_bits(rotate(simd::rope, x, heads, positions, 1), expected));
        EXPECT_TRUE(same_bits(rotate(simd::rope, x, heads, positions, 3), expected));
      });
    }
  }
}

TEST(Rope, RotatesInterleavedPairsByPositionTimesFrequency) {
  const uint64_t seed = 62;
  SCOPED_TRACE(seed);
  Random random(seed);
  const auto x = random.normals(2 * 192);
  const auto y = rotate(simd::rope, x, 1, {0, 123}, 1);
  for (int i = 0; i < 192; ++i) EXPECT_EQ(y[i], x[i]);          // position 0 does not rotate
  for (int i = 192; i < 192 + 128; ++i) EXPECT_EQ(y[i], x[i]);  // the part without RoPE
  for (int pair = 0; pair < 32; ++pair) {
    const double angle = 123.0 * std::pow(10000.0, -pair / 32.0);
    const double a = x[192 + 128 + 2 * pair];
    const double b = x[192 + 128 + 2 * pair + 1];
    EXPECT_NEAR(y[192 + 128 + 2 * pair], a * std::cos(angle) - b * std::sin(angle), 1e-5);
    EXPECT_NEAR(y[192 + 128 + 2 * pair + 1], b * std::cos(angle) + a * std::sin(angle), 1e-5);
  }
}

}  // namespace
}  // namespace hadal::cpu
