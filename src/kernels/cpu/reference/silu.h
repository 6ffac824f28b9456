// Computes silu(gate) · up, defined once so that every instruction set gives the same bits: exp is a fixed
// sequence of float32 operations (range reduction by ln 2 in two parts, a polynomial of degree 6, exact
// scaling by a power of two) with a relative error below 2e-7. The SIMD version (simd/mlp-inl.h) does the
// same operations in the same order.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace hadal::cpu {

inline constexpr float kExpMin = -87.0F;  // keeps 2^n a normal number
inline constexpr float kExpMax = 88.0F;
inline constexpr float kExpLog2E = 1.44269504F;
inline constexpr float kExpLn2High = 0.693359375F;  // 10 bits: n · this is exact
inline constexpr float kExpLn2Low = -2.12194440e-4F;
// exp(r) = 1 + r + r² · (c0 + c1·r + … + c5·r^5) on |r| ≤ ln(2)/2. These are Taylor terms, fitted again
// (Cephes' expf has the same form).
inline constexpr float kExpPoly[6] = {5.0000001201E-1F, 1.6666665459E-1F, 4.1665795894E-2F,
                                      8.3334519073E-3F, 1.3981999507E-3F, 1.9875691500E-4F};

inline float exp_f32(float x) {
  x = x < kExpMin ? kExpMin : (x > kExpMax ? kExpMax : x);
  const float n = std::nearbyint(x * kExpLog2E);
  float r = std::fma(n, -kExpLn2High, x);
  r = std::fma(n, -kExpLn2Low, r);
  float poly = kExpPoly[5];
  for (int i = 4; i >= 0; --i) poly = std::fma(poly, r, kExpPoly[i]);
  const float e = std::fma(poly, r * r, r) + 1.0F;
  const uint32_t power_of_two = (static_cast<uint32_t>(static_cast<int32_t>(n)) + 127U) << 23;
  return e * std::bit_cast<float>(power_of_two);
}

// Returns the hidden activation of SwiGLU. For gates below −88 the logistic is clamped at exp(−88), about
// 6e-39.
inline float silu_mul(float gate, float up) {
  if (gate != gate) return gate;  // a NaN must not reach the integer conversion in exp_f32
  return gate / (1.0F + exp_f32(-gate)) * up;
}

}  // namespace hadal::cpu
