// Gathers queries and records of a selection into shared memory, and widens FP8 records there.
//
// A tile has 64 rows of 576 bf16 (sparse_tile_offset). Four neighbouring threads copy one record: each copies
// every fourth of its 16-byte chunks, so that each copy of a warp reads 64 bytes of eight records. FP8
// records go to a raw buffer first. FP8 codes are converted to bf16 without rounding. Their scales are not
// applied in the tile, but to sums of scores and to weights.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/sanitize.cuh"
#include "kernels/cuda/mla/decode/sparse/sparse.h"

namespace hadal::cuda::sparse {

inline constexpr int kThreads = 256;
inline constexpr int kRowChunks = kKvRowDim * 2 / 16;        // 72
inline constexpr int kLatentChunks = kKvLatentDim * 2 / 16;  // 64

// Returns the slot of a place of the selection, or −1 after its end.
__device__ __forceinline__ int32_t slot_at(const SparseArgs& args, int row, int place, int count) {
  if (place >= count) return -1;
  const int32_t slot = args.slots[int64_t{row} * args.geometry.topk + place];
  if constexpr (kSanitized) {
    if (args.num_slots > 0 && (slot < 0 || slot >= args.num_slots)) __trap();
  }
  return slot;
}

// Copies the queries of heads [first_head, first_head + kHeads) of a row; heads that do not exist are zeros.
template <int kHeads>
__device__ __forceinline__ void load_queries(const SparseArgs& args, int row, int first_head, uint32_t tile) {
  const bf16* q = args.q + (int64_t{row} * args.num_heads + first_head) * kKvRowDim;
  const int num_heads = min(kHeads, args.num_heads - first_head);
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kRowChunks; i += kThreads) {
    const int head = i / kRowChunks;
    const bool exists = head < num_heads;
    copy_async_16(tile + sparse_tile_offset(head, i % kRowChunks), q + (exists ? i * 8 : 0), exists);
  }
}

// Copies the record of a slot; −1 gives zeros. Thread t has record t / 4.
template <KvFormat kFormat>
__device__ __forceinline__ void gather_record(const SparseArgs& args, int32_t slot, uint32_t target) {
  const int record = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
  const bool exists = slot >= 0;
  if constexpr (kFormat == KvFormat::kBF16) {
    const std::byte* source = args.pool + (exists ? int64_t{slot} * kKvRowBytesBf16 : 0);
#pragma unroll
    for (int i = 0; i < kRowChunks / 4; ++i) {
      const int chunk = 4 * i + part;
      copy_async_16(target + sparse_tile_offset(record, chunk), source + chunk * 16, exists);
    }
  } else {
    constexpr int kChunks = kKvRowBytesFp8E4M3 / 16;  // 41
    const std::byte* source = args.pool + (exists ? int64_t{slot} * kKvRowBytesFp8E4M3 : 0);
#pragma unroll
    for (int i = 0; i < (kChunks + 3) / 4; ++i) {
      const int chunk = 4 * i + part;
      if (chunk < kChunks)
        copy_async_16(target + record * kKvRowBytesFp8E4M3 + chunk * 16, source + chunk * 16, exists);
    }
  }
}

__device__ __forceinline__ uint32_t widen_two(uint32_t codes) {
  const uint32_t small = small_bf16_of_codes(codes), factor = kTwoTo120InBf16;
  const __nv_bfloat162 exact = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&small),
                                       *reinterpret_cast<const __nv_bfloat162*>(&factor));
  return *reinterpret_cast<const uint32_t*>(&exact);
}

// Makes a tile from raw records: codes are converted to bf16, rope is copied, and scales go to [4][64].
__device__ __forceinline__ void widen_records(const std::byte* raw, std::byte* tile, float* scales) {
  const int record = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
  const std::byte* source = raw + record * kKvRowBytesFp8E4M3;
#pragma unroll
  for (int i = 0; i < kKvLatentDim / 16 / 4; ++i) {
    const int chunk = 4 * i + part;  // sixteen codes
    const uint4 codes = *reinterpret_cast<const uint4*>(source + chunk * 16);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t wide[8];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      wide[2 * w] = widen_two(__byte_perm(words[w], 0, 0x1404));
      wide[2 * w + 1] = widen_two(__byte_perm(words[w], 0, 0x3424));
    }
    *reinterpret_cast<uint4*>(tile + sparse_tile_offset(record, 2 * chunk)) = {wide[0], wide[1], wide[2],
                                                                               wide[3]};
    *reinterpret_cast<uint4*>(tile + sparse_tile_offset(record, 2 * chunk + 1)) = {wide[4], wide[5], wide[6],
                                                                                   wide[7]};
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int chunk = 4 * i + part;
    *reinterpret_cast<uint4*>(tile + sparse_tile_offset(record, kLatentChunks + chunk)) =
        *reinterpret_cast<const uint4*>(source + kKvFp8RopeOffset + chunk * 16);
  }
  scales[part * kSparseChunk + record] = reinterpret_cast<const float*>(source + kKvFp8ScaleOffset)[part];
}

}  // namespace hadal::cuda::sparse
