// Makes a device the current device of this thread for the lifetime of an object.
#pragma once

#include "kernels/cuda/common/launch.cuh"

namespace hadal::cuda {

class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    HADAL_CUDA_CHECK(cudaGetDevice(&before_));
    HADAL_CUDA_CHECK(cudaSetDevice(device));
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

}  // namespace hadal::cuda
