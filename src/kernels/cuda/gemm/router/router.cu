// Computes router logits: float32 or 16-bit weights [n, k] times rows of 16 bits, with products and sums in
// float32 on the FMA units. A router has few rows of weights, so each block computes a few of these rows over
// all of k.
//
// Grid: x is the group of kRows weight rows, y the group of kTokens rows of x. A block has 128 threads. Each
// thread adds up every 128th run of eight k for all kRows · kTokens sums. These partial sums are joined by
// shuffles within a warp, then across the four warps in shared memory, in a fixed order. All groups of tokens
// except the first read the weights from the L2.
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/length_gate.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/gemm/router/supports.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 128;

// Loads eight consecutive weights.
template <typename T>
__device__ __forceinline__ void load_weights(const T* p, float (&w)[8]) {
  if constexpr (sizeof(T) == 4) {
    const float4 low = *reinterpret_cast<const float4*>(p);
    const float4 high = *reinterpret_cast<const float4*>(p + 4);
    w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
    w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
  } else {
    const uint4 packed = *reinterpret_cast<const uint4*>(p);
    const float2 pairs[4] = {unpack_two<T>(packed.x), unpack_two<T>(packed.y), unpack_two<T>(packed.z),
                             unpack_two<T>(packed.w)};
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = i % 2 == 0 ? pairs[i / 2].x : pairs[i / 2].y;
  }
}

// T is the type of W, X that of x.
template <typename T, typename X, int kRows, int kTokens>
__global__ void __launch_bounds__(kThreads) router_kernel(DenseLinearParams p) {
  __shared__ float sums[kThreads / 32][kRows * kTokens];
  if (is_closed(p.gate)) return;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * kTokens;
  const T* w[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    w[r] = static_cast<const T*>(p.w.data) + (n0 + r < p.w.n ? n0 + r : p.w.n - 1) * p.w.row_stride;
    for (int64_t k = threadIdx.x * (128 / sizeof(T)); k < p.w.k; k += kThreads * (128 / sizeof(T))) {
      prefetch_l2(w[r] + k);
    }
  }
  pdl_launch_dependents();
  pdl_wait();
  const X* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    x[t] = static_cast<const X*>(p.x) + (m0 + t < p.m ? m0 + t : p.m - 1) * p.x_stride;

  float acc[kRows][kTokens] = {};
#pragma unroll 1
  for (int64_t k = threadIdx.x * 8; k < p.w.k; k += kThreads * 8) {
    float weights[kRows][8];
#pragma unroll
    for (int r = 0; r < kRows; ++r) load_weights(w[r] + k, weights[r]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const uint4 packed = *reinterpret_cast<const uint4*>(x[t] + k);
      const float2 pairs[4] = {unpack_two<X>(packed.x), unpack_two<X>(packed.y), unpack_two<X>(packed.z),
                               unpack_two<X>(packed.w)};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[r][t] = fmaf(pairs[i].x, weights[r][2 * i], acc[r][t]);
          acc[r][t] = fmaf(pairs[i].y, weights[r][2 * i + 1], acc[r][t]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows * kTokens; ++i) {
    float sum = acc[i / kTokens][i % kTokens];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][i] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kTokens; i += kThreads) {
    const int64_t n = n0 + i % kRows;
    const int64_t m = m0 + i / kRows;
    const int source = i % kRows * kTokens + i / kRows;
    if (n >= p.w.n || m >= p.m) continue;
    const float sum = (sums[0][source] + sums[1][source]) + (sums[2][source] + sums[3][source]);
    if (p.y_f32 != nullptr) {
      p.y_f32[m * p.y_stride + n] = sum;
    } else {
      static_cast<X*>(p.y)[m * p.y_stride + n] = round_to<X>(sum);
    }
  }
}

template <typename T, typename X, int kRows, int kTokens>
void run(const DenseLinearParams& p, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>((p.w.n + kRows - 1) / kRows),
                  static_cast<unsigned>((p.m + kTokens - 1) / kTokens));
  launch_kernel<router_kernel<T, X, kRows, kTokens>>(launch, grid, dim3(kThreads), 0, p);
}

template <typename T, typename X>
void run_rows(const DenseLinearParams& p, const Launch& launch) {
  if (p.m <= 2) return run<T, X, 1, 2>(p, launch);
  if (p.m <= 4) return run<T, X, 1, 4>(p, launch);
  if (p.m <= 8) return run<T, X, 2, 8>(p, launch);
  if (p.m <= 128) return run<T, X, 4, 8>(p, launch);
  run<T, X, 8, 8>(p, launch);
}

}  // namespace

void router_linear(const DenseLinearParams& p, const Launch& launch) {
  HADAL_CHECK(router::supports(linear_shape(p)), "router_linear does not support m {}, n {}, k {}", p.m,
              p.w.n, p.w.k);
  const bool f16_rows = has_f16_rows(p);
  if (p.w.type == WeightType::kF32)
    return f16_rows ? run_rows<float, f16>(p, launch) : run_rows<float, bf16>(p, launch);
  if (f16_rows) return run_rows<f16, f16>(p, launch);
  run_rows<bf16, bf16>(p, launch);
}

}  // namespace hadal::cuda
