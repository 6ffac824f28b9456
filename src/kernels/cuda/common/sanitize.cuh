// Holds the changes that builds with -DHADAL_SANITIZE_KERNELS=… make to kernels whose warps hand over shared
// memory through an mbarrier. The default build compiles none of these changes.
// docs/kernels/cuda-wgmma-gemm.md ("Order of memory accesses") says why the default build is correct, and how
// to run each of the other builds.
//
// compute-sanitizer's racecheck follows an mbarrier thread by thread: an arrival orders the accesses of the
// thread that arrives. In the default build one lane arrives for its warp after a __syncwarp, and the arrival
// for scales is made by the copy engine of cp.async; racecheck reports both as hazards. With
// HADAL_SANITIZE_KERNELS every lane arrives for itself, on barriers that count 32 arrivals per warp, and the
// producer waits for its cp.async copies and arrives by an ordinary mbarrier.arrive. HADAL_DELAY_KERNELS (the
// option's value DELAYS) leaves the protocol of the default build as it is and puts sleeps of random length
// between its steps, for the stress test (tests/cuda/gemm/stress_test.cpp).
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/mbarrier.cuh"

namespace hadal::cuda {

#ifdef HADAL_SANITIZE_KERNELS
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// This is the number of arrivals that a warp makes in mbarrier_arrive_warp.
inline constexpr uint32_t kWarpArrivals = kSanitized ? 32 : 1;

// A whole warp calls this after a __syncwarp, when it has read or written the data that the barrier guards.
// The warp arrives in each of the cluster's kBlocks blocks.
template <int kBlocks = 1>
__device__ __forceinline__ void mbarrier_arrive_warp(Mbarrier* barrier, int lane) {
  if constexpr (!kSanitized) {
    mbarrier_arrive_cluster<kBlocks>(barrier, lane);
  } else {
    mbarrier_arrive(barrier);
    if constexpr (kBlocks > 1) {
      const uint32_t own = cluster_rank();
#pragma unroll
      for (uint32_t rank = 0; rank < kBlocks; ++rank) {
        if (rank != own) mbarrier_arrive_remote(barrier, rank);
      }
    }
  }
}

// One thread calls this. It copies kCount floats, from sources[i] + offset to shared[i], and makes one
// arrival on the barrier when all of them have been written.
template <int kCount>
__device__ __forceinline__ void copy_floats_and_arrive(float* shared, const float* const (&sources)[kCount],
                                                       int offset, Mbarrier* barrier) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) copy_async_4(shared_address(shared + i), sources[i] + offset);
  if constexpr (!kSanitized) {
    copy_async_arrive(barrier);
  } else {
    copy_async_wait_all();
    mbarrier_arrive(barrier);
  }
}

// These are the roles whose threads sleep in a build with HADAL_DELAY_KERNELS.
enum class DelayedRole : uint32_t { kProducer, kConsumer0, kConsumer1, kWriter };

// Does nothing without HADAL_DELAY_KERNELS. Otherwise it may sleep. Time is divided into slices of a quarter
// of a millisecond, half of which are slow for each role. In a slow slice one call in 4 sleeps for up to 2
// microseconds, and one call in 256 for up to 33 microseconds. In the other slices one call in 64 sleeps for
// up to 2 microseconds. random_delay_of_warp is called by whole warps and ends with all lanes converged.
#ifdef HADAL_DELAY_KERNELS
__device__ __forceinline__ uint32_t mixed_bits(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ x >> 16;
}
__device__ __forceinline__ uint32_t random_delay_ns(DelayedRole role) {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  const auto slice = static_cast<uint32_t>(time >> 18);
  const uint32_t bits =
      mixed_bits(static_cast<uint32_t>(clock64()) ^ threadIdx.x << 24 ^ blockIdx.x * 0x9e3779b9U);
  const bool is_slow = (mixed_bits(slice) >> static_cast<uint32_t>(role) & 1U) != 0;
  if (is_slow && (bits & 255U) == 0) return bits >> 17;
  return (bits & (is_slow ? 3U : 63U)) == 1 ? bits >> 21 : 0;
}
__device__ __forceinline__ void random_delay(DelayedRole role) {
  if (const uint32_t ns = random_delay_ns(role); ns > 0) __nanosleep(ns);
}
__device__ __forceinline__ void random_delay_of_warp(DelayedRole role) {
  const uint32_t ns = __shfl_sync(0xffffffffU, random_delay_ns(role), 0);
  if (ns > 0) __nanosleep(ns);
  __syncwarp();
}
#else
__device__ __forceinline__ void random_delay(DelayedRole /*role*/) {}
__device__ __forceinline__ void random_delay_of_warp(DelayedRole /*role*/) {}
#endif
__device__ __forceinline__ DelayedRole delayed_consumer(int consumer) {
  return consumer == 0 ? DelayedRole::kConsumer0 : DelayedRole::kConsumer1;
}

}  // namespace hadal::cuda
