// Implements the FP8 formats of the swapped decode kernel (mla/decode/swapped/kernel.cuh; page.cuh has the
// contract). Both products use the cache's codes directly. mla/decode/swapped/fp8_load.cuh describes the
// layout of the data, and the queries in two terms hi and lo.
//
//   scores   S^T[64 keys, rows] = K · Q^T: A is the tile as it lies, B the queries' terms. The tensor cores
//            keep about 14 bits of an FP8 sum, so after every 64 of k the sum is multiplied by the group's
//            scale and added to a float32 sum.
//   softmax  With scales, a weight is p · scale. The running maximum is taken over score + log2(largest scale
//            of the record), so that weights stay in [0, 1]; the row sum divides the scale out again. Weights
//            are stored multiplied by 256, in two terms like the queries, and in four sets (one for each 128
//            latents). If each of a warp's sixteen records has four equal scales, the sets are equal and are
//            computed only once.
//   output   O^T[512, rows] += V^T · P^T: FP8 products support only K-major operands, so V^T is the register
//            operand. ldmatrix.trans moves 16-bit units: for the eight keys of a matrix, a lane receives dims
//            (2g, 2g + 1) of keys 2c and 2c + 1 (g = lane / 4, c = lane % 4). One prmt selects the even bytes
//            of two such words (dim 2g of four keys), another the odd bytes (dim 2g + 1); these are rows g
//            and g + 8 of the fragment. So a thread's two accumulator rows are neighbouring dims, and byte
//            4c + i of sixteen keys is key 2c + (i >> 1) + 8 · (i & 1), which is the order in which
//            stmatrix.trans stores the weights. A page's sums are added in float32 to the rescaled output.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode/swapped/fp8_load.cuh"
#include "kernels/cuda/mla/decode/swapped/send.cuh"

namespace hadal::cuda::swapped {

template <bool kIsE4M3, bool kMasks>
struct FormatFp8 : FormatFp8Load<kIsE4M3, kMasks> {
  static constexpr bool kPairedDims = true;
  static constexpr bool kPairs = true;
  static constexpr float kWeightLog2 = 8.0F;  // hi of a weight is at most 256

  // Weights: two sets per tile [hi of kN rows, lo of kN rows][64 keys of each set].
  static constexpr int kSets = kIsE4M3 ? 4 : 1;
  template <int kN>
  static constexpr int weight_bytes() {
    return (kSets + 1) / 2 * 2 * kN * 128;
  }

  template <int kN>
  struct RowFacts {};
  template <int kN>
  static __device__ __forceinline__ RowFacts<kN> row_facts(const DecodeArgs& /*args*/,
                                                           const std::byte* /*queries*/) {
    return {};
  }

  template <int kN>
  static __device__ __forceinline__ void attend(State<kN>& state, const RowFacts<kN>& facts, const Page& page,
                                                const PageWork<kN>& work) {
    float s[kN / 2];
    float factor[kN / 4];
    Scales scales;
    scores<kN, 0, kSteps>(s, scales, page, opaque(shared_address(work.queries)), work.valid);
    page.free(0);
    softmax<kN>(state, s, factor, scales, work, 1.0F);
    Load::template zero_unseen<kN, 0, 4>(page, work);
    values<kN, 0, kMTiles>(state, factor, page, opaque(shared_address(work.weights)));
  }

  template <int kN>
  static __device__ __forceinline__ void attend_pair(State<kN>& state, const RowFacts<kN>& /*facts*/,
                                                     const Page& page, const PageWork<kN>& work,
                                                     int warpgroup, std::byte* given, const std::byte* taken,
                                                     const Sender<kN>& sender) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    float s[kN / 2];
    float factor[kN / 4];
    Scales scales;
    if (warpgroup == 0) {
      scores<kN, 0, 8>(s, scales, page, opaque(shared_address(work.queries)), work.valid);
    } else {
      scores<kN, 8, kSteps>(s, scales, page, opaque(shared_address(work.queries)), work.valid);
    }
#pragma unroll
    for (int q = 0; q < kN / 8; ++q) {
      reinterpret_cast<float4*>(given)[q * 128 + thread] = {s[4 * q], s[4 * q + 1], s[4 * q + 2],
                                                            s[4 * q + 3]};
    }
    named_barrier_sync(kAllConsumers, kConsumers);
    // Only this warpgroup reads the rope tile; both have read the scales, which are freed with it.
    if (warpgroup == (kIsE4M3 ? 0 : 1)) page.free(0);
#pragma unroll
    for (int q = 0; q < kN / 8; ++q) {
      const float4 other = reinterpret_cast<const float4*>(taken)[q * 128 + thread];
      s[4 * q] += other.x;
      s[4 * q + 1] += other.y;
      s[4 * q + 2] += other.z;
      s[4 * q + 3] += other.w;
    }
    softmax<kN>(state, s, factor, scales, work, warpgroup == 0 ? 1.0F : 0.0F);
    // This warpgroup's values of the other m-tiles, which come from earlier pages, are only rescaled to the
    // new maximum.
    if (warpgroup == 0) {
      rescale<kN, kMTiles / 2, kMTiles>(state, factor);
      Load::template zero_unseen<kN, 0, 2>(page, work);
      values<kN, 0, kMTiles / 2>(state, factor, page, opaque(shared_address(work.weights)), &sender);
    } else {
      rescale<kN, 0, kMTiles / 2>(state, factor);
      Load::template zero_unseen<kN, 2, 4>(page, work);
      values<kN, kMTiles / 2, kMTiles>(state, factor, page, opaque(shared_address(work.weights)), &sender);
    }
  }

 private:
  using Load = FormatFp8Load<kIsE4M3, kMasks>;
  using typename Load::Scales;

  // Computes d[64, 2 · kN] (+)= A · B with 32 of k.
  template <int kN>
  static __device__ __forceinline__ void multiply(float (&d)[kN], uint64_t a, uint64_t b, bool accumulate) {
    if constexpr (kIsE4M3) {
      wgmma_e4m3<2 * kN>(d, a, b, accumulate);
    } else {
      wgmma_e5m2_e4m3<2 * kN>(d, a, b, accumulate);
    }
  }
  template <int kN>
  static __device__ __forceinline__ void multiply(float (&d)[kN], const uint32_t (&a)[4], uint64_t b,
                                                  bool accumulate) {
    if constexpr (kIsE4M3) {
      wgmma_e4m3_rs<2 * kN>(d, a, b, accumulate);
    } else {
      wgmma_e5m2_e4m3_rs<2 * kN>(d, a, b, accumulate);
    }
  }

  static constexpr int kSteps = kIsE4M3 ? 16 : 18;  // FP8 products of 32 k; the last two of e5m2 are rope
  // The tensor cores sum this many products (64 of k) before the sum is added in float32.
  static constexpr int kStepsAtOnce = 2;
  // This many sums are in flight at once; 32 rows leave registers for only one.
  template <int kN>
  static constexpr int kInFlight = kN == 16 ? 4 : 1;

  // Computes scores, not yet multiplied by the query's scale, over the products [kFirst, kEnd) of 32 k. It
  // also loads `scales`, after it has issued the first products.
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void scores(float (&s)[kN / 2], Scales& scales, const Page& page,
                                                uint32_t queries, int valid) {
    constexpr int kUnits = (kEnd - kFirst + kStepsAtOnce - 1) / kStepsAtOnce;
    constexpr int kAhead = kUnits < kInFlight<kN> ? kUnits : kInFlight<kN>;
    constexpr bool kRope = kIsE4M3 && kFirst == 0;
    float part[kAhead][kN];
    const auto issue = [&](int unit) {
      const int first = kFirst + unit * kStepsAtOnce;
      const int group = first / 4;
      if (first % 4 == 0) group == 4 ? page.wait(0) : page.wait(1 + group);
      const std::byte* tile = group == 4 ? page.tile(0) : page.tile(1 + group);
      const uint64_t a = wgmma_descriptor(shared_address(tile) + first % 4 * 32, 16, 1024);
      const uint64_t b = wgmma_descriptor(queries + group * kGroupBytes<kN> + first % 4 * 32, 16, 1024);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < min(kStepsAtOnce, kEnd - first); ++k)
        multiply<kN>(part[unit % kAhead], wgmma_advance(a, k * 32), wgmma_advance(b, k * 32), k > 0);
      wgmma_commit();
    };
    if constexpr (kRope) {
      const uint64_t a = wgmma_descriptor(page.rope(), 16, 1024);
      const uint64_t b = wgmma_descriptor(queries + 4 * kGroupBytes<kN>, 16, 1024);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_bf16<kN>(s, wgmma_advance(a, k * 32), wgmma_advance(b, k * 32), k > 0);
    }
#pragma unroll
    for (int unit = 0; unit < kAhead; ++unit) issue(unit);
    if constexpr (kIsE4M3) Load::load_scales(scales, page, valid);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      wgmma_wait_for(min(kUnits - 1 - unit, kAhead - 1));
      float(&own)[kN] = part[unit % kAhead];
      wgmma_pin(own);
      if constexpr (kRope) {
        if (unit == 0) wgmma_pin(s);
      }
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        const float sum = fmaf(own[i + kN / 2], 0x1p-4F, own[i]);
        const float before = kRope || unit > 0 ? s[i] : 0.0F;
        if constexpr (kIsE4M3) {
          s[i] = fmaf(scales.group[i / 2 % 2][(kFirst + unit * kStepsAtOnce) / 4], sum, before);
        } else {
          s[i] = before + sum;
        }
      }
      if (unit + kAhead < kUnits) issue(unit + kAhead);
    }
  }

  // Turns scores into weights in shared memory, updates the running maximum and sum, and computes the factors
  // for the output so far. The weights are multiplied by `counted` (0 or 1) in the sums.
  template <int kN>
  static __device__ __forceinline__ void softmax(State<kN>& state, float (&s)[kN / 2],
                                                 float (&factor)[kN / 4], Scales& scales,
                                                 const PageWork<kN>& work, float counted) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int column = 2 * (lane % 4);
    if constexpr (kIsE4M3) Load::hide_scales(scales, work);
    float row_scale[kN / 4];
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const float2 v =
          reinterpret_cast<const float2*>(work.queries + kRowScaleOffset<kIsE4M3, kN>)[(8 * j + column) / 2];
      row_scale[2 * j] = v.x;
      row_scale[2 * j + 1] = v.y;
    }
    float inverse[2];  // inverses of the keys' largest scales
    float top[kN / 4];
    {
      float log2_scale[2];
      if constexpr (kIsE4M3) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float(&g)[4] = scales.group[h];
          const float largest = fmaxf(fmaxf(fmaxf(g[0], g[1]), fmaxf(g[2], g[3])), 0x1p-60F);
          inverse[h] = __fdividef(1.0F, largest);
          log2_scale[h] = __log2f(largest);
        }
      }
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        const int r = i / 4 * 2 + i % 2;
        const int h = i / 2 % 2;
        if constexpr (kIsE4M3) {
          s[i] = fmaf(s[i], row_scale[r], log2_scale[h]);
        } else {
          s[i] *= row_scale[r];
        }
        if (is_hidden<kMasks>(work, r, h)) s[i] = -INFINITY;
        top[r] = h == 0 ? s[i] : fmaxf(top[r], s[i]);
      }
    }
    float base[kN / 4];
    renew_maxima<kN>(state, top, work, base, factor);
    float offset[kN / 4];
#pragma unroll
    for (int r = 0; r < kN / 4; ++r) offset[r] = kWeightLog2 - base[r];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int r = i / 4 * 2 + i % 2;
      s[i] = exp2_fast(s[i] + offset[r]);
      state.sum[r] = fmaf(s[i], kIsE4M3 ? inverse[i / 2 % 2] * counted : counted, state.sum[r]);
    }

    // Splits the weights of one set into two terms, the words hi and lo, for the columns 8·j + column and the
    // next one.
    const auto split = [&](float share0, float share1, uint32_t(&hi)[kN / 8], uint32_t(&lo)[kN / 8]) {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const E4M3Pair even = split_e4m3(s[4 * j] * share0, s[4 * j + 2] * share1);
        const E4M3Pair odd = split_e4m3(s[4 * j + 1] * share0, s[4 * j + 3] * share1);
        hi[j] = even.hi | odd.hi << 16;
        lo[j] = even.lo | odd.lo << 16;
      }
    };
    // Lane l addresses row l % 8 of matrix l / 8; the matrices are hi of columns 0…7 and 8…15, then lo of the
    // same columns.
    const auto store = [&](int set, const uint32_t(&hi)[kN / 8], const uint32_t(&lo)[kN / 8]) {
      const uint32_t row = lane / 16 * kN + lane % 16;
      const uint32_t tile = opaque(shared_address(work.weights)) + set / 2 * (2 * kN * 128);
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        store_matrix_x4_transposed(tile + swizzle_128(row + 8 * j, set % 2 * 4 + warp), hi[j], hi[j + 1],
                                   lo[j], lo[j + 1]);
      }
    };
    uint32_t hi[kN / 8], lo[kN / 8];
    bool alike = true;
    if constexpr (kIsE4M3) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float(&g)[4] = scales.group[h];
        alike = alike && g[0] == g[1] && g[0] == g[2] && g[0] == g[3];
      }
      alike = __all_sync(0xffffffffU, alike);
    }
    if (alike) {
      split(1.0F, 1.0F, hi, lo);
#pragma unroll
      for (int set = 0; set < kSets; ++set) store(set, hi, lo);
    } else {
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        split(scales.group[0][set] * inverse[0], scales.group[1][set] * inverse[1], hi, lo);
        store(set, hi, lo);
      }
    }
    fence_proxy_async_shared();
    named_barrier_sync(work.barrier, 128);
  }

  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void rescale(State<kN>& state, const float (&factor)[kN / 4]) {
#pragma unroll
    for (int m = kFirst; m < kEnd; ++m) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) state.output[m][i] *= factor[i / 4 * 2 + i % 2];
    }
  }

  // Adds the page's values to the m-tiles [kFirst, kEnd), which are first multiplied by `factor`.
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void values(State<kN>& state, const float (&factor)[kN / 4],
                                                const Page& page, uint32_t weights,
                                                const Sender<kN>* sender = nullptr) {
    constexpr int kAhead = kInFlight<kN>;
    constexpr int kOperands = kAhead > 1 ? kAhead : 2;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32 % 4;
    float part[kAhead][kN];
    uint32_t a[kOperands][2][4];
    const uint32_t row = lane * 128;  // lane l addresses key l of 32, in matrix l / 8
    const auto load = [&](int m) {
      const uint32_t at =
          shared_address(page.tile(1 + m / 2)) + row + (((m % 2 * 4 + warp) ^ (lane % 8)) << 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t r[4];
        load_matrix_x4_transposed(at + half * 32 * 128, r);
        uint32_t(&operand)[4] = a[m % kOperands][half];
        operand[0] = __byte_perm(r[0], r[1], 0x6240);
        operand[1] = __byte_perm(r[0], r[1], 0x7351);
        operand[2] = __byte_perm(r[2], r[3], 0x6240);
        operand[3] = __byte_perm(r[2], r[3], 0x7351);
        wgmma_pin(operand);
      }
      if (m % 2 == 1) page.free(1 + m / 2);
    };
    const auto issue = [&](int m) {
      const int set = kIsE4M3 ? m / 2 : 0;
      const uint64_t b = wgmma_descriptor(weights + set / 2 * (2 * kN * 128) + set % 2 * 64, 16, 1024);
      wgmma_fence();
      multiply<kN>(part[m % kAhead], a[m % kOperands][0], b, false);
      multiply<kN>(part[m % kAhead], a[m % kOperands][1], wgmma_advance(b, 32), true);
      wgmma_commit();
    };
#pragma unroll
    for (int m = kFirst; m < kFirst + kAhead; ++m) {
      load(m);
      issue(m);
    }
    if constexpr (kAhead == 1) load(kFirst + 1);
    if (sender != nullptr && sender->early) {
      sender->facts(state, kFirst == 0 ? 0 : 1);
      sender->open();
    }
#pragma unroll
    for (int m = kFirst; m < kEnd; ++m) {
      wgmma_wait_for(min(kEnd - 1 - m, kAhead - 1));
      float(&own)[kN] = part[m % kAhead];
      wgmma_pin(own);
#pragma unroll
      for (int half = 0; half < 2; ++half) wgmma_pin(a[m % kOperands][half]);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        state.output[m][i] =
            fmaf(state.output[m][i], factor[i / 4 * 2 + i % 2], fmaf(own[i + kN / 2], 0x1p-4F, own[i]));
      }
      const int next = m + kAhead;
      if (next < kEnd) {
        if (kAhead > 1) load(next);
        issue(next);
        if (kAhead == 1 && next + 1 < kEnd) load(next + 1);
      }
      if (sender != nullptr && sender->early) sender->values(m, state.output[m]);
    }
  }
};

}  // namespace hadal::cuda::swapped
