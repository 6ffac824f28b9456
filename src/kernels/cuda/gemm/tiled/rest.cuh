// Implements the shared round of gemm/tiled/kernel.cuh (gemm/tiled/rest.h): helpers send their sums of a
// tile's tail to its owner through global memory that stays in the L2.
//
// A warp of the owner needs only the sums of the same warp of the helpers' blocks. So each warp has its own
// count. Helpers increment the count when they have stored their sums; the owner's warp waits until all have
// done so and resets the count to zero for the next launch. Helpers wait for no other block. The owner adds
// the sums in the order of the helpers, whatever the order in which the sums arrive.
#pragma once

#include "kernels/cuda/common/sanitize.cuh"
#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/gemm/tiled/config.cuh"

namespace hadal::cuda::wgmma_gemm {

// Computes this thread's addresses in sums [places][blocks of a cluster][waves][kSums / 4][threads of the
// consumers] and counts [tiles][blocks of a cluster][warps of the consumers].
template <class C>
struct RestPlaces {
  static constexpr int kThreads = 128 * C::kConsumers;
  static constexpr int kFours = C::kSums / 4;
  static_assert(sizeof(uint4) * kThreads * kFours * C::kWaves <= RestWorkspace::kBlockBytes &&
                4 * C::kConsumers <= RestWorkspace::kWarps);

  __device__ __forceinline__ static uint4* sums(const WgmmaGemmParams& p, int place, int rank, int wave) {
    return static_cast<uint4*>(p.rest.sums) +
           (static_cast<int64_t>(place * C::kCluster + rank) * C::kWaves + wave) * kFours * kThreads +
           (threadIdx.x - 128);
  }
  __device__ __forceinline__ static uint32_t* count(const WgmmaGemmParams& p, int tile, int rank) {
    return p.rest.counts + (tile * C::kCluster + rank) * 4 * C::kConsumers + (threadIdx.x - 128) / 32;
  }
};

// A helper calls this. It stores its sums and increments the count.
template <class C>
__device__ __forceinline__ void store_tail(const WgmmaGemmParams& p, int tile, int rank, bool all_waves,
                                           const typename C::Sum (&sums)[C::kWaves][C::kSums]) {
  const int helper = static_cast<int>(blockIdx.x) / C::kCluster - p.rest.cut.tiles;
#pragma unroll
  for (int v = 0; v < C::kWaves; ++v) {
    if (v > 0 && !all_waves) break;
    uint4* to = RestPlaces<C>::sums(p, RestCut::place(tile, helper), rank, v);
#pragma unroll
    for (int i = 0; i < C::kSums; i += 4) {
      __stcg(to + i / 4 * RestPlaces<C>::kThreads,
             make_uint4(bits_of(sums[v][i]), bits_of(sums[v][i + 1]), bits_of(sums[v][i + 2]),
                        bits_of(sums[v][i + 3])));
    }
  }
  random_delay_of_warp(DelayedRole::kWriter);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(
                     RestPlaces<C>::count(p, tile, rank))
                 : "memory");
  }
}

// A whole warp calls this. It waits until `wanted` helpers have stored their sums. All lanes poll, because a
// loop in a branch of one lane keeps the compiler from using uniform registers in the whole kernel.
__device__ __forceinline__ void wait_for_count(const uint32_t* count, int wanted) {
  const auto is_complete = [&] {
    uint32_t seen;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    return __all_sync(0xffffffffU, seen == static_cast<uint32_t>(wanted)) != 0;
  };
  spin_until(is_complete, [] { __trap(); });
}

// An owner calls this. It waits for the helpers of the tile and adds their sums.
template <class C>
__device__ __forceinline__ void add_tail(const WgmmaGemmParams& p, int tile, int rank, bool all_waves,
                                         typename C::Sum (&sums)[C::kWaves][C::kSums]) {
  const int first = p.rest.cut.first_helper(tile);
  const int last = p.rest.cut.last_helper(tile);
  uint32_t* count = RestPlaces<C>::count(p, tile, rank);
  wait_for_count(count, last - first + 1);
#pragma unroll 1
  for (int helper = first; helper <= last; ++helper) {
#pragma unroll
    for (int v = 0; v < C::kWaves; ++v) {
      if (v > 0 && !all_waves) break;
      const uint4* from = RestPlaces<C>::sums(p, RestCut::place(tile, helper), rank, v);
      // This many loads fit in the registers that held the partial sums.
      constexpr int kAtOnce = C::kWaves > 1 ? 8 : RestPlaces<C>::kFours;
#pragma unroll
      for (int begin = 0; begin < RestPlaces<C>::kFours; begin += kAtOnce) {
        uint4 four[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) four[i] = __ldcg(from + (begin + i) * RestPlaces<C>::kThreads);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const uint32_t words[4] = {four[i].x, four[i].y, four[i].z, four[i].w};
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[v][4 * (begin + i) + j] += of_bits<typename C::Sum>(words[j]);
        }
      }
    }
  }
  random_delay_of_warp(DelayedRole::kWriter);
  __syncwarp();
  if (threadIdx.x % 32 == 0) *count = 0;
}

}  // namespace hadal::cuda::wgmma_gemm
