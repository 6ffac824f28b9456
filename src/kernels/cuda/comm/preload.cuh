// Loads the code of a kernel onto the current device before its first launch (load_comm_kernels in comm.h).
#pragma once

#include "kernels/cuda/common/launch.cuh"

namespace hadal::cuda {

template <auto kernel>
void preload() {
  cudaFuncAttributes attributes{};  // querying them loads the code
  HADAL_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

// Each of these loads the code of all kernels of one source file.
void preload_exchange();
void preload_sum_lines();
void preload_sum_parts();
void preload_copy_parts();

}  // namespace hadal::cuda
