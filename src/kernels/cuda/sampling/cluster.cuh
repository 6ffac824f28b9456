// Wraps a cluster's barrier and accesses to its blocks' shared memory.
#pragma once

#include <cstdint>

namespace hadal::cuda::sampling {

__device__ __forceinline__ uint32_t block_rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Synchronises the cluster. It is called by all threads of all blocks. Their earlier writes, to their own
// shared memory or another block's, are visible afterwards.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

// Returns the address that `p`, in this block's shared memory, has in block `rank`.
__device__ __forceinline__ uint32_t address_in_block(const void* p, int rank) {
  const auto local = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(local), "r"(rank));
  return address;
}

__device__ __forceinline__ void store_in_block(uint64_t* p, int rank, uint64_t value) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address_in_block(p, rank)), "l"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_from_block(const uint32_t* p, int rank) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address_in_block(p, rank)) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t add_in_block(uint32_t* p, int rank, uint32_t value) {
  uint32_t before;
  asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(address_in_block(p, rank)), "r"(value)
               : "memory");
  return before;
}

}  // namespace hadal::cuda::sampling
