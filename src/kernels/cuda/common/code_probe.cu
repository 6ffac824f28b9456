#include <cuda_runtime_api.h>

#include "kernels/cuda/common/code_probe.h"

namespace hadal::cuda {
namespace {

__global__ void code_probe_kernel() {}

}  // namespace

int load_code_probe() {
  cudaFuncAttributes attributes{};
  const cudaError_t loaded = cudaFuncGetAttributes(&attributes, code_probe_kernel);
  if (loaded != cudaSuccess) cudaGetLastError();  // else a later call would report this error
  return loaded;
}

}  // namespace hadal::cuda
