// Makes, stores and reads index keys in scalar code (kernels/params/indexer.h), which is the oracle of every
// other implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_types.h"
#include "kernels/cpu/reference/kv_record.h"
#include "kernels/params/indexer.h"

namespace hadal::cpu::reference {

// Rotates values [128] by halves, in place. `table` has 32 cosines, then 32 sines.
inline void rotate_halves(const float* table, float* values) {
  constexpr int kPairs = kIndexRopeDim / 2;
  for (int i = 0; i < kPairs; ++i) {
    const float a = values[i];
    const float b = values[i + kPairs];
    values[i] = a * table[i] - b * table[kPairs + i];
    values[i + kPairs] = b * table[i] + a * table[kPairs + i];
  }
}

// Multiplies values [128] by the Hadamard matrix and 128^−0.5, in place.
inline void hadamard(float* values) {
  for (int distance = kIndexHeadDim / 2; distance >= 1; distance /= 2) {
    for (int i = 0; i < kIndexHeadDim; ++i) {
      if ((i & distance) != 0) continue;
      const float a = values[i];
      const float b = values[i + distance];
      values[i] = a + b;
      values[i + distance] = a - b;
    }
  }
  for (int i = 0; i < kIndexHeadDim; ++i) values[i] *= kIndexHadamardScale;
}

// Stores values [128] as the key of `slot`.
inline void store_index_key(const float* values, KvIndex layout, int64_t slot, std::byte* pool) {
  const KvLayout whole{.index = layout};
  std::byte* page = pool + slot / kPageSize * whole.index_page_bytes();
  const int64_t offset = slot % kPageSize;
  if (layout == KvIndex::kF32) {
    std::memcpy(page + offset * kKvIndexBytesF32, values, kKvIndexBytesF32);
    return;
  }
  const float scale = power_of_two_scale(values, kIndexHeadDim);
  for (int i = 0; i < kIndexHeadDim; ++i) {
    page[offset * kIndexHeadDim + i] = static_cast<std::byte>(to_fp8_e4m3(values[i] / scale).bits);
  }
  std::memcpy(page + kKvIndexScalesOffset + offset * sizeof(scale), &scale, sizeof(scale));
}

// Reads the key of `slot` into values [128], without its scale, which it returns.
inline float load_index_key(const std::byte* pool, KvIndex layout, int64_t slot, float* values) {
  const KvLayout whole{.index = layout};
  const std::byte* page = pool + slot / kPageSize * whole.index_page_bytes();
  const int64_t offset = slot % kPageSize;
  if (layout == KvIndex::kF32) {
    std::memcpy(values, page + offset * kKvIndexBytesF32, kKvIndexBytesF32);
    return 1.0F;
  }
  for (int i = 0; i < kIndexHeadDim; ++i) {
    values[i] = to_float(fp8_e4m3{static_cast<uint8_t>(page[offset * kIndexHeadDim + i])});
  }
  float scale = 0.0F;
  std::memcpy(&scale, page + kKvIndexScalesOffset + offset * sizeof(scale), sizeof(scale));
  return scale;
}

}  // namespace hadal::cpu::reference
