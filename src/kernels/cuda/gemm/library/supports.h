// Tells which shapes cuBLASLt (gemm/library/library.cpp) supports here. This header is for the host alone and
// includes no CUDA header.
#pragma once

#include "kernels/cuda/gemm/shape.h"

namespace hadal::cuda::library {

inline bool supports(const LinearShape& s) {
  return is_16_bit(s.type);
}

}  // namespace hadal::cuda::library
