// Asynchronous copies of 4 and 16 bytes, which each thread issues for itself (cp.async), and prefetches into
// the L2. The bulk copies that one thread issues for its block are in common/tma.cuh.
//
// `shared` is an address as shared_address() gives it; both addresses are multiples of the copy's size.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/mbarrier.cuh"

namespace hadal::cuda {

__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Writes zeros where the source does not exist: its address is not read then, but must be valid.
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(exists ? 4 : 0)
               : "memory");
}

// Waits until all copies of this thread have been written, as seen by this thread.
__device__ __forceinline__ void copy_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// Makes one of the barrier's arrivals once all earlier copies of this thread have been written.
__device__ __forceinline__ void copy_async_arrive(Mbarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Brings the line of an address into the L2.
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

}  // namespace hadal::cuda
