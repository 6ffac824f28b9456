// Tells which shapes the tiled kernel (gemm/tiled/kernel.cuh) supports as a linear. Each of its tiles is
// correct for all these shapes. This header is for the host alone and includes no CUDA header.
#pragma once

#include "kernels/cuda/gemm/shape.h"

namespace hadal::cuda::tiled {

inline constexpr int64_t kColumnStep = 8;  // y is written in pieces of 16 bytes, so n is a multiple of this

inline bool supports(const LinearShape& s) {
  return has_scales(s.type) && sums_fit(s.type, s.k) && s.aligned && !s.f32_y && s.aligned_y && s.m >= 1 &&
         s.n >= kColumnStep && s.n % kColumnStep == 0;
}

}  // namespace hadal::cuda::tiled
