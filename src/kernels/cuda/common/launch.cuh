// Launches kernels and turns the runtime's error codes into errors.
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

inline cudaStream_t stream_of(const Launch& launch) {
  return static_cast<cudaStream_t>(launch.stream.native);
}

// Calls a function once for each device, because the attributes of a kernel are set per device.
class OncePerDevice {
 public:
  // Calls work() unless it was called before with the same current device; returns the current device. Any
  // thread may call this.
  template <typename Work>
  int operator()(const Work& work) {
    int device = 0;
    HADAL_CUDA_CHECK(cudaGetDevice(&device));
    HADAL_CHECK_LT(device, kMaxDevices);
    std::call_once(done_[device], work);
    return device;
  }
  static constexpr int kMaxDevices = 64;

 private:
  std::once_flag done_[kMaxDevices];
};

// Raises a kernel's dynamic shared memory limit, once for each device. Each instantiation of a kernel counts
// as a separate kernel.
template <auto kernel>
void allow_shared_memory(size_t bytes) {
  static OncePerDevice once;
  static size_t allowed[OncePerDevice::kMaxDevices] = {};
  const int current = once([&] {
    int device = 0;
    int most = 0;
    HADAL_CUDA_CHECK(cudaGetDevice(&device));
    HADAL_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    cudaFuncAttributes attributes{};
    HADAL_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
    allowed[device] = static_cast<size_t>(most) - attributes.sharedSizeBytes;
    HADAL_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(allowed[device])));
  });
  HADAL_CHECK(bytes <= allowed[current], "the kernel needs {} bytes of shared memory, the device allows {}",
              bytes, allowed[current]);
}

// Allows a kernel, once for each device, to be launched in clusters of more than eight blocks.
template <auto kernel>
void allow_large_clusters() {
  static OncePerDevice once;
  once([] {
    HADAL_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  });
}

// Launches `kernel`: launch_kernel<kernel>(launch, grid, block, shared_bytes, args…). A grid of 0 blocks
// launches nothing. Either the kernel declares the size of its clusters (__cluster_dims__), or `cluster`
// gives the size: 1 to 16 blocks along x.
template <auto kernel, typename... Args>
void launch_clusters(const Launch& launch, int cluster, dim3 grid, dim3 block, size_t shared_bytes,
                     Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024) allow_shared_memory<kernel>(shared_bytes);
  if (cluster > 8) allow_large_clusters<kernel>();
  cudaLaunchAttribute attributes[2] = {};
  int count = 0;
  if (launch.pdl) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(launch);
  config.attrs = attributes;
  config.numAttrs = static_cast<unsigned>(count);
  HADAL_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}
template <auto kernel, typename... Args>
void launch_kernel(const Launch& launch, dim3 grid, dim3 block, size_t shared_bytes, Args&&... args) {
  launch_clusters<kernel>(launch, 1, grid, block, shared_bytes, std::forward<Args>(args)...);
}

// Returns the number of clusters of this many blocks that the device can hold at once.
template <auto kernel>
int resident_clusters(int cluster, dim3 block, size_t shared_bytes) {
  allow_shared_memory<kernel>(shared_bytes);
  if (cluster > 8) allow_large_clusters<kernel>();
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  HADAL_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, reinterpret_cast<const void*>(kernel), &config));
  return clusters;
}

}  // namespace hadal::cuda
