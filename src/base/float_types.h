// Defines the storage types of weights and caches, with exact scalar conversions. Arithmetic is done in
// float32; these types only store bytes. bf16 has 1-8-7 bits, f16 is IEEE binary16, fp8_e4m3 is OCP e4m3fn
// (no infinity, NaN = 0x7f/0xff, max 448), and fp8_e5m2 is OCP e5m2 (IEEE-like, max 57344). Conversions from
// float round to nearest even; e4m3 saturates to ±448, e5m2 to ±57344.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace hadal {

struct bf16 {
  uint16_t bits = 0;
};
struct f16 {
  uint16_t bits = 0;
};
struct fp8_e4m3 {
  uint8_t bits = 0;
};
struct fp8_e5m2 {
  uint8_t bits = 0;
};
static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(fp8_e4m3) == 1 && sizeof(fp8_e5m2) == 1);

inline constexpr float kFp8E4m3Max = 448.0F;
inline constexpr float kFp8E5m2Max = 57344.0F;

inline float to_float(bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

inline bf16 to_bf16(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffU) > 0x7f800000U)
    return {static_cast<uint16_t>((u >> 16) | 0x40U)};  // a NaN becomes a quiet NaN
  return {static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

float to_float(f16 v);
f16 to_f16(float v);
float to_float(fp8_e4m3 v);
fp8_e4m3 to_fp8_e4m3(float v);
float to_float(fp8_e5m2 v);
fp8_e5m2 to_fp8_e5m2(float v);
inline float to_float(float v) {
  return v;
}

}  // namespace hadal
