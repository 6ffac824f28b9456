// The shapes that the tiled kernel (gemm/tiled/kernel.cuh) supports as a linear. Each of its tiles is right
// for all of them. Host only, free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/shape.h"

namespace hadal::cuda::tiled {

inline constexpr int64_t kColumnStep = 8;  // y is written in pieces of 16 bytes: n is a multiple of so many

inline bool supports(const LinearShape& s) {
  return has_scales(s.type) && sums_fit(s.type, s.k) && s.aligned && !s.f32_y && s.aligned_y && s.m >= 1 &&
         s.n >= kColumnStep && s.n % kColumnStep == 0;
}

}  // namespace hadal::cuda::tiled
