// What the CUDA runtime's error codes become. Only for cuda_*.cpp of this folder.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "base/stream_handle.h"

#define HADAL_CUDA_STATUS(expr)                                                                         \
  do {                                                                                                  \
    const cudaError_t hadal_status_ = (expr);                                                           \
    if (hadal_status_ != cudaSuccess) [[unlikely]]                                                      \
      ::hadal::detail::check_failed(__FILE__, __LINE__, #expr,                                          \
                                    ::fmt::format("CUDA error {}: {}", static_cast<int>(hadal_status_), \
                                                  cudaGetErrorString(hadal_status_)));                  \
  } while (0)

namespace hadal {

inline cudaStream_t to_cuda(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream.native);
}

}  // namespace hadal
