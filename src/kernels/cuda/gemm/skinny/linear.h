// linear by weight streaming (gemm/skinny/kernel.cuh): what its launches require of operands, and one
// function per type of weights. Internal to kernels/cuda; free of CUDA headers.
#pragma once

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda::skinny {

// For experts (a linear has skinny::supports): true if the kernel supports these weights, `matrices` of them,
// `stride` elements apart.
inline bool takes_weights(const MatrixWeight& w, int64_t matrices, int64_t stride) {
  const int64_t size = weight_element_bytes(w.type);
  const int64_t k = padded_k(w.type, w.k);
  return has_tensor_core_kernels(w.type) && sums_fit(w.type, w.k) && w.n > 0 && w.k > 0 &&
         k * size % 16 == 0 && w.row_stride >= k && w.row_stride * size % 16 == 0 && on_16_bytes(w.data) &&
         (matrices <= 1 || stride * size % 16 == 0) && k * size <= kMaxRowBytes && w.n <= kMaxOutputs;
}

inline int block_count(const MatrixWeight& w) {
  return static_cast<int>((w.k * weight_element_bytes(w.type) + 127) / 128);
}

// True if the kernel supports these rows of x.
inline bool takes_rows(WeightType type, const void* x, int64_t x_stride, const QuantizedRows& x_quantized,
                       int64_t k) {
  if (has_scales(type))
    return on_16_bytes(x_quantized.codes) && x_quantized.stride % 16 == 0 &&
           x_quantized.stride >= round_up(k, kQuantGroup);
  return on_16_bytes(x) && x_stride % 8 == 0;
}

// All types but float32; instantiated by CMakeLists.txt of kernels/cuda.
template <WeightType kType>
void linear_of(const DenseLinearParams& params, const Launch& launch, const Schedule& schedule);

}  // namespace hadal::cuda::skinny
