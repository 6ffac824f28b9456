// Loads the inputs of the FP8 formats of the swapped decode kernel: tiles of a page, scales and queries.
// mla/decode/swapped/fp8.cuh computes with them.
//
// Tile 0 of a page is rope (e4m3: 64 bf16; e5m2: 64 codes, then 64 unused bytes). Tiles 1 … 4 are 128 latent
// codes each. e4m3 also has 64 × 16 bytes of scales.
//
// A query value q is split into two e4m3 terms, hi and lo = 16 · (q/s − hi), where the row's scale s is a
// power of two. Together they keep 8 significant bits, as many as bf16 has, so the query is not rounded. The
// terms lie one after the other along N (hi of all rows, lo of all rows). They enlarge only operand B, which
// costs little because the product is bound by reading A.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode/swapped/page.cuh"

namespace hadal::cuda::swapped {

// Returns the value unchanged, in a form that is opaque to the compiler. Values derived from it are then
// computed again for each page instead of being kept in registers, of which there are too few.
__device__ __forceinline__ uint32_t opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
// Waits until at most `pending` groups are in flight; in an unrolled loop `pending` is a constant.
__device__ __forceinline__ void wgmma_wait_for(int pending) {
  if (pending <= 0) {
    wgmma_wait<0>();
  } else if (pending == 1) {
    wgmma_wait<1>();
  } else if (pending == 2) {
    wgmma_wait<2>();
  } else if (pending == 3) {
    wgmma_wait<3>();
  } else {
    wgmma_wait<4>();
  }
}
__device__ __forceinline__ float4 load_shared_float4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// These describe the queries in shared memory: four groups of 128 latents [hi of kN rows, lo of kN rows][128
// bytes], then rope (e4m3: kN rows of bf16; e5m2: like a group), then the factor for each row's scores.
template <int kN>
inline constexpr int kGroupBytes = 2 * kN * 128;
template <bool kIsE4M3, int kN>
inline constexpr int kRowScaleOffset = 4 * kGroupBytes<kN> + (kIsE4M3 ? 1 : 2) * kN * 128;

template <bool kIsE4M3, bool kHasMasks>
struct FormatFp8Load {
  static constexpr bool kMasks = kHasMasks;
  static constexpr int kTiles = 5;
  static constexpr int kAuxBytes = kIsE4M3 ? kPageSize * kKvNumScales * 4 : 0;
  using Out = bf16;
  struct Maps {
    CUtensorMap pool;
    CUtensorMap scales;  // e4m3
  };

  template <int kN>
  static constexpr int query_bytes() {
    return kRowScaleOffset<kIsE4M3, kN> + 1024;
  }
  // Makes the tensor maps, with dimensions {bytes of a record, records of a page, pages}.
  static Maps maps(const DecodeArgs& args) {
    const auto* pool = reinterpret_cast<const uint8_t*>(args.pool);
    const int64_t sizes[3] = {kIsE4M3 ? kKvRowBytesFp8E4M3 : kKvRowBytesFp8E5M2, kPageSize, int64_t{1} << 24};
    const int64_t strides[2] = {args.record_stride, args.page_stride};
    Maps maps{};
    maps.pool = make_record_map<3>(pool, sizes, strides, {128, kPageSize, 1});
    if (kIsE4M3) {
      maps.scales = make_record_map<3>(pool, sizes, strides, {kKvNumScales * 4, kPageSize, 1},
                                       CU_TENSOR_MAP_SWIZZLE_NONE);
    }
    return maps;
  }

  static __device__ __forceinline__ void load(const Maps& maps, int tile, int32_t page_id, std::byte* target,
                                              std::byte* aux, Mbarrier* barrier, L2Policy policy) {
    constexpr int kRope = kIsE4M3 ? kKvFp8RopeOffset : kKvLatentDim;
    mbarrier_arrive_expect_tx(barrier, kTileBytes + (tile == 0 ? kAuxBytes : 0));
    tma_load_3d(target, &maps.pool, barrier, tile == 0 ? kRope : (tile - 1) * 128, 0, page_id, policy);
    if (kIsE4M3 && tile == 0) tma_load_3d(aux, &maps.scales, barrier, kKvFp8ScaleOffset, 0, page_id, policy);
  }

  template <int kN>
  static __device__ __forceinline__ void prepare_queries(const DecodeArgs& args, int seq, int first_row,
                                                         std::byte* queries, int thread) {
    constexpr int kWarps = kConsumers / 32;
    constexpr int kEach = kN / kWarps;  // rows of a warp; a lane has 16 latents and 2 of rope
    const int warp = thread / 32;
    const int lane = thread % 32;
    const auto* q = static_cast<const bf16*>(args.q) + (int64_t{seq} * args.rows + first_row) * kKvRowDim;
    const int rows = args.rows - first_row;
    auto* row_scale = reinterpret_cast<float*>(queries + kRowScaleOffset<kIsE4M3, kN>);
    uint4 latent[kEach][2];
    uint32_t rope[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = warp + i * kWarps;
      latent[i][0] = latent[i][1] = make_uint4(0, 0, 0, 0);
      rope[i] = 0;
      if (row < rows) {
        const bf16* at = q + int64_t{row} * kKvRowDim;
        latent[i][0] = load_once(at + lane * 16);
        latent[i][1] = load_once(at + lane * 16 + 8);
        rope[i] = __ldcg(reinterpret_cast<const uint32_t*>(at + kKvLatentDim) + lane);
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = warp + i * kWarps;
      const uint32_t words[8] = {latent[i][0].x, latent[i][0].y, latent[i][0].z, latent[i][0].w,
                                 latent[i][1].x, latent[i][1].y, latent[i][1].z, latent[i][1].w};
      uint32_t top = 0;  // magnitudes of bf16 order as integers
#pragma unroll
      for (uint32_t w : words) top = __vmaxu2(top, w & 0x7fff7fffU);
      if constexpr (!kIsE4M3) top = __vmaxu2(top, rope[i] & 0x7fff7fffU);
      top = __reduce_max_sync(0xffffffffU, max(top >> 16, top & 0xffffU));
      // The scale is the smallest power of two, but at least 2^-60, by which the largest magnitude can be
      // divided to give at most 448 = 1.75 · 2^8, the largest e4m3.
      const uint32_t exponent = ((top << 16) + 0x1fffffU) & 0x7f800000U;
      const float scale = __uint_as_float(max(exponent, (127U - 60U + 8U) << 23) - (8U << 23));
      const float inverse = __uint_as_float(0x7f000000U - __float_as_uint(scale));  // exact: a power of two
      if (lane == 0) row_scale[row] = scale * args.scale_log2;
      uint32_t hi[4], lo[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 a = unpack_bf16(words[2 * w]);
        const float2 b = unpack_bf16(words[2 * w + 1]);
        const E4M3Pair first = split_e4m3(a.x * inverse, a.y * inverse);
        const E4M3Pair second = split_e4m3(b.x * inverse, b.y * inverse);
        hi[w] = first.hi | second.hi << 16;
        lo[w] = first.lo | second.lo << 16;
      }
      std::byte* group = queries + lane / 8 * kGroupBytes<kN>;
      *reinterpret_cast<uint4*>(group + swizzle_128(row, lane % 8)) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
      *reinterpret_cast<uint4*>(group + swizzle_128(kN + row, lane % 8)) =
          make_uint4(lo[0], lo[1], lo[2], lo[3]);
      std::byte* rope_tile = queries + 4 * kGroupBytes<kN>;
      const float2 r = unpack_bf16(rope[i]);
      if constexpr (kIsE4M3) {
        *reinterpret_cast<uint32_t*>(rope_tile + swizzle_128(row, lane / 4) + lane % 4 * 4) =
            pack_bf16(r.x * inverse, r.y * inverse);
      } else {
        const E4M3Pair pair = split_e4m3(r.x * inverse, r.y * inverse);
        *reinterpret_cast<uint16_t*>(rope_tile + swizzle_128(row, lane / 8) + lane % 8 * 2) =
            static_cast<uint16_t>(pair.hi);
        *reinterpret_cast<uint16_t*>(rope_tile + swizzle_128(kN + row, lane / 8) + lane % 8 * 2) =
            static_cast<uint16_t>(pair.lo);
      }
    }
  }

 protected:
  // Holds the scales of the thread's two keys; those of records beyond the length are 1.
  struct Scales {
    float group[2][4];
  };
  // Loads the scales of the thread's two keys; used only with e4m3.
  static __device__ __forceinline__ void load_scales(Scales& scales, const Page& page, int valid) {
    const uint32_t at = page.scales();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int key = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 v = load_shared_float4(at + (key + 8 * h) * 16);
      const bool exists = key + 8 * h < valid;
      scales.group[h][0] = exists ? v.x : 1.0F;
      scales.group[h][1] = exists ? v.y : 1.0F;
      scales.group[h][2] = exists ? v.z : 1.0F;
      scales.group[h][3] = exists ? v.w : 1.0F;
    }
  }
  // Sets the scales of records that masks hide from all queries to 1, once no product is in flight.
  template <int kN>
  static __device__ __forceinline__ void hide_scales(Scales& scales, const PageWork<kN>& work) {
    if (!may_hide<kMasks>(work.valid)) return;
    const uint64_t seen = seen_by_any(*work.args, work.seq, work.valid) >> key_of_thread();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if ((seen >> (8 * h) & 1) != 0) continue;
#pragma unroll
      for (float& scale : scales.group[h]) scale = 1.0F;
    }
  }

  // Zeroes the codes of records from work.valid on, and of those that masks hide from all queries, which may
  // hold anything. Each warp calls it after softmax() and zeroes the codes that it will read.
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void zero_unseen(const Page& page, const PageWork<kN>& work) {
    const bool masked = may_hide<kMasks>(work.valid);
    if (!masked && work.valid >= kPageSize) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const uint64_t seen = masked ? seen_by_any(*work.args, work.seq, work.valid) : 0;
    const int begin = masked ? 0 : work.valid;
#pragma unroll
    for (int t = kFirst; t < kEnd; ++t) {
      const uint32_t tile = shared_address(page.tile(1 + t));
      for (int i = lane; i < (kPageSize - begin) * 2; i += 32) {
        const int record = begin + i / 2;
        if ((seen >> record & 1) != 0) continue;
        asm volatile(
            "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(tile + swizzle_128(record, i % 2 * 4 + warp)),
            "r"(0)
            : "memory");
      }
    }
    fence_proxy_async_shared();
    __syncwarp();
  }
};

}  // namespace hadal::cuda::swapped
