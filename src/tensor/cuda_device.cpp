// Handles error codes of the runtime, and properties and free memory of a device.
#include <cuda_runtime_api.h>

#include "base/check.h"
#include "tensor/cuda.h"
#include "tensor/cuda_status.h"

namespace hadal {

void check_cuda_status(int status, const char* expr, const char* file, int line) {
  if (status == cudaSuccess) [[likely]]
    return;
  detail::check_failed(
      file, line, expr,
      fmt::format("CUDA error {}: {}", status, cudaGetErrorString(static_cast<cudaError_t>(status))));
}

CudaDeviceInfo cuda_device_info(int device_index) {
  cudaDeviceProp properties{};
  HADAL_CUDA_STATUS(cudaGetDeviceProperties(&properties, device_index));
  CudaDeviceInfo info;
  info.index = device_index;
  info.name = properties.name;
  info.num_sms = properties.multiProcessorCount;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  int current = 0;
  HADAL_CUDA_STATUS(cudaGetDevice(&current));
  HADAL_CUDA_STATUS(cudaSetDevice(device_index));
  const cudaError_t asked = cudaMemGetInfo(&info.free_bytes, &info.total_bytes);
  HADAL_CUDA_STATUS(cudaSetDevice(current));
  HADAL_CUDA_STATUS(asked);
  return info;
}

void cuda_set_device(int device_index) {
  HADAL_CUDA_STATUS(cudaSetDevice(device_index));
}

size_t cuda_free_bytes() {
  size_t free = 0;
  size_t total = 0;
  HADAL_CUDA_STATUS(cudaMemGetInfo(&free, &total));
  return free;
}

}  // namespace hadal
