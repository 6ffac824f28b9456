// Defines the random noise that sampling adds, for every device. At a temperature T above 0, sampling chooses
// the token with the largest logit / T + G(seed, position, token) among those that truncation keeps, and the
// lower id if two are equal. With G = −log(−log u) for independent uniform u, the tokens chosen follow the
// softmax of logits / T (Gumbel-max). Because each token has noise of its own, two similar rows of logits
// with the same seed and position mostly choose the same token. That is why a draft mostly agrees with the
// token that is then sampled (arXiv 2408.07978).
//
// u = 1 − (bits + ½) · 2^−32, where bits is word token % 4 of Philox4x32-10 with the seed as key and the
// counter (position, token / 4, 0). So u is never 0 or 1, and G lies within (−3.2, 22.9). A token whose
// probability is below 2^−33 is practically never chosen; a whole vocabulary of such tokens has a probability
// of at most 2·10^−5. −log u has float32's precision everywhere, because it is computed from u or from 1 − u,
// whichever is smaller. The CPU adds in double precision and the GPU multiplies in float32, so they can
// choose differently if the two largest sums are within 10^−5 of each other.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "base/philox.h"

#if defined(__CUDACC__)
#define HADAL_HOST_DEVICE __host__ __device__
#else
#define HADAL_HOST_DEVICE
#endif

namespace hadal {

inline constexpr float kLargestGumbel = 22.9F;
// A token whose score (logit / T + noise) is lower than the best one's by more than this is no draft.
inline constexpr float kNegligibleScore = 12.0F;

// Returns the random bits of the tokens 4 · group … 4 · group + 3.
constexpr std::array<uint32_t, 4> noise_bits_of_four(uint64_t seed, uint64_t position, uint32_t group) {
  return philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), group, 0},
                       {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

constexpr uint32_t noise_bits(uint64_t seed, uint64_t position, uint32_t token) {
  return noise_bits_of_four(seed, position, token / 4)[token % 4];
}

// Returns −log u in [2^−33, 22.9), so G is −log of the result. The result is at least 1 − u.
HADAL_HOST_DEVICE inline float exponential_noise(uint32_t bits) {
  constexpr float kUnit = 0x1p-32F;
  if (bits < 0x80000000U) return -std::log1p(-(static_cast<float>(bits) + 0.5F) * kUnit);
  return -std::log((static_cast<float>(~bits) + 0.5F) * kUnit);
}

}  // namespace hadal
