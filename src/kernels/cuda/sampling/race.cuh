// Draws a token by the noise of base/gumbel.h, as a race: a token arrives at time −log(u) / weight, with
// weight = exp((logit − best) / T), and the first token to arrive is chosen. −log of that time is logit / T +
// G less a constant, so the first token is the one with the largest logit / T + G. Unlike that sum, a race
// needs no logarithm for most tokens that arrive too late.
#pragma once

#include "base/gumbel.h"
#include "kernels/cuda/sampling/load.cuh"

namespace hadal::cuda::sampling {

// Chooses among those tokens in shared memory that `kept` keeps. `best` is the key of the best token, whose
// logit must be finite. All threads of the cluster return the chosen token.
__device__ inline int32_t first_of_race(Row& row, uint64_t best, const Bound& kept, float scale,
                                        int64_t position) {
  const uint64_t seed = row.shared.slot.seed;
  const auto at = static_cast<uint64_t>(position);
  const float best_logit = best_value(best);
  // The best token has weight 1. A token that arrives later than the best one, or than any other, is not
  // chosen.
  float limit = exponential_noise(noise_bits(seed, at, static_cast<uint32_t>(best_id(best))));
  // −log u is at least 2^−33, so lower logits than this one (with a margin of a factor 2) need no noise.
  const float lowest = fmaxf(kept.logit, best_logit - (__log2f(limit) + 34.0F) / scale);
  float time = INFINITY;
  int token = 0;
  auto run = [&](float x, int id, uint32_t bits) {
    if (!kept.keeps(x, id)) return;
    const float weight = weight_of(x, best_logit, scale);
    // −log u is at least 1 − u, and the first 23 bits of 1 − u suffice to reject nearly all tokens.
    const float one_and_more = __uint_as_float(0x3f800000U | bits >> 9);
    if (one_and_more > __fmaf_rn(weight, limit * 1.00001F, 1.0F)) return;
    const float arrival = exponential_noise(bits) / weight;
    if (arrival < time) {  // ids ascend, so of equal times the lower id stays
      time = arrival;
      token = id;
    }
  };
  const float* own = row.values + row.warp * row.chunk + row.lane * 4;
  const int first = row.warp_first() + row.lane * 4;
#pragma unroll 1
  for (int i = 0; i < row.chunk; i += kLaneStep) {  // beyond the row's end the logits are −inf
    const float4 four = *reinterpret_cast<const float4*>(own + i);
    if (fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)) >= lowest) {
      const auto bits = noise_bits_of_four(seed, at, static_cast<uint32_t>(first + i) / 4);
      run(four.x, first + i, bits[0]);
      run(four.y, first + i + 1, bits[1]);
      run(four.z, first + i + 2, bits[2]);
      run(four.w, first + i + 3, bits[3]);
    }
    limit = fminf(limit, __uint_as_float(__reduce_min_sync(kAll, __float_as_uint(time))));
  }
  // Times are positive, so their bits, read as integers, have the same order.
  const uint64_t key = time < INFINITY ? static_cast<uint64_t>(~__float_as_uint(time)) << 32 |
                                             (0xffffffffU - static_cast<uint32_t>(token))
                                       : 0;
  return best_id(row.largest(key));
}

}  // namespace hadal::cuda::sampling
