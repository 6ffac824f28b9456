// This file alone defines the bytes of a KV cache record, which one token stores in one layer's pool. The
// pool of a layer is [num_pages, kPageSize, row_bytes]. Every reader and writer, on every device, follows
// this file.
#pragma once

#include <cstdint>

namespace hadal {

inline constexpr int kPageSize = 64;      // tokens per page
inline constexpr int kKvLatentDim = 512;  // kv_a_layernorm(c_kv): the shared key and value of all heads
inline constexpr int kKvRopeDim = 64;     // k_pe after RoPE, interleaved pairs
inline constexpr int kKvRowDim = kKvLatentDim + kKvRopeDim;
inline constexpr int kKvScaleGroup = 128;  // latents that share one scale in fp8_e4m3
inline constexpr int kKvNumScales = kKvLatentDim / kKvScaleGroup;
// A scale that is a power of two is made from at least this amax, in KvScales::kPer128PowersOfTwo and
// KvIndex::kE4M3.
inline constexpr float kKvMinAmax = 1e-4F;

enum class KvFormat : uint8_t {
  kF32,      // 576 float32                                                         2,304 B (CPU)
  kF16,      // 576 float16                                                         1,152 B
  kBF16,     // 576 bfloat16                                                        1,152 B
  kFp8E4M3,  // 512 e4m3 | 4 float32 scales (value = code · scale) | 64 bfloat16      656 B
  kFp8E5M2,  // 576 e5m2, a plain cast                                                576 B
};

// Says how the writer chooses the four scales of an fp8_e4m3 record; a reader accepts both ways. A scale that
// would be zero is 1 instead. Codes are the nearest e4m3 to latent / scale (IEEE division).
enum class KvScales : uint8_t {
  kPerToken,  // four equal scales: amax of the 512 latents / 448
  kPer128,    // amax of each 128 latents / 448
  // max(amax of each 128 latents, 1e-4) / 448, raised to the next power of two: V3.2's way (scale_fmt ue8m0)
  kPer128PowersOfTwo,
};

// Says what V3.2's indexer (indexer.h) stores for a token beside its record, in a second pool of each layer
// that has the record pool's page ids: [num_pages, index_page_bytes]. A page is kPageSize keys, then their
// float32 scales.
enum class KvIndex : uint8_t {
  kNone,  // the model has no indexer
  kF32,   // 128 float32, without scales       512 B (with f32 records)
  kE4M3,  // 128 e4m3 and a float32 scale      132 B (with all other records)
};

inline constexpr int kKvIndexDim = 128;
inline constexpr int kKvIndexBytesF32 = kKvIndexDim * 4;
inline constexpr int kKvIndexBytesE4M3 = kKvIndexDim + 4;
inline constexpr int kKvIndexScalesOffset =
    kPageSize * kKvIndexDim;  // bytes from the start of a kE4M3 page to its scales

inline constexpr int kKvRowBytesF32 = kKvRowDim * 4;
inline constexpr int kKvRowBytesBf16 = kKvRowDim * 2;
inline constexpr int kKvRowBytesFp8E4M3 = kKvLatentDim + kKvNumScales * 4 + kKvRopeDim * 2;
inline constexpr int kKvRowBytesFp8E5M2 = kKvRowDim;
static_assert(kKvRowBytesF32 == 2304 && kKvRowBytesBf16 == 1152, "contract of the cache");
static_assert(kKvRowBytesFp8E4M3 == 656 && kKvRowBytesFp8E5M2 == 576, "contract of the cache");

// These are byte offsets inside an fp8_e4m3 record.
inline constexpr int kKvFp8ScaleOffset = kKvLatentDim;
inline constexpr int kKvFp8RopeOffset = kKvLatentDim + kKvNumScales * 4;

struct KvLayout {
  KvFormat format = KvFormat::kBF16;
  KvScales scales = KvScales::kPerToken;
  KvIndex index = KvIndex::kNone;

  constexpr int row_bytes() const {
    switch (format) {
      case KvFormat::kF32:
        return kKvRowBytesF32;
      case KvFormat::kF16:
      case KvFormat::kBF16:
        return kKvRowBytesBf16;
      case KvFormat::kFp8E4M3:
        return kKvRowBytesFp8E4M3;
      case KvFormat::kFp8E5M2:
        return kKvRowBytesFp8E5M2;
    }
    return 0;
  }
  constexpr int64_t page_bytes() const { return int64_t{kPageSize} * row_bytes(); }

  constexpr int index_row_bytes() const {
    switch (index) {
      case KvIndex::kNone:
        return 0;
      case KvIndex::kF32:
        return kKvIndexBytesF32;
      case KvIndex::kE4M3:
        return kKvIndexBytesE4M3;
    }
    return 0;
  }
  // Returns the bytes of the key itself, without its scale, which is stored after the page's keys.
  constexpr int index_key_bytes() const { return index == KvIndex::kE4M3 ? kKvIndexDim : index_row_bytes(); }
  constexpr int64_t index_page_bytes() const { return int64_t{kPageSize} * index_row_bytes(); }

  // Returns the bytes that one token occupies in one layer: its record and its index key.
  constexpr int token_bytes() const { return row_bytes() + index_row_bytes(); }
};

}  // namespace hadal
