// Applies the scales of rows and channels in gemm/tiled/kernel.cuh: they multiply a tile's finished sums, and
// the bias is added, before the sums are stored in y.
#pragma once

#include "kernels/cuda/gemm/tiled/config.cuh"

namespace hadal::cuda::wgmma_gemm {

// Returns values[min(index, last)] and the next value, or zeros without a load if values is null. The asm is
// volatile and computes the address itself, so that the loads of a tile's many columns, and their addresses,
// do not fill registers ahead of their use.
__device__ __forceinline__ float2 load_pair_if_any(const float* values, int index, int last) {
  float2 pair;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 i;\n.reg .b64 a;\n"
      "setp.ne.b64 p, %2, 0;\n"
      "min.s32 i, %3, %4;\n"
      "mad.wide.s32 a, i, 4, %2;\n"
      "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
      "@p ld.global.nc.v2.f32 {%0, %1}, [a];\n}"
      : "=f"(pair.x), "=f"(pair.y)
      : "l"(values), "r"(index), "r"(last));
  return pair;
}

// Holds the scales of a thread's columns and rows of one tile; a thread has two neighbouring columns in each
// eight. With kEarly they are loaded with the tile, before the products, and stay in registers until the sums
// are finished. Otherwise they are loaded after the products, when the registers of the partial sums are
// free: all at once for up to 128 columns, and pair by pair for more columns.
template <class C>
struct ChannelScales {
  static constexpr bool kEarly = !C::kPromotes;
  static constexpr bool kAtOnce = kEarly || C::kColumns <= 128;
  const float* scales;  // of the expert's channels
  const float* bias;
  int first;  // the thread's first column
  int last;   // the last pair of columns that exists
  float rows[C::kWaves][2];
  float2 columns[kAtOnce ? C::kColumns / 8 : 1];

  // Loads scales. kBehind is true for the call after the products. `row` is the thread's first row of the
  // tile, and n_begin is the consumer's first column.
  template <bool kBehind>
  __device__ __forceinline__ void load(const WgmmaGemmParams& p, int expert, int row, int n_begin, int lane) {
    if constexpr (kBehind == kEarly) return;
    scales = p.w_scales + expert * p.expert_scale_stride;
    bias = p.bias;
    first = n_begin + 2 * (lane % 4);
    last = p.n - 2;
#pragma unroll
    for (int v = 0; v < C::kWaves; ++v) {
#pragma unroll
      for (int h = 0; h < 2; ++h) rows[v][h] = p.x_scales[min(row + C::kWaveRows * v + 8 * h, p.rows - 1)];
    }
    if constexpr (kAtOnce) {
#pragma unroll
      for (int j = 0; j < C::kColumns / 8; ++j) columns[j] = pair_of(scales, j);
    }
  }
  __device__ __forceinline__ float2 pair_of(const float* values, int j) const {
    return __ldg(reinterpret_cast<const float2*>(values + min(first + 8 * j, last)));
  }
  // Returns the scales of the thread's two columns among columns 8·j … 8·j + 7 of the consumer.
  __device__ __forceinline__ float2 of_columns(int j) const {
    if constexpr (kAtOnce)
      return columns[j];
    else
      return pair_of(scales, j);
  }
  __device__ __forceinline__ float2 bias_of(int j) const {
    return load_pair_if_any(bias, first + 8 * j, last);
  }
};

// Takes the place of ChannelScales for sums that have been scaled already.
template <class C>
struct NoChannelScales {
  template <bool kBehind>
  __device__ __forceinline__ void load(const WgmmaGemmParams& /*p*/, int /*expert*/, int /*row*/,
                                       int /*n_begin*/, int /*lane*/) {}
};
template <class C>
using EndScales = std::conditional_t<C::kChannelScales, ChannelScales<C>, NoChannelScales<C>>;

// Returns eight sums (columns 16·i … of the consumer, in the layout of accumulators) as y stores them.
template <class C>
__device__ __forceinline__ void finish8(const typename C::Sum (&sums)[C::kSums], int wave, int i,
                                        const EndScales<C>& scales, float (&v)[8]) {
  if constexpr (C::kChannelScales) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 columns = scales.of_columns(2 * i + half);
      const float2 bias = scales.bias_of(2 * i + half);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const typename C::Sum* two = &sums[8 * i + 4 * half + 2 * h];
        const float row = scales.rows[wave][h];
        v[4 * half + 2 * h] = fmaf(static_cast<float>(two[0]) * row, columns.x, bias.x);
        v[4 * half + 2 * h + 1] = fmaf(static_cast<float>(two[1]) * row, columns.y, bias.y);
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = sums[8 * i + j];
  }
}

}  // namespace hadal::cuda::wgmma_gemm
