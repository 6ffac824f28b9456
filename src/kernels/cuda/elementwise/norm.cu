// residual += input; y = RMSNorm(residual) ⊙ weight, to bf16 and/or FP8 rows.
//
// Grid: one block a row. A thread holds eight consecutive values of the row in registers from load to store,
// so the row is read once; rows up to 8,192 wide. One barrier: warps sum squares by shuffle, leave 32 partial
// sums in shared memory (128 B, all of it), and every warp adds those for itself. A quantisation group is
// sixteen lanes: no barrier. Small m (latency): the norm's weights come before pdl_wait (into registers, or
// 28 KB of shared memory beside experts' rows), and nine experts' rows of a token are in flight at once: up
// to 72 registers. Large m (bandwidth): weights are read after the sum, from the L1, to keep 1,792 threads
// and more on a multiprocessor: 36 registers at width 7,168, 40 at 2,048. Which of the two runs does not
// change a bit of the result.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/reference.h"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kMaxTopK = 32;  // a lane holds one expert's row and weight

// Σ_j weights[row, j] · expert_rows[row_of[row, j], column …], j ascending. All lanes call; those with
// !inside only lend their indices. kBatch rows are loaded before the first is used.
template <int kBatch>
__device__ __forceinline__ Floats8 combine8(const NormInput& input, int64_t row, int64_t n, int column,
                                            bool inside) {
  const int lane = threadIdx.x % 32;
  int expert_row = 0;
  float weight = 0.0F;
  if (lane < input.top_k) {
    expert_row = input.row_of[row * input.top_k + lane];
    weight = input.weights[row * input.top_k + lane];
  }
  Floats8 sum{};
  for (int first = 0; first < input.top_k; first += kBatch) {
    uint4 rows[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int source = __shfl_sync(kAllLanes, expert_row, first + j);
      if (inside && first + j < input.top_k) {
        rows[j] = *reinterpret_cast<const uint4*>(input.expert_rows + source * n + column);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const float w = __shfl_sync(kAllLanes, weight, first + j);
      if (!inside || first + j >= input.top_k) continue;
      const Floats8 x = widen8(rows[j]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum.v[i] = fmaf(w, x.v[i], sum.v[i]);
    }
  }
  return sum;
}

template <bool kCombine, int kBatch>
__device__ __forceinline__ Floats8 input8(const NormInput& input, int64_t row, int64_t n, int column,
                                          bool inside) {
  if constexpr (kCombine) return combine8<kBatch>(input, row, n, column, inside);
  if (inside && input.dense != nullptr) return load8(input.dense + row * input.x_stride + column);
  return {};
}

template <int kMaxThreads, int kMinBlocks, bool kCombine, bool kAhead>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks) add_rms_norm_kernel(const AddRmsNormParams p) {
  __shared__ float partial[32];
  // With experts' rows in registers there is no room for weights: each thread keeps its own here, so no
  // barrier.
  __shared__ float4 own_weight[kCombine && kAhead ? 2 * kMaxThreads : 1];
  const int column = static_cast<int>(threadIdx.x) * kVec;
  const bool inside = column < p.n;
  Floats8 weight{};
  pdl_launch_dependents();
  if (kAhead && inside) weight = load8(p.weight + column);
  if (kCombine && kAhead) {
    own_weight[threadIdx.x] = {weight.v[0], weight.v[1], weight.v[2], weight.v[3]};
    own_weight[kMaxThreads + threadIdx.x] = {weight.v[4], weight.v[5], weight.v[6], weight.v[7]};
  }
  pdl_wait();

  const int64_t out_row = blockIdx.x;
  const int64_t row = p.rows != nullptr ? p.rows[out_row] : out_row;
  const bool real = inside && row >= 0;
  Floats8 x{};
  // Ahead of the experts' rows, or after them to save registers.
  constexpr int kBatch = kAhead ? (kMaxThreads <= 896 ? 9 : 6) : (kMinBlocks * kMaxThreads <= 1536 ? 3 : 2);
  constexpr bool kResidualFirst = kAhead || !kCombine;
  if (kResidualFirst && real) x = load8(p.residual + row * p.n + column);
  if (row >= 0 && (kCombine || p.input.dense != nullptr)) {
    const Floats8 added = input8<kCombine, kBatch>(p.input, row, p.n, column, inside);
    if (!kResidualFirst && real) x = load8(p.residual + row * p.n + column);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x.v[i] += added.v[i];
    if (inside && p.rows == nullptr) store8(p.residual + row * p.n + column, x);
  }
  if (inside && p.residual_out != nullptr) store8(p.residual_out + out_row * p.n + column, x);

  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum = fmaf(x.v[i], x.v[i], sum);
  sum = lanes_sum(sum);
  const int lane = threadIdx.x % 32;
  if (lane == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = lanes_sum(lane < static_cast<int>(blockDim.x / 32) ? partial[lane] : 0.0F);
  const float factor = norm_factor(sum, p.n, p.eps);

  if (!kAhead && inside) weight = load8(p.weight + column);
  if (kCombine && kAhead) {
    const float4 low = own_weight[threadIdx.x];
    const float4 high = own_weight[kMaxThreads + threadIdx.x];
    weight = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) x.v[i] = x.v[i] * factor * weight.v[i];
  if (p.y != nullptr && inside) store8(p.y + out_row * p.n + column, x);
  if (p.y_fp8) store8_quantized(p.y_fp8, out_row, column, x);
}

template <int kMaxThreads, int kMinBlocks, bool kAhead>
void launch_norm(const AddRmsNormParams& p, int threads, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(p.m));
  if (p.input.expert_rows != nullptr) {
    launch_kernel<add_rms_norm_kernel<kMaxThreads, kMinBlocks, true, kAhead>>(launch, grid, threads, 0, p);
  } else {
    launch_kernel<add_rms_norm_kernel<kMaxThreads, kMinBlocks, false, kAhead>>(launch, grid, threads, 0, p);
  }
}

// Grid: x rows, y blocks of columns; eight values a thread.
template <bool kCombine>
__global__ void __launch_bounds__(256)
    add_residual_kernel(const NormInput input, float* residual, int64_t n) {
  pdl_launch_dependents();
  pdl_wait();
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kVec;
  const bool inside = column < n;
  const int64_t row = blockIdx.x;
  Floats8 x{};
  if (inside) x = load8(residual + row * n + column);
  const Floats8 added = input8<kCombine, 4>(input, row, n, column, inside);
#pragma unroll
  for (int i = 0; i < kVec; ++i) x.v[i] += added.v[i];
  if (inside) store8(residual + row * n + column, x);
}

void check_input(const NormInput& input, int64_t n) {
  HADAL_CHECK(input.dense == nullptr || input.expert_rows == nullptr,
              "a norm adds dense rows or experts' rows, not both");
  if (input.dense != nullptr) HADAL_CHECK_GE(input.x_stride, n);
  if (input.expert_rows != nullptr) {
    HADAL_CHECK(input.row_of != nullptr && input.weights != nullptr && input.top_k >= 1, "top_k is {}",
                input.top_k);
  }
}

bool wide_input(const NormInput& input) {
  return aligned16(input.dense) && input.x_stride % kVec == 0 && aligned16(input.expert_rows) &&
         input.top_k <= kMaxTopK;
}

}  // namespace

void add_rms_norm(const AddRmsNormParams& p, const Launch& launch) {
  check_input(p.input, p.n);
  HADAL_CHECK(p.rows != nullptr || p.residual_out == nullptr, "residual_out is written only with rows");
  if (p.y_fp8)
    HADAL_CHECK(p.y_fp8.stride >= p.n && p.y_fp8.scale_stride >= p.m, "FP8 rows of stride {}",
                p.y_fp8.stride);
  const int64_t width = p.y_fp8 ? p.y_fp8.stride : p.n;
  const bool wide = p.n % kVec == 0 && width <= 1024 * kVec && wide_input(p.input) && aligned16(p.residual) &&
                    aligned16(p.residual_out) && aligned16(p.weight) && aligned16(p.y) && aligned16(p.y_fp8);
  if (launch.reference || !wide) return reference::add_rms_norm(p, launch);
  const int threads = static_cast<int>(round_up(width / kVec, 32));
  if (p.m <= 2 * launch.num_sms) {
    if (threads <= 512) return launch_norm<512, 1, true>(p, threads, launch);
    if (threads <= 896) return launch_norm<896, 1, true>(p, threads, launch);
    return launch_norm<1024, 1, true>(p, threads, launch);
  }
  if (threads <= 256) return launch_norm<256, 6, false>(p, threads, launch);
  if (threads <= 896) return launch_norm<896, 2, false>(p, threads, launch);
  return launch_norm<1024, 1, false>(p, threads, launch);
}

void add_residual(const NormInput& input, float* residual, int64_t m, int64_t n, const Launch& launch) {
  check_input(input, n);
  if (launch.reference || n % kVec != 0 || !wide_input(input) || !aligned16(residual)) {
    return reference::add_residual(input, residual, m, n, launch);
  }
  const dim3 grid(static_cast<unsigned>(m), static_cast<unsigned>((n / kVec + 255) / 256));
  if (input.expert_rows != nullptr) {
    launch_kernel<add_residual_kernel<true>>(launch, grid, 256, 0, input, residual, n);
  } else {
    launch_kernel<add_residual_kernel<false>>(launch, grid, 256, 0, input, residual, n);
  }
}

}  // namespace hadal::cuda
