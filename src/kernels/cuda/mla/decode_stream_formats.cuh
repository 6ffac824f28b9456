// How decode_stream.cuh makes tensor-core operands of the records of each KV format: straight from the record
// bytes in shared memory, FP8 codes widened to float16 (exactly) in registers.
//
// A product over k sums over the same set of k on both sides, in any order: so for FP8 each thread's share of
// a record is contiguous, and the query's fragments are permuted alike. mma.m16n8k16 fragments, thread (g, t)
// = (lane / 4, lane % 4):
//   A words 0…3: rows g, g+8, g, g+8; k 2t, 2t+1 (words 0, 1) and 2t+8, 2t+9 (words 2, 3)
//   B words 0, 1: column g; k 2t, 2t+1 and 2t+8, 2t+9         C: rows g (0, 1) and g+8 (2, 3), columns 2t,
//   2t+1
//
// A `Format` has
//   kRowStride      bytes between records in shared memory (no bank conflicts in the loads below), kRowBytes
//   the record's kScaled         records carry four scales, one for each 128 latents load_query      the A
//   words of k step `step` (0…7: 16 latents each of the 128 at `part`·128; 8: rope 16·part …) load_keys the B
//   words of k step `step` for 32 keys (4 column tiles) score           C += A · B with the type of that step
//   load_values     the B words of 16 keys × 64 latents (8 column tiles) for O += P · V
//   accumulate      that product; pack_weights packs two weights for it
//   key_of          which key of eight is column n of a score tile (and so which weight meets which record)
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/params/kv_layout.h"

namespace hadal::cuda::stream {

__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Two float16 of floats, saturating: `low` in the low half.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  const __half2 packed =
      __floats2half2_rn(fminf(fmaxf(low, -65504.0F), 65504.0F), fminf(fmaxf(high, -65504.0F), 65504.0F));
  return *reinterpret_cast<const uint32_t*>(&packed);
}
__device__ __forceinline__ uint32_t bf16_to_f16(uint32_t packed) {
  const float2 values = unpack_bf16(packed);
  return pack_f16(values.x, values.y);
}

// Records as the bulk copy engine leaves them in tiles: nine of 32 keys × 128 bytes, 128-byte swizzle.
struct Bf16 {
  static constexpr int kRowBytes = kKvRowBytesBf16;
  static constexpr int kRowStride = 128;  // inside a tile
  static constexpr bool kScaled = false;
  static constexpr bool kTiled = true;
  static __device__ __forceinline__ int key_of(int n) { return n; }
  static constexpr int kTileBytes = 32 * 128;
  static constexpr int kHalfPageBytes = kKvRowDim / 64 * kTileBytes;

  // `row` and `row8`: the query's rows g and g + 8 in global memory, or null.
  static __device__ __forceinline__ void load_query(const bf16* row, const bf16* row8, int part, int step,
                                                    int t, uint32_t (&a)[4]) {
    const int d = (step < 8 ? part * 128 + step * 16 : kKvLatentDim + part * 16) + 2 * t;
    a[0] = row != nullptr ? *reinterpret_cast<const uint32_t*>(row + d) : 0U;
    a[1] = row8 != nullptr ? *reinterpret_cast<const uint32_t*>(row8 + d) : 0U;
    a[2] = row != nullptr ? *reinterpret_cast<const uint32_t*>(row + d + 8) : 0U;
    a[3] = row8 != nullptr ? *reinterpret_cast<const uint32_t*>(row8 + d + 8) : 0U;
  }
  // The eight latent steps and the rope step of 32 keys at `keys`: score(step, column tile, B words).
  template <typename Score>
  static __device__ __forceinline__ void for_each_key_tile(uint32_t keys, int part, int lane, Score score) {
    const uint32_t base = keys + ((lane >> 4) * 8 + lane % 8) * 128;
#pragma unroll
    for (int step = 0; step < 9; ++step) {
      // Columns part · 128 + step · 16, or 512 + part · 16, and the lane's eight of these sixteen.
      const uint32_t tile = step < 8 ? part * 2 + step / 4 : 8;
      const uint32_t chunk = (step < 8 ? step % 4 : part) * 2 + ((lane >> 3) & 1);
      const uint32_t at = base + tile * kTileBytes + ((chunk ^ (lane % 8)) << 4);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t r[4];
        ldmatrix_x4(at + pair * 16 * 128, r);
        score(step, 2 * pair, {r[0], r[1]});
        score(step, 2 * pair + 1, {r[2], r[3]});
      }
    }
  }
  static __device__ __forceinline__ void score(int /*step*/, float (&c)[4], const uint32_t (&a)[4],
                                               const uint32_t (&b)[2]) {
    mma_bf16(c, a, b);
  }
  // `first` is a multiple of 64: one tile.
  static __device__ __forceinline__ void load_values(uint32_t keys, int first, int lane,
                                                     uint32_t (&b)[8][2]) {
    const uint32_t base = keys + first / 64 * kTileBytes + (((lane >> 3) & 1) * 8 + lane % 8) * 128;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t r[4];
      ldmatrix_x4_trans(base + (((pair * 2 + (lane >> 4)) ^ (lane % 8)) << 4), r);
      b[2 * pair][0] = r[0];
      b[2 * pair][1] = r[1];
      b[2 * pair + 1][0] = r[2];
      b[2 * pair + 1][1] = r[3];
    }
  }
  static __device__ __forceinline__ void accumulate(float (&c)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2]) {
    mma_bf16(c, a, b);
  }
  static __device__ __forceinline__ uint32_t pack_weights(float low, float high) {
    return pack_bf16(low, high);
  }
  static constexpr bool kColumnsInPairs = true;
};

template <bool kIsE4M3>
struct Fp8 {
  static constexpr int kRowBytes = kIsE4M3 ? kKvRowBytesFp8E4M3 : kKvRowBytesFp8E5M2;
  static constexpr int kRowStride = kRowBytes;  // whole half pages are copied at once
  static constexpr bool kScaled = kIsE4M3;
  static constexpr bool kTiled = false;
  static constexpr int kHalfPageBytes = 32 * kRowStride;

  // Which key of eight is column n of a tile: with e5m2's stride of 4.5 · 128 bytes, neighbouring threads
  // must read an even and an odd one.
  static __device__ __forceinline__ int key_of(int n) { return kIsE4M3 ? n : n ^ ((n >> 1) & 1); }
  // Thread t's two runs of sixteen latents of the 128 of a part begin here.
  static __device__ __forceinline__ int run_of(int t, int run) {
    return kIsE4M3 ? 32 * t + 16 * run : 64 * run + 16 * t;
  }
  // Thread t has the latents part·128 + run_of(t, step / 4) + 4·(step % 4) … + 3 of a record, and the rope
  // values 16·part + 4·t … + 3.
  static __device__ __forceinline__ void load_query(const bf16* row, const bf16* row8, int part, int step,
                                                    int t, uint32_t (&a)[4]) {
    const int d =
        step < 8 ? part * 128 + run_of(t, step / 4) + 4 * (step % 4) : kKvLatentDim + 16 * part + 4 * t;
    const uint2 zero = make_uint2(0, 0);
    const uint2 low = row != nullptr ? *reinterpret_cast<const uint2*>(row + d) : zero;
    const uint2 high = row8 != nullptr ? *reinterpret_cast<const uint2*>(row8 + d) : zero;
    if (kIsE4M3 && step == 8) {  // the rope part is bf16 on both sides
      a[0] = low.x;
      a[1] = high.x;
      a[2] = low.y;
      a[3] = high.y;
    } else {
      a[0] = bf16_to_f16(low.x);
      a[1] = bf16_to_f16(high.x);
      a[2] = bf16_to_f16(low.y);
      a[3] = bf16_to_f16(high.y);
    }
  }
  // The two codes of the low (kHalf 0) or high half of a word.
  template <int kHalf>
  static __device__ __forceinline__ uint32_t widen(uint32_t codes) {
    if constexpr (kIsE4M3) {
      uint32_t values;
      const auto two = static_cast<uint16_t>(kHalf == 0 ? codes : codes >> 16);
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(values) : "h"(two));
      return values;
    } else {  // e5m2 is the upper byte of float16
      return __byte_perm(codes, 0, kHalf == 0 ? 0x1404 : 0x3424);
    }
  }
  template <typename Score>
  static __device__ __forceinline__ void for_each_key_tile(uint32_t keys, int part, int lane, Score score) {
    const int g = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const uint32_t record = keys + (tile * 8 + key_of(g)) * kRowStride;
      const uint4 low = load_shared_16(record + part * 128 + run_of(t, 0));
      const uint4 high = load_shared_16(record + part * 128 + run_of(t, 1));
      const uint32_t codes[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int step = 0; step < 8; ++step) score(step, tile, {widen<0>(codes[step]), widen<1>(codes[step])});
    }
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const uint32_t record = keys + (tile * 8 + key_of(g)) * kRowStride;
      if constexpr (kIsE4M3) {
        const uint2 rope = load_shared_8(record + kKvFp8RopeOffset + (part * 16 + t * 4) * 2);
        score(8, tile, {rope.x, rope.y});
      } else {
        const uint32_t rope = load_shared(record + kKvLatentDim + part * 16 + t * 4);
        score(8, tile, {widen<0>(rope), widen<1>(rope)});
      }
    }
  }
  static __device__ __forceinline__ void score(int step, float (&c)[4], const uint32_t (&a)[4],
                                               const uint32_t (&b)[2]) {
    if (kIsE4M3 && step == 8) {
      mma_bf16(c, a, b);
    } else {
      mma_f16(c, a, b);
    }
  }
  // Thread (g, t) reads the latents first + 8·g … + 7 of its four keys; column tile j is the j-th of them, so
  // an accumulator's column n of tile j is latent first + 8·n + j.
  static __device__ __forceinline__ void load_values(uint32_t keys, int first, int lane,
                                                     uint32_t (&b)[8][2]) {
    const uint32_t base = keys + first + 8 * (lane / 4);
    const uint32_t even_key = base + key_of(2 * (lane % 4)) * kRowStride;
    const uint32_t odd_key = base + key_of(2 * (lane % 4) + 1) * kRowStride;
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const uint2 even = load_shared_8(even_key + word * 8 * kRowStride);
      const uint2 odd = load_shared_8(odd_key + word * 8 * kRowStride);
      const uint32_t first_pairs = __byte_perm(even.x, odd.x, 0x5140);  // latents 0, 1 of both keys
      const uint32_t second_pairs = __byte_perm(even.x, odd.x, 0x7362);
      const uint32_t third_pairs = __byte_perm(even.y, odd.y, 0x5140);
      const uint32_t fourth_pairs = __byte_perm(even.y, odd.y, 0x7362);
      b[0][word] = widen<0>(first_pairs);
      b[1][word] = widen<1>(first_pairs);
      b[2][word] = widen<0>(second_pairs);
      b[3][word] = widen<1>(second_pairs);
      b[4][word] = widen<0>(third_pairs);
      b[5][word] = widen<1>(third_pairs);
      b[6][word] = widen<0>(fourth_pairs);
      b[7][word] = widen<1>(fourth_pairs);
    }
  }
  static __device__ __forceinline__ void accumulate(float (&c)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2]) {
    mma_f16(c, a, b);
  }
  static __device__ __forceinline__ uint32_t pack_weights(float low, float high) {
    return pack_f16(low, high);
  }
  static constexpr bool kColumnsInPairs = false;
};

}  // namespace hadal::cuda::stream
