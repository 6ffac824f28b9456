// Makes what the tests of ranks on a GPU exchange: values that follow from (salt, rank, index) alone, so that
// host and device compute them independently of what was exchanged.
#pragma once

#include <cstdint>

#include "kernels/cuda/comm/parts.h"
#include "kernels/cuda/launch.h"

namespace hadal::testing {

constexpr uint32_t mixed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ x >> 16;
}

// Returns the bits of a bf16 or f16 value of either sign between 2^-9 and 2^7, so that the order of a sum
// shows in its bits.
constexpr uint16_t part_bits(uint32_t salt, int rank, int64_t i, bool f16) {
  const uint32_t random = mixed(mixed(salt * 8U + static_cast<uint32_t>(rank)) + static_cast<uint32_t>(i));
  const uint32_t sign = random & 0x8000U;
  const uint32_t exponent = (random >> 16 & 15U) + (f16 ? 15 - 9 : 127 - 9);
  return static_cast<uint16_t>(f16 ? sign | exponent << 10 | (random & 0x3ffU)
                                   : sign | exponent << 7 | (random & 0x7fU));
}

// Writes part_bits(salt, rank, i) to part[i] for `count` elements. With `step`, in device memory, the salt is
// salt + 64 · *step.
void fill_part(uint16_t* part, int64_t count, uint32_t salt, const uint32_t* step, int rank, bool f16,
               const cuda::Launch& launch);

// Adds to *num_wrong the number of elements, among the first `count` of all parts, that differ from what
// fill_part wrote.
void count_wrong(const cuda::ExchangedParts& parts, int64_t count, uint32_t salt, const uint32_t* step,
                 bool f16, uint32_t* num_wrong, const cuda::Launch& launch);

// Adds to *num_wrong the number of bf16 values, among `count`, that differ from the sums of what fill_part
// wrote: sums over ranks, in float32 and in order of rank.
void count_wrong_sums(const uint16_t* sums, int64_t count, int num_ranks, uint32_t salt, const uint32_t* step,
                      uint32_t* num_wrong, const cuda::Launch& launch);

// Keeps the stream busy for a random time below `most_ns`, which differs from call to call and from seed to
// seed; *calls, in device memory, counts the calls.
void random_wait(uint32_t* calls, uint32_t seed, uint32_t most_ns, const cuda::Launch& launch);

// Adds 1 to *step.
void count_step(uint32_t* step, const cuda::Launch& launch);

// Loads the code of these kernels, so that no launch waits for kernels that wait for other ranks.
void load_test_kernels();

}  // namespace hadal::testing
