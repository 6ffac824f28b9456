#include "kernels/cuda/comm/preload.cuh"

#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/device_scope.cuh"

namespace hadal::cuda {

void load_comm_kernels(int device) {
  const DeviceScope scope(device);
  preload_exchange();
  preload_sum_lines();
  preload_sum_parts();
  preload_copy_parts();
}

}  // namespace hadal::cuda
