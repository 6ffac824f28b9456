// Defines the random records and index keys with which a benchmark fills a KV cache in place of computed
// prompts. A value depends on (seed, layer, slot, place) alone, so every device and every rank stores the
// same bytes.
//
// Values are uniform in ±√3, so their standard deviation is 1, as after a norm. Value i is rounded to the
// format of the record or index key. Formats with scales have kRandomScale as every scale, and the codes of
// value / kRandomScale, which a power of two changes exactly and which stay below 448.
#pragma once

#include <cstdint>

#include "kernels/params/kv_layout.h"

namespace hadal {

inline constexpr float kRandomScale = 0x1p-8F;

enum class RandomPart : uint8_t { kRecord, kIndexKey };

// Mixes the bits of a number (the output function of splitmix64).
constexpr uint64_t mix_record_bits(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Returns the key of a record, or of an index key, at a slot of a layer's pool (page · kPageSize + offset).
constexpr uint64_t random_record_key(uint64_t seed, int64_t layer, int64_t slot, RandomPart part) {
  const uint64_t of_layer = mix_record_bits(mix_record_bits(seed) + static_cast<uint64_t>(layer));
  return mix_record_bits(of_layer + 2 * static_cast<uint64_t>(slot) + static_cast<uint64_t>(part));
}

// Returns value i of a record (kKvRowDim values) or of an index key (kKvIndexDim values). The two float32
// operations are exact except for one rounding, so every device computes the same bits.
constexpr float random_record_value(uint64_t key, int i) {
  uint32_t x = static_cast<uint32_t>(i) * 0x9e3779b1U + static_cast<uint32_t>(key);
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= x >> 13;
  x += static_cast<uint32_t>(key >> 32);
  x *= 0xc2b2ae35U;
  x ^= x >> 16;
  constexpr float kScale = 1.7320508F * 0x1p-16F;
  return static_cast<float>(2 * static_cast<int32_t>(x >> 16) - 65535) * kScale;
}

}  // namespace hadal
