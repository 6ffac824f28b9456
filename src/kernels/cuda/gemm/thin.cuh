// Small matrices against a handful of rows: y = x · Wᵀ for m ≤ 16 where the whole of W fits in the registers
// of one wave of blocks. The point is the time between pdl_wait and the end, for the weights are on their way
// before it: no shared memory ahead of the products, no barrier but one, no cluster.
//
// Grid: x = tiles of 16 rows of W. Block: 8 warps; chunk c (128 bytes of k: 64 bf16 or 128 codes) belongs to
// warp c % 8. mma.sync m16n8k16 (int8: k32): W is the 16-row side, x the 8-wide side (one or two tiles of 8
// tokens).
// Which k a slot of the instruction holds is free as long as both operands agree, so a lane's fragments are
// whole 16-byte pieces of its rows, loaded from global memory straight into registers: four chunks of W (16
// loads a lane) are in flight at once. FP8: codes become f16, exactly. Block scales: each chunk is one block,
// promoted to float32 and multiplied by both scales. Channel scales: sums over all of k (int8: exact, in
// int32) are multiplied at the end by scales that are loaded at the beginning. Partial sums of the warps are
// added in shared memory in order of warp: the same bits every run.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda::thin {

constexpr int kWarps = 8;
constexpr int kRows = 16;
constexpr int kChunkBytes = 128;

template <WeightType kType>
struct Type {
  static constexpr bool kBytes = weight_element_bytes(kType) == 1;
  static constexpr bool kInt8 = is_int8(kType);
  static constexpr bool kFp8 = kBytes && !kInt8;
  static constexpr bool kBlocks = is_block_scaled(kType);
  static constexpr bool kChannels = is_channel_scaled(kType);
  static constexpr bool kHeavy = kFp8 || kBlocks;          // in registers
  using Part = std::conditional_t<kInt8, int32_t, float>;  // a product's sums
  using Sum = std::conditional_t<kBlocks, float, Part>;
};

template <WeightType kType>
__device__ __forceinline__ void mma(typename Type<kType>::Part (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (Type<kType>::kInt8) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else if constexpr (Type<kType>::kFp8) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Two e4m3 codes (low 16 bits) as packed f16.
__device__ __forceinline__ uint32_t widen(uint32_t codes) {
  const __half2_raw raw =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffffU), __NV_E4M3);
  return raw.x | static_cast<uint32_t>(raw.y) << 16;
}

struct ThinArgs {
  const std::byte* w = nullptr;
  int64_t w_row_bytes = 0;
  const float* w_scales = nullptr;
  int64_t w_scale_stride = 0;
  const std::byte* x = nullptr;
  int64_t x_row_bytes = 0;
  const float* x_scales = nullptr;
  int64_t x_scale_stride = 0;
  bf16* y = nullptr;
  float* y_f32 = nullptr;
  int64_t y_stride = 0;
  int m = 0, n = 0, k_bytes = 0;
  const float* bias = nullptr;  // channels: [n], or null
};

// The 32 bytes of one row that a lane feeds to a chunk's products.
struct Piece {
  uint4 half[2];
};

// One chunk's products into `part`.
template <WeightType kType>
__device__ __forceinline__ void multiply(typename Type<kType>::Part (&part)[4], const Piece& low,
                                         const Piece& high, const Piece& x) {
  if constexpr (Type<kType>::kFp8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t l = word(low.half[i / 4], i % 4);
      const uint32_t h = word(high.half[i / 4], i % 4);
      const uint32_t b = word(x.half[i / 4], i % 4);
      const uint32_t a[4] = {widen(l), widen(h), widen(l >> 16), widen(h >> 16)};
      mma<kType>(part, a, widen(b), widen(b >> 16));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = i % 2 * 2;
      const uint32_t a[4] = {word(low.half[i / 2], pair), word(high.half[i / 2], pair),
                             word(low.half[i / 2], pair + 1), word(high.half[i / 2], pair + 1)};
      mma<kType>(part, a, word(x.half[i / 2], pair), word(x.half[i / 2], pair + 1));
    }
  }
}

// The same, and with block scales the promotion into acc.
template <WeightType kType>
__device__ __forceinline__ void add_chunk(typename Type<kType>::Sum (&acc)[4], const Piece& low,
                                          const Piece& high, const Piece& x, float scale_even,
                                          float scale_odd) {
  if constexpr (Type<kType>::kBlocks) {
    typename Type<kType>::Part part[4] = {};
    multiply<kType>(part, low, high, x);
    acc[0] = fmaf(static_cast<float>(part[0]), scale_even, acc[0]);
    acc[1] = fmaf(static_cast<float>(part[1]), scale_odd, acc[1]);
    acc[2] = fmaf(static_cast<float>(part[2]), scale_even, acc[2]);
    acc[3] = fmaf(static_cast<float>(part[3]), scale_odd, acc[3]);
  } else {
    multiply<kType>(acc, low, high, x);
  }
}

// kDepth: chunks of W a warp has in flight.
template <WeightType kType, int kTiles, int kDepth>
__global__ void __launch_bounds__(kWarps * 32, kTiles == 1 && (!Type<kType>::kHeavy || kDepth == 2) ? 2 : 1)
    thin_kernel(const ThinArgs args) {
  using Sum = typename Type<kType>::Sum;
  constexpr bool kBlocks = Type<kType>::kBlocks;
  constexpr bool kChannels = Type<kType>::kChannels;
  __shared__ Sum sums[kWarps][kTiles * 8][kRows + 1];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int n0 = static_cast<int>(blockIdx.x) * kRows;
  const int num_chunks = (args.k_bytes + kChunkBytes - 1) / kChunkBytes;
  const std::byte* w_low = args.w + min(n0 + g, args.n - 1) * args.w_row_bytes + t * 16;
  const std::byte* w_high = args.w + min(n0 + g + 8, args.n - 1) * args.w_row_bytes + t * 16;
  const float* w_scales = args.w_scales + n0 / 128 * args.w_scale_stride;

  Piece low[kDepth];
  Piece high[kDepth];
  float w_scale[kDepth];
  const auto load_chunk = [&](int d, int chunk) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = chunk * kChunkBytes + h * 64;
      const bool exists = at + t * 16 < args.k_bytes;
      low[d].half[h] = exists ? load_stream(w_low + at) : uint4{0, 0, 0, 0};
      high[d].half[h] = exists ? load_stream(w_high + at) : uint4{0, 0, 0, 0};
    }
    if constexpr (kBlocks) w_scale[d] = chunk < num_chunks ? w_scales[chunk] : 0.0F;
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load_chunk(d, warp + d * kWarps);
  // Channels: the scales of the output that this thread stores.
  const bool scales_one = kChannels && static_cast<int>(threadIdx.x / kRows) < args.m &&
                          n0 + static_cast<int>(threadIdx.x % kRows) < args.n;
  float channel = 0.0F;
  float bias = 0.0F;
  if (scales_one) {
    channel = args.w_scales[n0 + threadIdx.x % kRows];
    if (args.bias != nullptr) bias = args.bias[n0 + threadIdx.x % kRows];
  }
  pdl_launch_dependents();
  pdl_wait();
  float token_scale = 0.0F;
  if (scales_one) token_scale = args.x_scales[threadIdx.x / kRows];

  const std::byte* x_rows[kTiles];
  bool real[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    real[tile] = tile * 8 + g < args.m;
    x_rows[tile] = args.x + (real[tile] ? tile * 8 + g : 0) * args.x_row_bytes + t * 16;
  }
  Sum acc[kTiles][4] = {};
#pragma unroll 1
  for (int begin = warp; begin < num_chunks; begin += kDepth * kWarps) {
    Piece x[kDepth][kTiles];
    float2 scales[kDepth][kTiles];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int chunk = begin + d * kWarps;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int at = chunk * kChunkBytes + h * 64;
          x[d][tile].half[h] = real[tile] && at + t * 16 < args.k_bytes
                                   ? *reinterpret_cast<const uint4*>(x_rows[tile] + at)
                                   : uint4{0, 0, 0, 0};
        }
        if constexpr (kBlocks) {
          const int token = tile * 8 + 2 * t;
          const float* s = args.x_scales + chunk * args.x_scale_stride + token;
          scales[d][tile].x = chunk < num_chunks && token < args.m ? s[0] : 0.0F;
          scales[d][tile].y = chunk < num_chunks && token + 1 < args.m ? s[1] : 0.0F;
        }
      }
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const float scale = kBlocks ? w_scale[d] : 1.0F;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        add_chunk<kType>(acc[tile], low[d], high[d], x[d][tile], scales[d][tile].x * scale,
                         scales[d][tile].y * scale);
      }
      const int next = begin + (d + kDepth) * kWarps;
      if (begin + kDepth * kWarps < num_chunks) load_chunk(d, next);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    sums[warp][tile * 8 + 2 * t][g] = acc[tile][0];
    sums[warp][tile * 8 + 2 * t + 1][g] = acc[tile][1];
    sums[warp][tile * 8 + 2 * t][g + 8] = acc[tile][2];
    sums[warp][tile * 8 + 2 * t + 1][g + 8] = acc[tile][3];
  }
  __syncthreads();
  const int row = threadIdx.x % kRows;
  const int token = threadIdx.x / kRows;
  if (token >= args.m || token >= kTiles * 8 || n0 + row >= args.n) return;
  Sum total = sums[0][token][row];
#pragma unroll
  for (int other = 1; other < kWarps; ++other) total += sums[other][token][row];
  float sum = static_cast<float>(total);
  if constexpr (kChannels) sum = fmaf(sum * token_scale, channel, bias);
  const int64_t at = token * args.y_stride + n0 + row;
  if (args.y_f32 != nullptr) {
    args.y_f32[at] = sum;
  } else {
    args.y[at] = to_bf16_rn(sum);
  }
}

template <WeightType kType>
void linear_of(const LinearParams& p, const Launch& launch) {
  constexpr bool kBytes = Type<kType>::kBytes;
  ThinArgs args;
  args.w = static_cast<const std::byte*>(p.w.data);
  args.w_row_bytes = p.w.row_stride * (kBytes ? 1 : 2);
  args.w_scales = p.w.scales;
  args.w_scale_stride = p.w.scale_stride;
  args.x =
      kBytes ? reinterpret_cast<const std::byte*>(p.x_fp8.codes) : reinterpret_cast<const std::byte*>(p.x);
  args.x_row_bytes = kBytes ? p.x_fp8.stride : p.x_stride * 2;
  args.x_scales = p.x_fp8.scales;
  args.x_scale_stride = p.x_fp8.scale_stride;
  args.bias = p.bias;
  args.y = p.y;
  args.y_f32 = p.y_f32;
  args.y_stride = p.y_stride;
  args.m = static_cast<int>(p.m);
  args.n = static_cast<int>(p.w.n);
  args.k_bytes = static_cast<int>(kBytes ? round_up(p.w.k, kQuantGroup) : p.w.k * 2);
  const dim3 grid(static_cast<unsigned>((p.w.n + kRows - 1) / kRows));
  const dim3 block(kWarps * 32);
  const auto run = [&]<int kDepth>() {
    if (p.m <= 8) return launch_kernel<thin_kernel<kType, 1, kDepth>>(launch, grid, block, 0, args);
    launch_kernel<thin_kernel<kType, 2, kDepth>>(launch, grid, block, 0, args);
  };
  const bool deep = args.k_bytes > 2 * kWarps * kChunkBytes;
  deep ? run.template operator()<4>() : run.template operator()<2>();
}

// bf16 and FP8 with block scales in thin.cu, the others in thin_w8a8.cu.
void linear_w8a8(const LinearParams& p, const Launch& launch);

}  // namespace hadal::cuda::thin
