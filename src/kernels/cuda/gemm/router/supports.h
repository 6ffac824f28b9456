// Tells which shapes the kernel with float32 products (gemm/router/router.cu) supports. This header is for
// the host alone and includes no CUDA header.
#pragma once

#include "kernels/cuda/gemm/shape.h"

namespace hadal::cuda::router {

inline constexpr int64_t kMaxRows = 65535 * 8;  // the largest grid, with eight rows per block
inline constexpr int64_t kStepK = 8;            // k is a multiple of it

inline bool supports(const LinearShape& s) {
  return !has_scales(s.type) && s.m >= 1 && s.m <= kMaxRows && s.n >= 1 && s.k % kStepK == 0 && s.aligned;
}

}  // namespace hadal::cuda::router
