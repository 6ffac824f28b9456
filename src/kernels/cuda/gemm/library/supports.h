// The shapes that cuBLASLt (gemm/library/library.cpp) supports here. Host only, free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/shape.h"

namespace hadal::cuda::library {

inline bool supports(const LinearShape& s) {
  return is_16_bit(s.type);
}

}  // namespace hadal::cuda::library
