// Turns error codes of the CUDA runtime into exceptions, and handles of streams into the runtime's. Only the
// cuda_*.cpp files of this folder, which include the runtime's header, may use it.
#pragma once

#include "base/stream_handle.h"

struct CUstream_st;  // a cudaStream_t points to it

namespace hadal {

// Throws hadal::Error, with the runtime's own text, for every cudaError_t but cudaSuccess.
void check_cuda_status(int status, const char* expr, const char* file, int line);

inline CUstream_st* to_cuda(StreamHandle stream) {
  return static_cast<CUstream_st*>(stream.native);
}

}  // namespace hadal

#define HADAL_CUDA_STATUS(expr) ::hadal::check_cuda_status(static_cast<int>(expr), #expr, __FILE__, __LINE__)
