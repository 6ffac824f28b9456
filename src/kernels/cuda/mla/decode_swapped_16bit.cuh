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
  static constexpr bool kScaled = false;
  static constexpr bool kPairedDims = false;
  using Out = T;
  using KeyScales = NoKeyScales;
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

  static __device__ __forceinline__ void load(const Maps& maps, const DecodeArgs& /*args*/, int tile,
                                              int32_t page_id, std::byte* target, std::byte* /*aux*/,
                                              Mbarrier* barrier, L2Policy policy) {
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
  static __device__ __forceinline__ void scores(float (&s)[kN / 2], const std::byte* queries,
                                                const Page& page) {
    const uint64_t q = wgmma_k_major(queries);
    wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      page.wait(tile);
      const uint64_t k = wgmma_k_major(page.tile(tile));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        product<kN, false>(s, wgmma_advance(k, step * 32), wgmma_advance(q, tile * kN * 128 + step * 32),
                           tile + step > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(s);
  }

  static __device__ __forceinline__ KeyScales key_scales(const Page& /*page*/, int /*valid*/) {
    return {};
  }

  // Thread (w, l) has the keys 16·w + 8·h + l / 4: matrix (j, h) of 8 keys × 8 rows is stored transposed.
  template <int kN>
  static __device__ __forceinline__ void store_weights(const float (&w)[kN / 2], const KeyScales& /*scales*/,
                                                       std::byte* weights, const Page& /*page*/) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t row = lane / 16 * 8 + lane % 8;
    const uint32_t chunk = 2 * warp + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      store_matrix_x4_trans(shared_address(weights) + swizzle_128(8 * j + row, chunk),
                            pack(w[4 * j], w[4 * j + 1]), pack(w[4 * j + 2], w[4 * j + 3]),
                            pack(w[4 * j + 4], w[4 * j + 5]), pack(w[4 * j + 6], w[4 * j + 7]));
    }
  }

  template <int kN>
  static __device__ __forceinline__ void accumulate(float (&acc)[kMTiles][kN / 2], const std::byte* weights,
                                                    const Page& page) {
    const uint64_t p = wgmma_k_major(weights);
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      const uint64_t v = wgmma_mn_major(page.tile(1 + m), kTileBytes);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        product<kN, true>(acc[m], wgmma_advance(v, step * 2048), wgmma_advance(p, step * 32), true);
      }
      wgmma_commit();
      if (m > 0) {
        wgmma_wait<1>();
        page.free(m);
      }
    }
    wgmma_wait<0>();
    page.free(kMTiles);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) wgmma_pin(acc[m]);
  }

 private:
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
