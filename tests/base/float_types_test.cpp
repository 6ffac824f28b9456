// Compares the conversions with an oracle that shares nothing with them: all values of a format in double
// precision, and the nearest one found by search.
#include "base/float_types.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace hadal {
namespace {

// Returns the finite value of `bits` in a format of 1 sign bit, `exponent_bits` and `mantissa_bits`, by
// definition.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double mantissa = bits & ((1U << mantissa_bits) - 1U);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double fraction = mantissa / std::pow(2.0, mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::pow(2.0, 1 - bias) * fraction : std::pow(2.0, exponent - bias) * (1.0 + fraction);
  return (bits >> (exponent_bits + mantissa_bits)) & 1U ? -magnitude : magnitude;
}

// Returns all non-negative finite values of a format, ascending: index = bit pattern.
std::vector<double> all_values(int exponent_bits, int mantissa_bits, uint32_t max_bits) {
  std::vector<double> values;
  for (uint32_t bits = 0; bits <= max_bits; ++bits) {
    values.push_back(value_of(bits, exponent_bits, mantissa_bits));
  }
  return values;
}

struct Format {
  int exponent_bits;
  int mantissa_bits;
  uint32_t max_bits;  // bits of the largest finite value
  std::vector<double> values = all_values(exponent_bits, mantissa_bits, max_bits);

  // Returns the bit pattern nearest to |v|, ties to the even pattern; above the largest value, the largest.
  uint32_t nearest(double v) const {
    const double a = std::fabs(v);
    const auto above = std::lower_bound(values.begin(), values.end(), a);
    if (above == values.end()) return max_bits;
    const auto hi = static_cast<uint32_t>(above - values.begin());
    if (hi == 0 || *above == a) return hi;
    const double to_lo = a - values[hi - 1];
    const double to_hi = *above - a;
    if (to_lo != to_hi) return to_lo < to_hi ? hi - 1 : hi;
    return hi % 2 == 0 ? hi : hi - 1;
  }
};

// Returns floats at, between and beside the values of `format`, and random ones over its whole range and
// beyond.
std::vector<float> interesting_floats(const Format& format) {
  std::vector<float> floats = {0.0F, std::numeric_limits<float>::denorm_min(), 1e-30F, 1e30F,
                               std::numeric_limits<float>::max()};
  for (size_t i = 0; i + 1 < format.values.size(); ++i) {
    const auto middle = static_cast<float>((format.values[i] + format.values[i + 1]) / 2);
    for (const float v : {static_cast<float>(format.values[i]), middle, std::nextafter(middle, 0.0F),
                          std::nextafter(middle, std::numeric_limits<float>::max())}) {
      floats.push_back(v);
    }
  }
  std::mt19937 random(20);
  const int lowest = 1 - (1 << (format.exponent_bits - 1)) - format.mantissa_bits - 2;
  std::uniform_real_distribution<float> exponent(static_cast<float>(lowest),
                                                 static_cast<float>(1 << (format.exponent_bits - 1)) + 2);
  for (int i = 0; i < 20000; ++i) floats.push_back(std::exp2(exponent(random)));
  const size_t num_positive = floats.size();
  for (size_t i = 0; i < num_positive; ++i) floats.push_back(-floats[i]);
  return floats;
}

const Format kE4m3{.exponent_bits = 4, .mantissa_bits = 3, .max_bits = 0x7e};
const Format kE5m2{.exponent_bits = 5, .mantissa_bits = 2, .max_bits = 0x7b};

TEST(FloatTypes, EveryE4m3CodeDecodesToItsValueAndBack) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const fp8_e4m3 v{static_cast<uint8_t>(bits)};
    if ((bits & 0x7fU) == 0x7fU) {
      EXPECT_TRUE(std::isnan(to_float(v))) << bits;
      EXPECT_TRUE(std::isnan(to_float(to_fp8_e4m3(to_float(v))))) << bits;
      continue;
    }
    EXPECT_EQ(to_float(v), value_of(bits, 4, 3)) << bits;
    EXPECT_EQ(to_fp8_e4m3(to_float(v)).bits, bits);
  }
}

TEST(FloatTypes, EveryE5m2CodeDecodesToItsValueAndBack) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const fp8_e5m2 v{static_cast<uint8_t>(bits)};
    const uint32_t magnitude = bits & 0x7fU;
    if (magnitude > 0x7cU) {
      EXPECT_TRUE(std::isnan(to_float(v))) << bits;
    } else if (magnitude == 0x7cU) {
      EXPECT_TRUE(std::isinf(to_float(v))) << bits;
      EXPECT_EQ(std::signbit(to_float(v)), bits >= 0x80U);
    } else {
      EXPECT_EQ(to_float(v), value_of(bits, 5, 2)) << bits;
      EXPECT_EQ(to_fp8_e5m2(to_float(v)).bits, bits);
    }
  }
}

TEST(FloatTypes, E4m3RoundsToNearestEvenAndSaturates) {
  for (const float v : interesting_floats(kE4m3)) {
    const uint32_t sign = std::signbit(v) ? 0x80U : 0U;
    ASSERT_EQ(to_fp8_e4m3(v).bits, sign | kE4m3.nearest(v)) << v;
  }
  EXPECT_EQ(to_float(to_fp8_e4m3(std::numeric_limits<float>::infinity())), kFp8E4m3Max);
  EXPECT_EQ(to_float(to_fp8_e4m3(-1e9F)), -kFp8E4m3Max);
  EXPECT_TRUE(std::isnan(to_float(to_fp8_e4m3(std::nanf("")))));
}

TEST(FloatTypes, E5m2RoundsToNearestEvenAndSaturates) {
  for (const float v : interesting_floats(kE5m2)) {
    const uint32_t sign = std::signbit(v) ? 0x80U : 0U;
    ASSERT_EQ(to_fp8_e5m2(v).bits, sign | kE5m2.nearest(v)) << v;
  }
  EXPECT_EQ(to_float(to_fp8_e5m2(-std::numeric_limits<float>::infinity())), -kFp8E5m2Max);
  EXPECT_TRUE(std::isnan(to_float(to_fp8_e5m2(std::nanf("")))));
}

TEST(FloatTypes, EveryF16CodeDecodesToItsValueAndBack) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const f16 v{static_cast<uint16_t>(bits)};
    const uint32_t magnitude = bits & 0x7fffU;
    if (magnitude > 0x7c00U) {
      ASSERT_TRUE(std::isnan(to_float(v))) << bits;
      ASSERT_TRUE(std::isnan(to_float(to_f16(to_float(v))))) << bits;
      continue;
    }
    if (magnitude == 0x7c00U) {
      ASSERT_TRUE(std::isinf(to_float(v))) << bits;
    } else {
      ASSERT_EQ(to_float(v), value_of(bits, 5, 10)) << bits;
    }
    ASSERT_EQ(to_f16(to_float(v)).bits, bits);
  }
}

TEST(FloatTypes, F16RoundsToNearestEvenAndOverflowsToInfinity) {
  const Format format{.exponent_bits = 5, .mantissa_bits = 10, .max_bits = 0x7bff};
  for (const float v : interesting_floats(format)) {
    const uint32_t sign = std::signbit(v) ? 0x8000U : 0U;
    // By IEEE 754, values that round to 2^16 or more are infinite; the tie at 65520 goes to the even
    // neighbour 2^16.
    const uint32_t expected = std::fabs(v) >= 65520.0F ? 0x7c00U : format.nearest(v);
    ASSERT_EQ(to_f16(v).bits, sign | expected) << v;
  }
}

TEST(FloatTypes, EveryBf16CodeRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const bf16 v{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(v))) {
      ASSERT_TRUE(std::isnan(to_float(to_bf16(to_float(v))))) << bits;
    } else {
      ASSERT_EQ(to_bf16(to_float(v)).bits, bits);
    }
  }
}

TEST(FloatTypes, Bf16RoundsToNearestEven) {
  std::mt19937 random(8);
  for (int i = 0; i < 200000; ++i) {
    // Every other case is an exact tie between two bf16 neighbours.
    const uint32_t bits = i % 2 == 0 ? static_cast<uint32_t>(random())
                                     : (static_cast<uint32_t>(random()) & 0xffff0000U) | 0x8000U;
    const auto v = std::bit_cast<float>(bits);
    if (!std::isfinite(v)) continue;
    const uint32_t lo = bits >> 16;
    const auto lo_value = static_cast<double>(std::bit_cast<float>(lo << 16));
    // This is the upper neighbour in magnitude; beyond the largest finite value it is infinity, as if it were
    // 2^128.
    const auto hi_float = std::bit_cast<float>((lo + 1) << 16);
    const double hi_value = std::isinf(hi_float) ? std::copysign(std::pow(2.0, 128), v) : hi_float;
    const double to_lo = std::fabs(v - lo_value);
    const double to_hi = std::fabs(hi_value - v);
    const uint32_t expected = to_lo < to_hi || (to_lo == to_hi && lo % 2 == 0) ? lo : lo + 1;
    ASSERT_EQ(to_bf16(v).bits, expected) << std::hexfloat << v;
  }
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
}

TEST(FloatTypes, Bf16KeepsNaNsWhoseMantissaIsAllInTheLowHalf) {
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace hadal
