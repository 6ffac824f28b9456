// Converts one KV cache record to and from float32 in scalar code, which is the oracle of every other reader
// and writer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/float_types.h"
#include "kernels/params/kv_layout.h"
#include "kernels/params/mla.h"

namespace hadal::cpu::reference {

// Returns the address of absolute position `position` of the sequence in row `seq_idx` of the page table.
inline const std::byte* record_address(const PagedKv& kv, int64_t seq_idx, int64_t position) {
  const int64_t page = kv.page_table[seq_idx * kv.page_table_stride + position / kPageSize];
  return kv.pool + (page * kPageSize + position % kPageSize) * kv.layout.row_bytes();
}

template <typename T>
void decode_values(const std::byte* bytes, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    out[i] = to_float(value);
  }
}

// Reads a record into values [576]: 512 latent, 64 rope.
inline void read_record(const std::byte* record, const KvLayout& layout, float* values) {
  switch (layout.format) {
    case KvFormat::kF32:
      return decode_values<float>(record, kKvRowDim, values);
    case KvFormat::kF16:
      return decode_values<f16>(record, kKvRowDim, values);
    case KvFormat::kBF16:
      return decode_values<bf16>(record, kKvRowDim, values);
    case KvFormat::kFp8E5M2:
      return decode_values<fp8_e5m2>(record, kKvRowDim, values);
    case KvFormat::kFp8E4M3: {
      float scales[kKvNumScales];
      std::memcpy(scales, record + kKvFp8ScaleOffset, sizeof(scales));
      decode_values<fp8_e4m3>(record, kKvLatentDim, values);
      for (int i = 0; i < kKvLatentDim; ++i) values[i] *= scales[i / kKvScaleGroup];
      return decode_values<bf16>(record + kKvFp8RopeOffset, kKvRopeDim, values + kKvLatentDim);
    }
  }
}

// Returns the scale of a group of latents (kv_layout.h): amax / 448, or 1 if that is zero.
inline float latent_scale(const float* latent, int count) {
  float amax = 0.0F;
  for (int i = 0; i < count; ++i) amax = std::max(amax, std::fabs(latent[i]));
  const float scale = amax / kFp8E4m3Max;
  return scale > 0.0F ? scale : 1.0F;
}

// Returns V3.2's scale of a group of latents (kv_layout.h): the next power of two from max(amax, 1e-4) / 448.
inline float power_of_two_scale(const float* latent, int count) {
  float amax = kKvMinAmax;
  for (int i = 0; i < count; ++i) amax = std::max(amax, std::fabs(latent[i]));
  const float scale = amax / kFp8E4m3Max;
  if (!std::isfinite(scale)) return scale;
  int exponent = 0;
  const float mantissa = std::frexp(scale, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0F, mantissa > 0.5F ? exponent : exponent - 1);
}

template <typename Round>
void encode_values(const float* values, int count, std::byte* out, Round round) {
  for (int i = 0; i < count; ++i) {
    const auto value = round(values[i]);
    std::memcpy(out + i * sizeof(value), &value, sizeof(value));
  }
}

// Writes latent [512] and rope [64] to a record.
inline void write_record(const float* latent, const float* rope, const KvLayout& layout, std::byte* record) {
  const auto plain = [&](auto round) {
    encode_values(latent, kKvLatentDim, record, round);
    const int64_t latent_bytes = kKvLatentDim * int64_t{sizeof(round(0.0F))};
    encode_values(rope, kKvRopeDim, record + latent_bytes, round);
  };
  switch (layout.format) {
    case KvFormat::kF32:
      return plain([](float v) { return v; });
    case KvFormat::kF16:
      return plain([](float v) { return to_f16(v); });
    case KvFormat::kBF16:
      return plain([](float v) { return to_bf16(v); });
    case KvFormat::kFp8E5M2:
      return plain([](float v) { return to_fp8_e5m2(v); });
    case KvFormat::kFp8E4M3: {
      float scales[kKvNumScales];
      for (int g = 0; g < kKvNumScales; ++g) {
        const float* group = latent + g * kKvScaleGroup;
        scales[g] = layout.scales == KvScales::kPerToken ? latent_scale(latent, kKvLatentDim)
                    : layout.scales == KvScales::kPer128 ? latent_scale(group, kKvScaleGroup)
                                                         : power_of_two_scale(group, kKvScaleGroup);
        const float scale = scales[g];
        encode_values(latent + g * kKvScaleGroup, kKvScaleGroup, record + g * kKvScaleGroup,
                      [scale](float v) { return to_fp8_e4m3(v / scale); });
      }
      std::memcpy(record + kKvFp8ScaleOffset, scales, sizeof(scales));
      return encode_values(rope, kKvRopeDim, record + kKvFp8RopeOffset, [](float v) { return to_bf16(v); });
    }
  }
}

}  // namespace hadal::cpu::reference
