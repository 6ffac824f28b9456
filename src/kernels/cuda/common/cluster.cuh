// Wraps the PTX for the blocks of a cluster: ranks, the barrier as a whole or in two halves, and reads and
// writes of another block's shared memory. It needs sm_90 or later.
//
// A block must have started before another block writes to its shared memory, and must not end before the
// last such write. So arrive early and wait before the first remote write; after the last remote write,
// arrive and wait again.
#pragma once

#include <cstdint>

namespace hadal::cuda {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of every block calls these, in whole warps. Writes that were made before the arrival are
// visible after the wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives and waits, with the same visibility of writes.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// These arrive and wait in code that only some of a warp's threads run.
__device__ __forceinline__ void cluster_arrive_unaligned() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait_unaligned() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Synchronises blocks that have only read each other's memory. It does not make their earlier writes visible.
__device__ __forceinline__ void cluster_reads_done() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Returns four floats from the shared memory of block `rank`, at the place that corresponds to this block's
// address `shared`.
__device__ __forceinline__ float4 load_remote(uint32_t shared, uint32_t rank) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared), "r"(rank)
      : "memory");
  return v;
}

// These write to the word of block `block` that lies where `word` lies in this block: *word |= bits, and
// *word = value.
__device__ __forceinline__ void cluster_or(uint32_t* word, uint32_t bits, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "red.relaxed.cluster.shared::cluster.or.b32 [remote], %2;\n"
      "}\n" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(word))),
      "r"(block), "r"(bits)
      : "memory");
}
__device__ __forceinline__ void cluster_store(float* word, float value, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.f32 [remote], %2;\n"
      "}\n" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(word))),
      "r"(block), "f"(value)
      : "memory");
}

}  // namespace hadal::cuda
