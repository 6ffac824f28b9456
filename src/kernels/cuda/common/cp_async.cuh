// Issues asynchronous copies of 4 and 16 bytes, which each thread makes for itself (cp.async), and prefetches
// into the L2. The bulk copies that one thread issues for its block are in common/tma.cuh.
//
// `shared` is an address that shared_address() returned. Both addresses are multiples of the copy's size.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/mbarrier.cuh"

namespace hadal::cuda {

__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Writes zeros if `exists` is false. The source address is then not read, but it must still be valid.
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(exists ? 16 : 0)
               : "memory");
}
// Copies through the L1, for bytes that other warps of the multiprocessor read as well.
__device__ __forceinline__ void copy_async_16_through_l1(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(exists ? 4 : 0)
               : "memory");
}

// Makes one group of all copies that this thread has issued since its last group. The group may be empty.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most the last kGroups groups of this thread are still being written. The bytes of all
// earlier groups are then visible to this thread.
template <int kGroups>
__device__ __forceinline__ void copy_async_wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Waits until all copies of this thread have been written and are visible to this thread.
__device__ __forceinline__ void copy_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// Makes one arrival on the barrier when all earlier copies of this thread have been written.
__device__ __forceinline__ void copy_async_arrive(Mbarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Prefetches the line of an address into the L2.
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

}  // namespace hadal::cuda
