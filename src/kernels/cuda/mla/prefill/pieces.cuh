// Holds functions of the prefill kernel (mla/prefill/sm90.cu): the work of one consumer warpgroup on
// registers and tiles. Only sm90.cu includes this file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/prefill/schedule.cuh"

namespace hadal::cuda::prefill {

static_assert(kPrefillQueryTile == 128, "two warpgroups of 64");
constexpr int kKeyTile = kPrefillKeyTile;
constexpr int kConsumerThreads = 256;
constexpr int kBoxColumns = 64;    // 128 bytes of 16-bit values
constexpr int kGroupQueries = 64;  // queries of a consumer warpgroup
constexpr int kQueryBox = kGroupQueries * 128;
constexpr int kKeyBox = kKeyTile * 128;
constexpr int kQkBoxes = kPrefillQk / kBoxColumns;
constexpr int kScores = kKeyTile / 2;        // accumulators of S per thread
constexpr int kOutputs = kPrefillValue / 2;  // accumulators of O per thread
constexpr float kLog2E = 1.4426950408889634F;

struct KernelParams {
  PrefillSchedule schedule;
  int num_keys = 0;
  float scale_log2 = 0.0F;  // softmax_scale · log2(e)
  void* out = nullptr;
  int64_t out_stride = 0;
  float* lse = nullptr;
  bool accumulate = false;
  const uint64_t* bits = nullptr;
  int64_t bits_stride = 0;
};

// Holds the bits of a tile's keys for a thread's two rows, so shifted that bit 0 belongs to the thread's
// first column.
struct TileBits {
  uint64_t words[2][kKeyTile / 64];
};
// `rows` has the first words of the rows, or null for a row that does not exist, which selects nothing.
__device__ __forceinline__ TileBits load_bits(const uint64_t* const (&rows)[2], int tile, int num_keys) {
  const int shift = 2 * (static_cast<int>(threadIdx.x) % 4);
  TileBits bits;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < kKeyTile / 64; ++i) {
      const int word = tile * (kKeyTile / 64) + i;
      bits.words[h][i] = rows[h] != nullptr && word * 64 < num_keys ? rows[h][word] >> shift : 0;
    }
  }
  return bits;
}
__device__ __forceinline__ void mask_by_bits(float (&s)[kScores], const TileBits& bits) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int column = i / 4 * 8 + i % 2;
    if ((bits.words[i / 2 % 2][column / 64] >> (column % 64) & 1) == 0) s[i] = -INFINITY;
  }
}

// Holds the softmax state of a thread's two rows, h = 0 and 1. The scores of a row lie in the four threads of
// a quad.
struct RowState {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0F, 0.0F};  // sums over this thread's columns
};

// Turns S into P (not normalised, relative to the new maximum). rescale[h] receives the factor by which older
// sums and outputs are multiplied. With kMasked, columns from limit[h] on (counted from the thread's first
// column) are masked.
template <bool kMasked>
__device__ __forceinline__ void softmax_tile(float (&s)[kScores], RowState& rows, float (&rescale)[2],
                                             float scale_log2, const int (&limit)[2]) {
  if constexpr (kMasked) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int column = i / 4 * 8 + i % 2;
      if (column >= limit[i / 2 % 2]) s[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float maximum = rows.maximum[h];
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j)
      maximum = fmaxf(maximum, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 2));
    // If all keys of a row have been masked so far, any finite reference is correct.
    const float reference = (kMasked && maximum == -INFINITY ? 0.0F : maximum) * scale_log2;
    rescale[h] = exp2_fast(rows.maximum[h] * scale_log2 - reference);
    rows.maximum[h] = maximum;
    float sum = rows.sum[h] * rescale[h];
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& element = s[4 * j + 2 * h + c];
        element = exp2_fast(fmaf(element, scale_log2, -reference));
        sum += element;
      }
    }
    rows.sum[h] = sum;
  }
}

template <typename T, int kColumns = kKeyTile>
__device__ __forceinline__ void multiply_qk(float (&s)[kColumns / 2], const std::byte* q,
                                            const std::byte* k) {
  const uint64_t a = wgmma_k_major(q);
  const uint64_t b = wgmma_k_major(k);
#pragma unroll
  for (int step = 0; step < kPrefillQk / 16; ++step) {
    const int box = step / 4;
    const int inside = step % 4 * 32;
    wgmma_16_bit<T, kColumns>(s, wgmma_advance(a, box * kQueryBox + inside),
                              wgmma_advance(b, box * kKeyBox + inside), step != 0);
  }
}

template <typename T>
__device__ __forceinline__ void multiply_pv(float (&o)[kOutputs], const uint32_t (&p)[kScores / 8][4],
                                            const std::byte* v) {
  const uint64_t b = wgmma_mn_major(v, kKeyBox);
#pragma unroll
  for (int step = 0; step < kKeyTile / 16; ++step) {
    wgmma_16_bit_rs<T, kPrefillValue, true>(o, p[step], wgmma_advance(b, step * 2048), true);
  }
}

template <typename T>
__device__ __forceinline__ void pack_p(const float (&s)[kScores], uint32_t (&p)[kScores / 8][4]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) p[i / 4][i % 4] = pack_two<T>(s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ void arrive_warp(Mbarrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// Transposes 4×4 words across a quad: word i of thread t becomes word t of thread i.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = (threadIdx.x & 1U) != 0;
  const bool high = (threadIdx.x & 2U) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffU, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffU, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

// Stores zeros and −inf for an item whose queries see no key.
__device__ inline void store_nothing(const KernelParams& p, const PrefillItem& item, int thread) {
  if (p.accumulate) return;
  constexpr int kChunks = kPrefillValue / 8;
  for (int i = thread; i < item.num_queries * kChunks; i += kConsumerThreads) {
    const int64_t row = item.q_row + i / kChunks;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.out) + row * p.out_stride + item.head * kPrefillValue +
                              i % kChunks * 8) = uint4{0, 0, 0, 0};
  }
  if (p.lse != nullptr && thread < item.num_queries) {
    p.lse[(int64_t{item.q_row} + thread) * p.schedule.num_heads + item.head] = -INFINITY;
  }
}

template <typename T>
__device__ __forceinline__ void store_tile(const KernelParams& p, const PrefillItem& item, int first_row,
                                           float (&o)[kOutputs], RowState& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    const int row = first_row + 8 * h;
    const bool valid = row < item.num_queries;
    const int64_t q_row = int64_t{item.q_row} + row;
    T* out = static_cast<T*>(p.out) + q_row * p.out_stride + item.head * kPrefillValue;
    float* lse = p.lse != nullptr ? p.lse + q_row * p.schedule.num_heads + item.head : nullptr;
    const bool seen = sum > 0.0F;
    const float own_lse = seen ? (rows.maximum[h] * p.scale_log2 + log2f(sum)) * kLn2 : -INFINITY;
    float factor = seen ? __fdividef(1.0F, sum) : 0.0F;
    if (p.accumulate) {
      const float old_lse = valid ? *lse : -INFINITY;
      const float top = fmaxf(old_lse, own_lse);
      const float old_weight = top == -INFINITY ? 0.0F : exp2_fast((old_lse - top) * kLog2E);
      const float own_weight = top == -INFINITY ? 0.0F : exp2_fast((own_lse - top) * kLog2E);
      const float total = old_weight + own_weight;
      const float part_of_total = total > 0.0F ? __fdividef(1.0F, total) : 0.0F;
      const float keep = old_weight * part_of_total;
      factor *= own_weight * part_of_total;
      const bool has_old = valid && keep > 0.0F;
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        const uint32_t old = has_old ? *reinterpret_cast<const uint32_t*>(out + 8 * j + 2 * (lane % 4)) : 0U;
        const float2 part = unpack_two<T>(old);
        o[4 * j + 2 * h] = o[4 * j + 2 * h] * factor + part.x * keep;
        o[4 * j + 2 * h + 1] = o[4 * j + 2 * h + 1] * factor + part.y * keep;
      }
      factor = 1.0F;
      __syncwarp();  // the quad has read its row
      if (valid && lane % 4 == 0 && total > 0.0F) *lse = top + log2f(total) * kLn2;
    } else if (lse != nullptr && valid && lane % 4 == 0) {
      *lse = own_lse;
    }
#pragma unroll
    for (int g = 0; g < kOutputs / 16; ++g) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (4 * g + i) + 2 * h;
        words[i] = pack_two<T>(o[at] * factor, o[at + 1] * factor);
      }
      transpose_quad(words);
      if (valid) {
        *reinterpret_cast<uint4*>(out + 32 * g + 8 * (lane % 4)) =
            uint4{words[0], words[1], words[2], words[3]};
      }
    }
  }
}

}  // namespace hadal::cuda::prefill
