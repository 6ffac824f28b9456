// Wraps the bulk copy engine (TMA): makes tensor maps on the host, and issues tiled loads, tiled stores and
// bulk prefetches on the device.
//
// A tensor map describes a row-major array in global memory and a box of it. A load writes the box to a
// shared-memory address, its rows densely one after the other. With the 128-byte swizzle a box row is at most
// 128 bytes, the address is a multiple of 1024, and the 16-byte chunk c of row r lies at chunk (c ^ (r % 8))
// of the row. Elements outside of the array are read as zero (and still count towards the barrier's bytes);
// stores skip them.
//
// Maps are passed by value as `const __grid_constant__ CUtensorMap` parameters, so a graph keeps its own
// copy.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/float_types.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"

namespace hadal::cuda {

using TensorMapEncode = decltype(&cuTensorMapEncodeTiled);

// Returns the driver's encoder, which is looked up through the runtime so that nothing links against the
// driver's library.
inline TensorMapEncode tensor_map_encoder() {
  static const TensorMapEncode encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    HADAL_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                      cudaEnableDefault, &status));
    HADAL_CHECK(status == cudaDriverEntryPointSuccess && found != nullptr,
                "the driver has no cuTensorMapEncodeTiled (status {}): it must be of CUDA 12 or newer",
                static_cast<int>(status));
    return reinterpret_cast<TensorMapEncode>(found);
  }();
  return encoder;
}

template <typename T>
constexpr CUtensorMapDataType tensor_map_type() {
  if constexpr (std::is_same_v<T, bf16>)
    return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  else if constexpr (std::is_same_v<T, f16>)
    return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  else if constexpr (std::is_same_v<T, float>)
    return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  else {
    static_assert(sizeof(T) == 1, "bytes, e4m3 and e5m2 are copied as bytes");
    return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

// Makes a map of kRank dimensions, the innermost (contiguous) first. `sizes`, `box` and `strides` are in
// elements; `strides` holds the strides of the dimensions 1 … kRank − 1. The base and every stride are
// multiples of 16 bytes; a box dimension is at most 256; sizes are at least 1. `promotion` is the number of
// bytes that the L2 reads from memory at once. Throws hadal::Error.
template <int kRank, typename T>
CUtensorMap make_tensor_map(const T* base, const int64_t (&sizes)[kRank], const int64_t (&strides)[kRank - 1],
                            const int (&box)[kRank], CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                            CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  static_assert(kRank >= 2 && kRank <= 5);
  cuuint64_t global_sizes[kRank];
  cuuint64_t global_strides[kRank - 1];
  cuuint32_t box_sizes[kRank];
  cuuint32_t element_strides[kRank];
  for (int d = 0; d < kRank; ++d) {
    global_sizes[d] = static_cast<cuuint64_t>(sizes[d]);
    box_sizes[d] = static_cast<cuuint32_t>(box[d]);
    element_strides[d] = 1;
    if (d > 0) global_strides[d - 1] = static_cast<cuuint64_t>(strides[d - 1]) * sizeof(T);
  }
  CUtensorMap map;
  const CUresult result = tensor_map_encoder()(
      &map, tensor_map_type<T>(), kRank, const_cast<T*>(base), global_sizes, global_strides, box_sizes,
      element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HADAL_CHECK(
      result == CUDA_SUCCESS,
      "tensor map: driver error {}; base {}, inner size {}, rows {}, row stride {} bytes, box {} x {}",
      static_cast<int>(result), static_cast<const void*>(base), sizes[0], sizes[1], global_strides[0], box[0],
      box[1]);
  return map;
}

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// These are the copy engine's predefined policies for keeping a load's lines in the L2.
enum class L2Policy : uint64_t {
  kNormal = 0x1000000000000000ULL,
  kEvictFirst = 0x12F0000000000000ULL,  // read once
  kEvictLast = 0x14F0000000000000ULL,   // read by many blocks
};

// Loads a box at the coordinates (innermost first), and completes its bytes on `barrier`. One thread calls
// this. The innermost coordinate must be a multiple of 16 bytes; otherwise the launch fails with "illegal
// instruction".
__device__ __forceinline__ void tma_load_2d(void* shared, const CUtensorMap* map, Mbarrier* barrier, int c0,
                                            int c1, L2Policy policy = L2Policy::kNormal) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "l"(static_cast<uint64_t>(policy))
      : "memory");
}
__device__ __forceinline__ void tma_load_3d(void* shared, const CUtensorMap* map, Mbarrier* barrier, int c0,
                                            int c1, int c2, L2Policy policy = L2Policy::kNormal) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "l"(static_cast<uint64_t>(policy))
      : "memory");
}
// Does the same without a policy.
__device__ __forceinline__ void tma_load_5d(void* shared, const CUtensorMap* map, Mbarrier* barrier, int c0,
                                            int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
// Loads a box to the same address in every block of the cluster in `block_mask`. Each block's barrier counts
// the bytes.
__device__ __forceinline__ void tma_load_2d_multicast(void* shared, const CUtensorMap* map, Mbarrier* barrier,
                                                      int c0, int c1, uint16_t block_mask,
                                                      L2Policy policy = L2Policy::kNormal) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
      "cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "h"(block_mask),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}
__device__ __forceinline__ void tma_load_3d_multicast(void* shared, const CUtensorMap* map, Mbarrier* barrier,
                                                      int c0, int c1, int c2, uint16_t block_mask,
                                                      L2Policy policy = L2Policy::kNormal) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
      "cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "h"(block_mask),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// Stores a box. One thread calls this, after the threads that wrote the tile have called
// fence_proxy_async_shared() and passed a barrier.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap* map, const void* shared, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared_address(shared)), "r"(c0), "r"(c1)
               : "memory");
}
__device__ __forceinline__ void tma_store_3d(const CUtensorMap* map, const void* shared, int c0, int c1,
                                             int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(shared)), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
// Does the same with a policy for the lines in the L2.
__device__ __forceinline__ void tma_store_3d(const CUtensorMap* map, const void* shared, int c0, int c1,
                                             int c2, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], %5;" ::
          "l"(map),
      "r"(shared_address(shared)), "r"(c0), "r"(c1), "r"(c2), "l"(static_cast<uint64_t>(policy))
      : "memory");
}
// Prefetches `bytes` bytes, a multiple of 16, into the L2.
__device__ __forceinline__ void bulk_prefetch_l2(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most kPending groups of this thread still read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until all but kPending groups of this thread have been written to global memory.
template <int kPending>
__device__ __forceinline__ void bulk_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace hadal::cuda
