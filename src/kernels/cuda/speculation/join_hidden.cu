// Joins the normed embedding and the normed hidden state of each row. Grid: one block of 256 threads for each
// row and half; a thread reads its columns twice, the second time from the L1. There is one barrier, after
// the warps have stored their sums of squares in shared memory (32 bytes).
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/speculation/speculation.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) join_hidden_kernel(const JoinHiddenParams p) {
  __shared__ float sums[kThreads / 32];
  pdl_wait();
  const int64_t i = blockIdx.x;
  const bool is_hidden = blockIdx.y != 0;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = is_hidden ? (p.rows != nullptr ? p.rows[i] : i) : p.ids[i];
  const bool there = is_hidden || (row >= 0 && row < p.vocab);
  const T* const x = static_cast<const T*>(is_hidden ? p.hidden : p.table) + (there ? row : 0) * p.n;
  const float* const weight = is_hidden ? p.hnorm : p.enorm;
  float sum = 0.0F;
  for (int64_t j = thread; j < p.n; j += kThreads) {
    const float v = there ? to_f32(x[j]) : 0.0F;
    sum += v * v;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  sum = 0.0F;
  for (const float of_warp : sums) sum += of_warp;
  const float scale = rsqrtf(sum / static_cast<float>(p.n) + p.eps);
  T* const y = static_cast<T*>(p.y) + i * 2 * p.n + (is_hidden ? p.n : 0);
  for (int64_t j = thread; j < p.n; j += kThreads)
    y[j] = round_to<T>((there ? to_f32(x[j]) : 0.0F) * scale * weight[j]);
}

}  // namespace

void join_hidden(const JoinHiddenParams& p, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(p.m), 2);
  if (p.f16) return launch_kernel<join_hidden_kernel<f16>>(launch, grid, dim3(kThreads), 0, p);
  launch_kernel<join_hidden_kernel<bf16>>(launch, grid, dim3(kThreads), 0, p);
}

}  // namespace hadal::cuda
