// Launching a kernel, and what the runtime's error codes become.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/launch.h"

#define HADAL_CUDA_CHECK(expr)                                                                          \
  do {                                                                                                  \
    const cudaError_t hadal_status_ = (expr);                                                           \
    if (hadal_status_ != cudaSuccess) [[unlikely]]                                                      \
      ::hadal::detail::check_failed(__FILE__, __LINE__, #expr,                                          \
                                    ::fmt::format("CUDA error {}: {}", static_cast<int>(hadal_status_), \
                                                  cudaGetErrorString(hadal_status_)));                  \
  } while (0)

namespace hadal::cuda {

// What 16-byte accesses, and tensor maps, ask of an address.
inline bool aligned16(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

inline cudaStream_t stream_of(const Launch& launch) {
  return static_cast<cudaStream_t>(launch.stream.native);
}

// Raises a kernel's dynamic shared memory limit once a process. `kernel` names a distinct instantiation.
template <auto kernel>
void allow_shared_memory(size_t bytes) {
  static std::once_flag once;
  static size_t allowed = 0;
  std::call_once(once, [&] {
    int device = 0;
    int most = 0;
    HADAL_CUDA_CHECK(cudaGetDevice(&device));
    HADAL_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    cudaFuncAttributes attributes{};
    HADAL_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
    allowed = static_cast<size_t>(most) - attributes.sharedSizeBytes;
    HADAL_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(allowed)));
  });
  HADAL_CHECK(bytes <= allowed, "{} bytes of shared memory, the device allows {}", bytes, allowed);
}

// launch_kernel<kernel>(launch, grid, block, shared_bytes, args…); grid of 0 blocks: nothing. Clusters'
// sizes stand at their kernels (__cluster_dims__).
template <auto kernel, typename... Args>
void launch_kernel(const Launch& launch, dim3 grid, dim3 block, size_t shared_bytes, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024) allow_shared_memory<kernel>(shared_bytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(launch);
  config.attrs = &attribute;
  config.numAttrs = launch.pdl ? 1 : 0;
  HADAL_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

}  // namespace hadal::cuda
