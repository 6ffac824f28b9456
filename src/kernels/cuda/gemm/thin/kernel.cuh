// Multiplies small matrices by a handful of rows: y = x · Wᵀ for m ≤ 16, where one wave of blocks holds all
// of W. The time between pdl_wait and the end is short, because the weights are loaded before pdl_wait, some
// into registers and the rest into shared memory. The kernel uses one barrier of the block and no cluster.
//
// Grid: x is the tile of 16 or 24 rows of W. A block has 4 or 8 warps; chunk c (128 bytes of k: 64 values of
// 16 bits or 128 codes) belongs to warp c % warps. The instruction is mma.sync m16n8k16 (int8: k32). For
// eight tokens W is on its 16-row side and x on its 8-wide side; for sixteen tokens x is on the 16-row side,
// and W is two or three tiles of the 8-wide side. The assignment of k to the instruction's slots is free as
// long as both operands agree, so a lane's fragments are whole 16-byte pieces of its rows. The first chunks
// of a warp are loaded from memory directly into registers, the others by cp.async into shared memory, where
// each lane reads only its own pieces (no barrier, no bank conflict). FP8 codes are converted to f16, which
// is exact. With block scales each chunk is one block, whose sum is promoted to float32 and multiplied by
// both scales. With channel scales, sums over all of k (int8: exact, in int32) are multiplied at the end by
// scales that are loaded at the beginning. Partial sums of the warps are added in shared memory in the order
// of the warps, so every run gives the same bits.
#pragma once

#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/length_gate.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/gemm/thin/config.h"
#include "kernels/cuda/gemm/thin/thin.h"

namespace hadal::cuda::thin {

template <WeightType kType>
struct Type {
  static constexpr bool kBytes = weight_element_bytes(kType) == 1;
  static constexpr bool kInt8 = is_int8(kType);
  static constexpr bool kFp8 = kBytes && !kInt8;
  static constexpr bool kBlocks = is_block_scaled(kType);
  static constexpr bool kChannels = is_channel_scaled(kType);
  using Part = std::conditional_t<kInt8, int32_t, float>;  // a product's sums
  using Sum = std::conditional_t<kBlocks, float, Part>;
};

template <WeightType kType>
__device__ __forceinline__ void mma(typename Type<kType>::Part (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (Type<kType>::kInt8) {
    mma_s8(d, a[0], a[1], a[2], a[3], b0, b1);
  } else {
    using Operand = std::conditional_t<Type<kType>::kFp8, f16, Row16<kType>>;
    mma_16_bit<Operand>(d, a[0], a[1], a[2], a[3], b0, b1);
  }
}

// Converts four e4m3 codes to two pairs of f16.
__device__ __forceinline__ void widen(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
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
  void* y = nullptr;  // elements of type Row16
  float* y_f32 = nullptr;
  int64_t y_stride = 0;
  int m = 0, n = 0, k_bytes = 0;
  const float* bias = nullptr;  // channels: [n], or null
  LengthGate gate;
};

// Computes one chunk's products. `low` and `high` are rows g and g + 8 of the 16-row side, and `wide` has the
// rows of kTiles tiles of the 8-wide side. The products use kParts sets of sums in turn, because products
// that add to the same sum wait for each other.
template <WeightType kType, int kTiles, int kParts>
__device__ __forceinline__ void multiply(typename Type<kType>::Part (&part)[kTiles][kParts][4],
                                         const RowPiece& low, const RowPiece& high,
                                         const RowPiece (&wide)[kTiles]) {
  if constexpr (Type<kType>::kFp8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t a[4];
      widen(word(low.half[i / 4], i % 4), a[0], a[2]);
      widen(word(high.half[i / 4], i % 4), a[1], a[3]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t b0, b1;
        widen(word(wide[tile].half[i / 4], i % 4), b0, b1);
        mma<kType>(part[tile][i % kParts], a, b0, b1);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = i % 2 * 2;
      const uint32_t a[4] = {word(low.half[i / 2], pair), word(high.half[i / 2], pair),
                             word(low.half[i / 2], pair + 1), word(high.half[i / 2], pair + 1)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        mma<kType>(part[tile][i % kParts], a, word(wide[tile].half[i / 2], pair),
                   word(wide[tile].half[i / 2], pair + 1));
    }
  }
}

template <WeightType kType, int kTokens, int kRows, int kWarps, int kDepth, int kBatch>
__global__ void __launch_bounds__(kWarps * 32, 16 / kWarps) thin_kernel(const ThinArgs args) {
  using Sum = typename Type<kType>::Sum;
  constexpr bool kBlocks = Type<kType>::kBlocks;
  constexpr bool kChannels = Type<kType>::kChannels;
  constexpr int kTokenTiles = kTokens / 8;
  constexpr int kRowTiles = kRows / 8;
  constexpr bool kTokensAreRows = kTokens == 16;  // x is on the product's 16-row side
  constexpr int kTiles = kTokensAreRows ? kRowTiles : kTokenTiles;
  constexpr int kPitch = pitch(kRows);
  constexpr int kChunk = kRows * kChunkBytes;
  static_assert(kBatch >= kDepth);
  static_assert(kTokensAreRows || kRows == 16);
  static_assert(!kBlocks || kRows == 16, "the rows of a block share their scales");
  extern __shared__ __align__(16) std::byte shared[];
  if (is_closed(args.gate)) return;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int n0 = static_cast<int>(blockIdx.x) * kRows;
  const int num_chunks = (args.k_bytes + kChunkBytes - 1) / kChunkBytes;
  const Layout layout(kType, {kTokens, kRows, kWarps, kDepth, kBatch}, num_chunks);
  std::byte* own = shared + warp * layout.warp;

  // In each chunk, a lane reads two 16-byte pieces (halves 0 and 1) of row g of every group of eight rows.
  const std::byte* w_rows[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
    w_rows[r] = args.w + min(n0 + 8 * r + g, args.n - 1) * args.w_row_bytes + t * 16;
  const auto exists = [&](int chunk, int half) {
    return chunk * kChunkBytes + half * 64 + t * 16 < args.k_bytes;
  };
  RowPiece held[kDepth > 0 ? kDepth : 1][kRowTiles];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    const int chunk = warp + d * kWarps;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = chunk * kChunkBytes + half * 64;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        held[d][r].half[half] = exists(chunk, half) ? load_stream(w_rows[r] + at) : uint4{0, 0, 0, 0};
    }
  }
#pragma unroll 1
  for (int s = 0; s < layout.staged; ++s) {
    const int chunk = warp + (kDepth + s) * kWarps;
    const uint32_t to = shared_address(own) + s * kChunk + lane * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = exists(chunk, half) ? chunk * kChunkBytes + half * 64 : 0;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        copy_async_16(to + (half * kRowTiles + r) * 512, w_rows[r] + at, exists(chunk, half));
    }
  }
  // With sixteen tokens, x is prefetched into the L2 before pdl_wait; it is read only after pdl_wait.
  if constexpr (kTokensAreRows) {
    const int lines = (args.k_bytes + 127) / 128;
    for (int i = blockIdx.x + gridDim.x * threadIdx.x; i < args.m * lines; i += gridDim.x * blockDim.x)
      prefetch_l2(args.x + i / lines * args.x_row_bytes + i % lines * 128);
  }
  // With block scales, each lane holds the scale of the warp's chunk number `lane`.
  [[maybe_unused]] float w_scales = 0.0F;
  if constexpr (kBlocks) {
    const int chunk = warp + lane * kWarps;
    if (chunk < num_chunks) w_scales = args.w_scales[n0 / 128 * args.w_scale_stride + chunk];
  }
  // With channel scales, these are the scales and biases of the rows of W, then the scales of the tokens.
  auto* channels = reinterpret_cast<float*>(shared + layout.channels);
  if constexpr (kChannels) {
    if (threadIdx.x < kRows) {
      const int n = min(n0 + static_cast<int>(threadIdx.x), args.n - 1);
      const bool biased = args.bias != nullptr;
      copy_async_4(shared_address(channels + threadIdx.x), args.w_scales + n, true);
      copy_async_4(shared_address(channels + kRows + threadIdx.x), biased ? args.bias + n : args.w_scales,
                   biased);
    }
  }
  if constexpr (kTokens == 8) pdl_launch_dependents();
  pdl_wait();
  // With sixteen tokens this comes after pdl_wait, so that the next kernel's weights are not loaded before
  // this kernel's x.
  if constexpr (kTokens > 8) pdl_launch_dependents();
  if constexpr (kChannels) {
    if (static_cast<int>(threadIdx.x) < args.m)
      copy_async_4(shared_address(channels + 2 * kRows + threadIdx.x), args.x_scales + threadIdx.x, true);
  }

  const std::byte* x_rows[kTokenTiles];
  bool real[kTokenTiles];
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    real[tile] = tile * 8 + g < args.m;
    x_rows[tile] = args.x + (real[tile] ? tile * 8 + g : 0) * args.x_row_bytes + t * 16;
  }
  constexpr int kParts = 2;
  constexpr int kKept = kBlocks ? 1 : kParts;
  Sum acc[kTiles][kKept][4] = {};
  const int warp_chunks = (num_chunks - warp + kWarps - 1) / kWarps;
  // Multiplies kBatch of the warp's chunks from number `begin` on. The warp's first kDepth chunks are in
  // registers.
  const auto multiply_batch = [&]<bool kFirst>(int begin) {
    RowPiece x[kBatch][kTokenTiles];
    [[maybe_unused]] float2 scales[kBatch];  // scales of the two tokens for which this lane has sums
#pragma unroll
    for (int d = 0; d < kBatch; ++d) {
      const int chunk = warp + (begin + d) * kWarps;
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = chunk * kChunkBytes + half * 64;
          x[d][tile].half[half] = real[tile] && exists(chunk, half)
                                      ? *reinterpret_cast<const uint4*>(x_rows[tile] + at)
                                      : uint4{0, 0, 0, 0};
        }
      }
      if constexpr (kBlocks) {
        const int first = kTokensAreRows ? g : 2 * t;
        const int second = kTokensAreRows ? g + 8 : 2 * t + 1;
        const float* s = args.x_scales + chunk * args.x_scale_stride;
        scales[d].x = chunk < num_chunks && first < args.m ? s[first] : 0.0F;
        scales[d].y = chunk < num_chunks && second < args.m ? s[second] : 0.0F;
      }
    }
    if constexpr (kFirst) copy_async_wait_all();
#pragma unroll
    for (int d = 0; d < kBatch; ++d) {
      if (begin + d >= warp_chunks) break;
      RowPiece w[kRowTiles];
      if (kFirst && d < kDepth) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) w[r] = held[d < kDepth ? d : 0][r];
      } else {
        const std::byte* from = own + (begin + d - kDepth) * kChunk + lane * 16;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r)
            w[r].half[half] = *reinterpret_cast<const uint4*>(from + (half * kRowTiles + r) * 512);
        }
      }
      const auto multiply_into = [&](auto& part) {
        if constexpr (kTokensAreRows) {
          multiply<kType, kTiles, kParts>(part, x[d][0], x[d][kTokenTiles - 1], w);
        } else {
          multiply<kType, kTiles, kParts>(part, w[0], w[1], x[d]);
        }
      };
      if constexpr (kBlocks) {
        const float w_scale = __shfl_sync(0xffffffffU, w_scales, begin + d);
        typename Type<kType>::Part part[kTiles][kParts][4] = {};
        multiply_into(part);
        const float first = scales[d].x * w_scale;
        const float second = scales[d].y * w_scale;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float sum = static_cast<float>(part[tile][0][e] + part[tile][1][e]);
            const bool is_first = kTokensAreRows ? e < 2 : e % 2 == 0;
            acc[tile][0][e] = fmaf(sum, is_first ? first : second, acc[tile][0][e]);
          }
        }
      } else {
        multiply_into(acc);
      }
    }
  };
  multiply_batch.template operator()<true>(0);
#pragma unroll 1
  for (int begin = kBatch; begin < warp_chunks; begin += kBatch)
    multiply_batch.template operator()<false>(begin);
  if constexpr (kChannels) copy_async_wait_all();

  // The warp's chunks have been read, so its sums are stored in their place.
  __syncwarp();
  Sum* sums = reinterpret_cast<Sum*>(own);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const auto sum = [&](int e) {
      return kKept == 1 ? acc[tile][0][e] : acc[tile][0][e] + acc[tile][kKept - 1][e];
    };
    // Sums have the layout [tokens][rows]; these are the strides along the 8-wide side and along the 16-row
    // side.
    constexpr int kWide = kTokensAreRows ? 1 : kPitch;
    constexpr int kTall = kTokensAreRows ? kPitch : 1;
    Sum* at = sums + (tile * 8 + 2 * t) * kWide + g * kTall;
    at[0] = sum(0);
    at[kWide] = sum(1);
    at[8 * kTall] = sum(2);
    at[8 * kTall + kWide] = sum(3);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < args.m * kRows; i += kWarps * 32) {
    const int row = i % kRows;
    const int token = i / kRows;
    Sum parts[kWarps];
#pragma unroll
    for (int other = 0; other < kWarps; ++other)
      parts[other] = *reinterpret_cast<const Sum*>(shared + other * layout.warp + (token * kPitch + row) * 4);
#pragma unroll
    for (int other = 1; other < kWarps; ++other) parts[0] += parts[other];
    if (n0 + row >= args.n) continue;
    float total = static_cast<float>(parts[0]);
    if constexpr (kChannels)
      total = fmaf(total * channels[2 * kRows + token], channels[row], channels[kRows + row]);
    const int64_t at = token * args.y_stride + n0 + row;
    if (args.y_f32 != nullptr) {
      args.y_f32[at] = total;
    } else {
      static_cast<Row16<kType>*>(args.y)[at] = round_to<Row16<kType>>(total);
    }
  }
}

template <WeightType kType, Block kBlock>
void launch_block(const ThinArgs& args, const Launch& launch) {
  const int num_chunks = (args.k_bytes + kChunkBytes - 1) / kChunkBytes;
  const Layout layout(kType, kBlock, num_chunks);
  launch_kernel<thin_kernel<kType, kBlock.tokens, kBlock.rows, kBlock.warps, kBlock.depth, kBlock.batch>>(
      launch, dim3(static_cast<unsigned>((args.n + kBlock.rows - 1) / kBlock.rows)), dim3(kBlock.warps * 32),
      static_cast<size_t>(layout.bytes), args);
}

// Launches the block if it is one of kBlocks. Returns whether it was.
template <WeightType kType, Block... kBlocks>
bool launch_one_of(const Block& block, const ThinArgs& args, const Launch& launch) {
  return ((block == kBlocks && (launch_block<kType, kBlocks>(args, launch), true)) || ...);
}

template <WeightType kType>
void linear_of(const DenseLinearParams& p, const Launch& launch) {
  constexpr bool kBytes = Type<kType>::kBytes;
  ThinArgs args;
  args.w = static_cast<const std::byte*>(p.w.data);
  args.w_row_bytes = p.w.row_stride * (kBytes ? 1 : 2);
  args.w_scales = p.w.scales;
  args.w_scale_stride = p.w.scale_stride;
  args.x = kBytes ? reinterpret_cast<const std::byte*>(p.x_quantized.codes)
                  : reinterpret_cast<const std::byte*>(p.x);
  args.x_row_bytes = kBytes ? p.x_quantized.stride : p.x_stride * 2;
  args.x_scales = p.x_quantized.scales;
  args.x_scale_stride = p.x_quantized.scale_stride;
  args.bias = p.bias;
  args.gate = p.gate;
  args.y = p.y;
  args.y_f32 = p.y_f32;
  args.y_stride = p.y_stride;
  args.m = static_cast<int>(p.m);
  args.n = static_cast<int>(p.w.n);
  args.k_bytes = static_cast<int>(kBytes ? round_up(p.w.k, kQuantGroup) : p.w.k * 2);
  const Block block = block_of(kType, tile_of_tokens(p.m), blocks_of_k(kType, p.w.k),
                               (p.w.n + kRows - 1) / kRows, launch.num_sms);
  constexpr fitted::ThinBlocks kFitted;
  bool launched = false;
  if constexpr (!kBytes) {
    launched =
        launch_one_of<kType, kFitted.tokens_16_tall, kFitted.tokens_16, kFitted.others>(block, args, launch);
  } else if constexpr (Type<kType>::kFp8) {
    launched = launch_one_of<kType, kFitted.tokens_16_bytes, kFitted.short_fp8_many, kFitted.short_fp8,
                             kFitted.long_fp8>(block, args, launch);
  } else {
    launched = launch_one_of<kType, kFitted.tokens_16_bytes, kFitted.short_int8, kFitted.others>(block, args,
                                                                                                 launch);
  }
  HADAL_CHECK(launched, "no block of {} tokens and {} rows is compiled", block.tokens, block.rows);
}

}  // namespace hadal::cuda::thin
