// The 16-bit formats of the swapped decode kernel: a page is nine tiles of 64 columns. The queries are nine
// tiles [kN rows][128 bytes], rope first, the weights one: operands B, K-major.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode_swapped_page.cuh"

namespace hadal::cuda::swapped {

// T: bf16 or f16.
template <typename T>
struct Format16 {
  static constexpr int kTiles = kKvRowDim / 64;
  static constexpr int kAuxBytes = 0;
  static constexpr bool kPairedDims = false;
  static constexpr float kWeightLog2 = 0.0F;
  static constexpr bool kPairs = true;
  using Out = T;
  struct Maps {
    CUtensorMap pool;
  };

  template <int kN>
  static constexpr int query_bytes() {
    return kTiles * kN * 128;
  }
  template <int kN>
  static constexpr int weight_bytes() {
    return kN * 128;
  }

  // {columns, records of a page, pages}. How many pages there are, the op is not told: more than any memory
  // holds.
  static Maps maps(const DecodeArgs& args) {
    return {make_tensor_map<3>(reinterpret_cast<const T*>(args.pool),
                               {kKvRowDim, kPageSize, int64_t{1} << 24},
                               {args.record_stride / 2, args.page_stride / 2}, {64, kPageSize, 1})};
  }

  static constexpr __device__ int column_of(int tile) { return tile == 0 ? kKvLatentDim : (tile - 1) * 64; }

  static __device__ __forceinline__ void load(const Maps& maps, int tile, int32_t page_id, std::byte* target,
                                              std::byte* /*aux*/, Mbarrier* barrier, L2Policy policy) {
    mbarrier_arrive_expect_tx(barrier, kTileBytes);
    tma_load_3d(target, &maps.pool, barrier, column_of(tile), 0, page_id, policy);
  }

  template <int kN>
  static __device__ __forceinline__ void prepare_queries(const DecodeArgs& args, int seq, int first_row,
                                                         std::byte* queries, int thread) {
    constexpr int kChunks = kN * kTiles * 8;  // of 16 bytes
    constexpr int kEach = (kChunks + kConsumers - 1) / kConsumers;
    const auto* q = static_cast<const T*>(args.q) + (int64_t{seq} * args.rows + first_row) * kKvRowDim;
    const int num_rows = args.rows - first_row;
    uint4 values[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int number = i * kConsumers + thread;
      const int row = number / (kTiles * 8);
      const int chunk = number % (kTiles * 8);
      values[i] = number < kChunks && row < num_rows ? load_once(q + row * kKvRowDim + chunk * 8)
                                                     : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int number = i * kConsumers + thread;
      const int row = number / (kTiles * 8);
      const int chunk = number % (kTiles * 8);
      const int tile = (chunk / 8 + 1) % kTiles;  // columns from 512 on are tile 0
      if (number < kChunks)
        *reinterpret_cast<uint4*>(queries + tile * kN * 128 + swizzle_128(row, chunk % 8)) = values[i];
    }
  }

  template <int kN>
  struct RowFacts {};
  template <int kN>
  static __device__ __forceinline__ RowFacts<kN> row_facts(const DecodeArgs& /*args*/,
                                                           const std::byte* /*queries*/) {
    return {};
  }

  template <int kN>
  static __device__ __forceinline__ void attend(State<kN>& state, const RowFacts<kN>& /*facts*/,
                                                const Page& page, const PageWork<kN>& work) {
    float s[kN / 2];
    scores<kN, 0, kTiles>(s, work.queries, page);
    page.free(0);
    softmax<kN>(state, s, work, 1.0F);
    weigh<kN, 0, kMTiles>(state, s, page, work);
  }

  template <int kN>
  static __device__ __forceinline__ void attend_pair(State<kN>& state, const RowFacts<kN>& /*facts*/,
                                                     const Page& page, const PageWork<kN>& work,
                                                     int warpgroup, std::byte* given,
                                                     const std::byte* taken) {
    constexpr int kHalf = kMTiles / 2;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    float s[kN / 2];
    if (warpgroup == 0) {
      scores<kN, 0, 1 + kHalf>(s, work.queries, page);
      page.free(0);
    } else {
      scores<kN, 1 + kHalf, kTiles>(s, work.queries, page);
    }
#pragma unroll
    for (int q = 0; q < kN / 8; ++q)
      reinterpret_cast<float4*>(given)[q * 128 + thread] = {s[4 * q], s[4 * q + 1], s[4 * q + 2],
                                                            s[4 * q + 3]};
    named_barrier_sync(kAllConsumers, kConsumers);
#pragma unroll
    for (int q = 0; q < kN / 8; ++q) {
      const float4 other = reinterpret_cast<const float4*>(taken)[q * 128 + thread];
      s[4 * q] += other.x;
      s[4 * q + 1] += other.y;
      s[4 * q + 2] += other.z;
      s[4 * q + 3] += other.w;
    }
    softmax<kN>(state, s, work, warpgroup == 0 ? 1.0F : 0.0F);
    if (warpgroup == 0) {
      weigh<kN, 0, kHalf>(state, s, page, work);
    } else {
      weigh<kN, kHalf, kMTiles>(state, s, page, work);
    }
  }

 private:
  // Over the tiles [kFirst, kEnd) of the page.
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void scores(float (&s)[kN / 2], const std::byte* queries,
                                                const Page& page) {
    const uint64_t q = wgmma_k_major(queries);
#pragma unroll
    for (int tile = kFirst; tile < kEnd; ++tile) {
      page.wait(tile);
      wgmma_fence();  // again after every wait: else the compiler serialises the products
      const uint64_t k = wgmma_k_major(page.tile(tile));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        product<kN, false>(s, wgmma_advance(k, step * 32), wgmma_advance(q, tile * kN * 128 + step * 32),
                           tile > kFirst || step > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(s);
  }

  // Scores to weights, which count for `counted` in the sums; the maxima go over the four warps through
  // shared memory.
  template <int kN>
  static __device__ __forceinline__ void softmax(State<kN>& state, float (&s)[kN / 2],
                                                 const PageWork<kN>& work, float counted) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int key = warp * 16 + lane / 4;
    const int column = 2 * (lane % 4);
    float top[kN / 4];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int r = i / 4 * 2 + i % 2;
      const int h = i / 2 % 2;
      s[i] *= work.scale_log2;
      if (work.masked && key + 8 * h >= work.seen[r]) s[i] = -INFINITY;
      top[r] = h == 0 ? s[i] : fmaxf(top[r], s[i]);
    }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
#pragma unroll
      for (float& v : top) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, distance));
    }
    if (lane < 4) {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j)
        *reinterpret_cast<float2*>(work.exchange + warp * kN + 8 * j + column) = {top[2 * j], top[2 * j + 1]};
    }
    named_barrier_sync(work.barrier, 128);
    float base[kN / 4];
    float factor[kN / 4];
    bool grown = false;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      float2 m = {state.maximum[2 * j], state.maximum[2 * j + 1]};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(work.exchange + w * kN + 8 * j + column);
        m = {fmaxf(m.x, other.x), fmaxf(m.y, other.y)};
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int r = 2 * j + c;
        const float now = c == 0 ? m.x : m.y;
        base[r] = now == -INFINITY ? 0.0F : now;
        grown = grown || now > state.maximum[r];
        factor[r] = exp2_fast(state.maximum[r] - base[r]);
        state.maximum[r] = now;
        state.sum[r] *= factor[r];
      }
    }
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int r = i / 4 * 2 + i % 2;
      s[i] = exp2_fast(s[i] - base[r]);
      state.sum[r] += counted * s[i];
    }
    // Most pages of a long sequence leave the maxima, and so the output, alone.
    if (__any_sync(0xffffffffU, grown)) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) state.output[m][i] *= factor[i / 4 * 2 + i % 2];
      }
    }
  }

  // The keys 16·w + 8·h + l / 4 of a thread: matrix (j, h) of 8 keys × 8 rows is stored transposed.
  template <int kN>
  static __device__ __forceinline__ void store_weights(const float (&w)[kN / 2], std::byte* weights) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t row = lane / 16 * 8 + lane % 8;
    const uint32_t chunk = 2 * warp + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       shared_address(weights) + swizzle_128(8 * j + row, chunk)),
                   "r"(pack(w[4 * j], w[4 * j + 1])), "r"(pack(w[4 * j + 2], w[4 * j + 3])),
                   "r"(pack(w[4 * j + 4], w[4 * j + 5])), "r"(pack(w[4 * j + 6], w[4 * j + 7]))
                   : "memory");
    }
  }

  // The m-tiles [kFirst, kEnd) += Vᵀ·Pᵀ; `weights` become operand B first.
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void weigh(State<kN>& state, const float (&weights)[kN / 2],
                                               const Page& page, const PageWork<kN>& work) {
    store_weights<kN>(weights, work.weights);
    if (work.valid < kPageSize) {  // latents of records that do not exist become zeros: 0 · NaN is NaN
#pragma unroll
      for (int m = kFirst; m < kEnd; ++m) {
        std::byte* tile = page.tile(1 + m);
        for (int i = work.valid * 8 + static_cast<int>(threadIdx.x) % 128; i < kPageSize * 8; i += 128)
          *reinterpret_cast<uint4*>(tile + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
    fence_proxy_async_shared();
    named_barrier_sync(work.barrier, 128);
    const uint64_t p = wgmma_k_major(work.weights);
    wgmma_fence();
#pragma unroll
    for (int m = kFirst; m < kEnd; ++m) {
      const uint64_t v = wgmma_mn_major(page.tile(1 + m), kTileBytes);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        product<kN, true>(state.output[m], wgmma_advance(v, step * 2048), wgmma_advance(p, step * 32), true);
      }
      wgmma_commit();
      if (m > kFirst) {
        wgmma_wait<1>();
        page.free(m);
        wgmma_fence();
      }
    }
    wgmma_wait<0>();
    page.free(kEnd);
#pragma unroll
    for (int m = kFirst; m < kEnd; ++m) wgmma_pin(state.output[m]);
  }

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<T, f16>) {
      const __half2 packed = __floats2half2_rn(low, high);
      return *reinterpret_cast<const uint32_t*>(&packed);
    } else {
      return pack_bf16(low, high);
    }
  }
  template <int kN, bool kAMnMajor>
  static __device__ __forceinline__ void product(float (&d)[kN / 2], uint64_t a, uint64_t b,
                                                 bool accumulate) {
    if constexpr (std::is_same_v<T, f16>) {
      wgmma_f16<kN, kAMnMajor>(d, a, b, accumulate);
    } else {
      wgmma_bf16<kN, kAMnMajor>(d, a, b, accumulate);
    }
  }
};

}  // namespace hadal::cuda::swapped
