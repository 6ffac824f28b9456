// Wraps the sm_90 PTX for barriers in shared memory (mbarrier), named barriers, fences and the reallocation
// of registers between warpgroups.
//
// An mbarrier flips its phase when its pending arrivals AND its pending bytes reach zero. A wait names the
// parity of the phase whose end it waits for: the first phase has parity 0. To wait for a slot that is free
// at the start, use parity 1, because the phase "before" the first one counts as complete.
#pragma once

#include <cstdint>
#ifndef NDEBUG
#include <cstdio>
#endif

#include "kernels/cuda/common/spin.cuh"

namespace hadal::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

using Mbarrier = uint64_t;  // in shared memory, 8-byte aligned

__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Makes initialised barriers visible. The thread that initialised them calls this afterwards; a __syncthreads
// (or a cluster barrier) must follow.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives on the barrier at the same address in block `rank` of the cluster. Use it after reads only: it does
// not make this thread's earlier writes visible to the other block, because a release at cluster scope costs
// a fence to the L2 each time.
__device__ __forceinline__ void mbarrier_arrive_remote(Mbarrier* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// A warp calls this after it has read the data that the barrier guards. In a cluster of kBlocks blocks the
// loads of every block wait for this warp, so it arrives in each block.
template <int kBlocks>
__device__ __forceinline__ void mbarrier_arrive_cluster(Mbarrier* barrier, int lane) {
  if constexpr (kBlocks > 1) {
    if (lane < kBlocks) mbarrier_arrive_remote(barrier, lane);
  } else {
    if (lane == 0) mbarrier_arrive(barrier);
  }
}

// Makes one arrival and adds `bytes` of bulk copies to the pending bytes.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(Mbarrier* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Tests the phase without suspending the thread; mbarrier_try_wait may suspend it for a short time.
__device__ __forceinline__ bool mbarrier_test(Mbarrier* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits for the end of the phase. Writes that were made before the phase's arrivals are then visible. Traps
// at the deadline of common/spin.cuh.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, uint32_t parity) {
  spin_until([&] { return mbarrier_try_wait(barrier, parity); },
             [&] {
#ifndef NDEBUG
               printf("mbarrier at %u never reached parity %u: block (%d, %d, %d), thread %d\n",
                      shared_address(barrier), parity, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
#endif
               __trap();
             });
}

// Holds a position in a ring of shared-memory slots: the slot and the parity of its current round. A consumer
// waits for `full` with parity(), a producer for `empty` with producer_parity() (the first round of empty
// slots is free).
template <int kSlots>
struct RingPosition {
  uint32_t slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ uint32_t parity() const { return phase; }
  __device__ __forceinline__ uint32_t producer_parity() const { return phase ^ 1U; }
  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

// Synchronises at a named barrier of the block, 1…15 (0 is __syncthreads). `threads` counts all participants,
// in whole warps.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Makes the ordinary shared-memory stores of this thread visible to the tensor cores and to bulk copies that
// are issued after a barrier that follows.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Sets the number of registers that each thread of the warpgroup has from here on, a multiple of 8 in 24…240.
// The kernel must have __launch_bounds__(threads, 1), and each role must be one branch of a single if.
template <int kRegisters>
__device__ __forceinline__ void set_max_registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void set_max_registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Returns true in one lane of a converged warp, in a form from which the compiler infers that the branch runs
// in one thread.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace hadal::cuda
