// Holds the arithmetic of sampling on one logit: penalties, the total order and weights in fixed point.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sampling/sampling.h"

namespace hadal::cuda::sampling {

__device__ __forceinline__ float masked_logit() {
  return __uint_as_float(0xff800000U);
}  // −inf

// Maps a float to an unsigned integer, so that integers are ordered like the floats; −0 equals +0.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (bits == 0x80000000U) return 0x80000000U;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float from_ordered(uint32_t order) {
  return __uint_as_float((order & 0x80000000U) != 0 ? order & 0x7fffffffU : ~order);
}
inline constexpr uint32_t kOrderedMasked = 0x007fffffU;  // ordered(−inf), below every other number

// Returns a key that no other token of the row has. A more probable token has a larger key; among equally
// probable tokens, the lower id has the larger key.
template <int kIdBits>
__device__ __forceinline__ uint64_t key_of(float x, int64_t id) {
  constexpr uint64_t kLastId = (uint64_t{1} << kIdBits) - 1;
  return static_cast<uint64_t>(ordered(x)) << kIdBits | (kLastId - static_cast<uint64_t>(id));
}

// Applies engine/sampler.cpp's penalties, rounded as there, without fused multiply-adds. `count` is a value
// of SampleParams::counts.
__device__ __forceinline__ float penalised(const SlotSampling& slot, float x, uint16_t count) {
  if (count == 0) return x;
  x = x > 0.0F ? __fdiv_rn(x, slot.repetition_penalty) : __fmul_rn(x, slot.repetition_penalty);
  const int generated = count & 0x7fff;
  if (generated == 0) return x;
  return __fsub_rn(
      x, __fadd_rn(__fmul_rn(slot.frequency_penalty, static_cast<float>(generated)), slot.presence_penalty));
}

__device__ __forceinline__ void count_token(uint16_t* counts, int32_t token) {
  const uint16_t count = counts[token];
  if ((count & 0x7fff) != 0x7fff) counts[token] = count + 1;
}

// Returns log2(e) / T, limited so that its products with differences of finite logits and with −inf are not
// NaN.
__device__ __forceinline__ float weight_scale(float temperature) {
  const double scale = 1.44269504088896341 / static_cast<double>(temperature);
  return static_cast<float>(fmin(fmax(scale, 1e-37), 3e38));
}
// Returns exp((x − best) / T) in [0, 1], which is 1 for the best token and 0 for masked tokens; `best` must
// be finite.
__device__ __forceinline__ float weight_of(float x, float best, float scale) {
  return exp2_fast((x - best) * scale);
}

// Holds a weight as an integer in units of 2^−(17 + kLowBits), because integer sums do not depend on their
// order. Weights are rounded down, so that a larger weight never becomes a smaller integer. high ≤ 2^17 ·
// weight, and low < 2^kLowBits.
struct FixedWeight {
  uint32_t high, low;
};
template <int kLowBits>
__device__ __forceinline__ FixedWeight fixed_weight(float weight) {
  const float scaled = weight * 0x1p17F;
  const auto high = static_cast<uint32_t>(scaled);
  const float rest = scaled - static_cast<float>(high);  // exact, below 1
  return {high, static_cast<uint32_t>(rest * static_cast<float>(1U << kLowBits))};
}
template <int kLowBits>
__device__ __forceinline__ uint64_t joined(FixedWeight weight) {
  return (static_cast<uint64_t>(weight.high) << kLowBits) + weight.low;
}

// Returns the smallest logit x that min_p keeps: exp((x − best) / T) ≥ min_p. The result is at most `best`.
__device__ __forceinline__ float min_p_bound(float best, float temperature, float min_p) {
  return __double2float_ru(static_cast<double>(best) +
                           static_cast<double>(temperature) * log(static_cast<double>(min_p)));
}

}  // namespace hadal::cuda::sampling
