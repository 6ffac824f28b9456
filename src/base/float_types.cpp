#include "base/float_types.h"

#include <algorithm>

namespace hadal {
namespace {

// Decodes a small float with `exponent_bits`, `mantissa_bits` and IEEE-style subnormals to float32, exactly.
float decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1U);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1U));
  const bool negative = ((bits >> (mantissa_bits + exponent_bits)) & 1U) != 0;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                                        : std::ldexp(static_cast<float>(mantissa | (1U << mantissa_bits)),
                                                     exponent - bias - mantissa_bits);
  return negative ? -magnitude : magnitude;
}

// Rounds |v| (finite, not above the format's maximum) to the nearest value of the small format, ties to even.
// It may round up into the next binade; the carry of the integer addition then yields the right exponent.
uint32_t encode_magnitude(float v, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (v == 0.0F) return 0;
  int exponent = 0;
  std::frexp(v, &exponent);  // v = m * 2^exponent, m in [0.5, 1)
  const int scale = std::max(exponent - 1, 1 - bias);
  const auto quantum = static_cast<uint32_t>(std::nearbyint(std::ldexp(v, mantissa_bits - scale)));
  // Normal values carry the hidden bit in the quantum: adding it to (biased exponent - 1) << mantissa_bits is
  // exact.
  return (static_cast<uint32_t>(scale + bias - 1) << mantissa_bits) + quantum;
}

}  // namespace

float to_float(f16 v) {
  if ((v.bits & 0x7c00U) == 0x7c00U) {
    const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000U) << 16;
    return std::bit_cast<float>(sign | 0x7f800000U | (static_cast<uint32_t>(v.bits & 0x3ffU) << 13));
  }
  return decode(v.bits, 5, 10);
}

f16 to_f16(float v) {
  const auto sign = static_cast<uint16_t>(std::signbit(v) ? 0x8000U : 0U);
  if (std::isnan(v)) return {static_cast<uint16_t>(sign | 0x7e00U)};
  const float a = std::fabs(v);
  if (a >= 65520.0F) return {static_cast<uint16_t>(sign | 0x7c00U)};
  return {static_cast<uint16_t>(sign | encode_magnitude(a, 5, 10))};
}

float to_float(fp8_e4m3 v) {
  if ((v.bits & 0x7fU) == 0x7fU) return std::bit_cast<float>(0x7fc00000U);
  return decode(v.bits, 4, 3);
}

fp8_e4m3 to_fp8_e4m3(float v) {
  const auto sign = static_cast<uint8_t>(std::signbit(v) ? 0x80U : 0U);
  if (std::isnan(v)) return {static_cast<uint8_t>(sign | 0x7fU)};
  return {static_cast<uint8_t>(sign | encode_magnitude(std::min(std::fabs(v), kFp8E4m3Max), 4, 3))};
}

float to_float(fp8_e5m2 v) {
  if ((v.bits & 0x7cU) == 0x7cU) {
    const uint32_t sign = static_cast<uint32_t>(v.bits & 0x80U) << 24;
    return std::bit_cast<float>(sign | 0x7f800000U | (static_cast<uint32_t>(v.bits & 3U) << 21));
  }
  return decode(v.bits, 5, 2);
}

fp8_e5m2 to_fp8_e5m2(float v) {
  const auto sign = static_cast<uint8_t>(std::signbit(v) ? 0x80U : 0U);
  if (std::isnan(v)) return {static_cast<uint8_t>(sign | 0x7fU)};
  return {static_cast<uint8_t>(sign | encode_magnitude(std::min(std::fabs(v), kFp8E5m2Max), 5, 2))};
}

}  // namespace hadal
