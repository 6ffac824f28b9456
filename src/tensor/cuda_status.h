// What the CUDA runtime's error codes become. Only for cuda_*.cpp of this folder, which include the runtime's
// header.
#pragma once

#include "base/stream_handle.h"

namespace hadal {

// Throws hadal::Error, with the runtime's own words, for any cudaError_t but cudaSuccess.
void check_cuda_status(int status, const char* expr, const char* file, int line);

}  // namespace hadal

#define HADAL_CUDA_STATUS(expr) ::hadal::check_cuda_status(static_cast<int>(expr), #expr, __FILE__, __LINE__)
