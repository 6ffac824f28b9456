// Turns error codes of the CUDA runtime into exceptions, and handles of streams into the runtime's. Only the
// cuda_*.cpp files of this folder, which include the runtime's header, may use it.
#pragma once

#include <cuda_runtime_api.h>

#include "base/stream_handle.h"

namespace hadal {

// Throws hadal::Error, with the runtime's own text, for every cudaError_t but cudaSuccess.
void check_cuda_status(int status, const char* expr, const char* file, int line);

inline cudaStream_t to_cuda(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream.native);
}

}  // namespace hadal

#define HADAL_CUDA_STATUS(expr) ::hadal::check_cuda_status(static_cast<int>(expr), #expr, __FILE__, __LINE__)
