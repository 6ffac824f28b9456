// Implements the plain kernels of the indexer, which compute the CPU's bits (kernels/params/indexer.h) with
// one thread per value, per key or per score.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/indexer/reference.h"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = 256;

// Applies rope and the Hadamard transform to a row of 128 values in shared memory, one for each of 128
// threads.
__device__ void rotate_and_transform(float* values, const float* table) {
  const auto t = static_cast<int>(threadIdx.x);
  constexpr int kPairs = kIndexRopeDim / 2;
  if (t < kPairs) {
    const float2 rotated = rotate(values[t], values[t + kPairs], table[t], table[kPairs + t]);
    values[t] = rotated.x;
    values[t + kPairs] = rotated.y;
  }
  __syncthreads();
  for (int distance = kIndexHeadDim / 2; distance >= 1; distance /= 2) {
    const float a = values[t & ~distance];
    const float b = values[t | distance];
    __syncthreads();
    values[t] = (t & distance) == 0 ? a + b : a - b;
    __syncthreads();
  }
  values[t] *= kIndexHadamardScale;
  __syncthreads();
}

// Returns the scale of the row `values`, [128].
__device__ float scale_of(const float* values) {
  float amax = kKvMinAmax;
  for (int i = 0; i < kIndexHeadDim; ++i) amax = fmaxf(amax, fabsf(values[i]));
  return group_scale(amax, true);
}

__global__ void index_write_kernel(const DeviceIndexWriteParams p) {
  __shared__ float values[kIndexHeadDim];
  pdl_wait();
  const int64_t row = blockIdx.x;
  const auto t = static_cast<int>(threadIdx.x);
  const int64_t slot = p.slots[row];
  if (slot < 0) return;
  values[t] = to_f32(p.k[row * p.k_stride + t]);
  __syncthreads();
  // The order of additions, 16 partial sums, is the CPU's.
  const auto sum = [&](auto term) {
    double total = 0.0;
    for (int first = 0; first < 16; ++first) {
      double partial = 0.0;
      for (int i = first; i < kIndexHeadDim; i += 16) partial = __dadd_rn(partial, term(values[i]));
      total = __dadd_rn(total, partial);
    }
    return total;
  };
  const double mean = sum([](float v) { return static_cast<double>(v); }) / kIndexHeadDim;
  const double variance = sum([&](float v) { return __dmul_rn(v - mean, v - mean); }) / kIndexHeadDim;
  const double factor = 1.0 / sqrt(variance + static_cast<double>(p.norm_eps));
  const double scaled = __dmul_rn(__dmul_rn(values[t] - mean, factor), p.norm_weight[t]);
  const auto normed = static_cast<float>(__dadd_rn(scaled, p.norm_bias[t]));
  __syncthreads();
  values[t] = normed;
  __syncthreads();
  rotate_and_transform(values, p.cos_sin + int64_t{p.positions[row]} * kIndexRopeDim);
  const float scale = scale_of(values);
  std::byte* page = p.pool + slot / kPageSize * (kPageSize * kKvIndexBytesE4M3);
  const int64_t offset = slot % kPageSize;
  reinterpret_cast<fp8_e4m3*>(page)[offset * kIndexHeadDim + t] = to_e4m3(__fdiv_rn(values[t], scale));
  if (t == 0) reinterpret_cast<float*>(page + kKvIndexScalesOffset)[offset] = scale;
}

__global__ void index_query_kernel(const DeviceIndexQueryParams p, float factor) {
  __shared__ float values[kIndexHeadDim];
  pdl_wait();
  const int64_t item = blockIdx.x;
  const int64_t row = item / p.num_heads;
  const auto head = static_cast<int>(item % p.num_heads);
  const auto t = static_cast<int>(threadIdx.x);
  if (p.kv_len != nullptr && !selects_keys(p.kv_len[row], p.topk)) return;
  values[t] = to_f32(p.q[row * p.q_stride + head * kIndexHeadDim + t]);
  __syncthreads();
  rotate_and_transform(values, p.cos_sin + int64_t{p.positions[row]} * kIndexRopeDim);
  const float scale = scale_of(values);
  p.codes[item * kIndexHeadDim + t] = to_e4m3(__fdiv_rn(values[t], scale));
  if (t == 0) p.weights[item] = p.w[row * p.w_stride + head] * factor * scale;
}

__global__ void score_kernel(const DeviceIndexSelectParams p, int64_t first_row, float* scores,
                             int64_t score_stride) {
  pdl_wait();
  const int64_t row = first_row + blockIdx.y;
  const int64_t position = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int32_t num_keys = p.kv_len[row];
  if (!selects_keys(num_keys, p.shape.topk) || position >= num_keys) return;
  const int64_t page = p.page_table[p.seq_idx[row] * p.page_table_stride + position / kPageSize];
  const std::byte* keys = p.pool + page * (kPageSize * kKvIndexBytesE4M3);
  const int64_t offset = position % kPageSize;
  const auto* key = reinterpret_cast<const fp8_e4m3*>(keys) + offset * kIndexHeadDim;
  float sum = 0.0F;
  for (int64_t head = row * p.shape.num_heads; head < (row + 1) * p.shape.num_heads; ++head) {
    float product = 0.0F;
    for (int i = 0; i < kIndexHeadDim; ++i)
      product = fmaf(to_f32(p.q[head * kIndexHeadDim + i]), to_f32(key[i]), product);
    sum = fmaf(product < 0.0F ? 0.0F : product, p.w[head], sum);
  }
  scores[blockIdx.y * score_stride + position] =
      sum * reinterpret_cast<const float*>(keys + kKvIndexScalesOffset)[offset];
}

// Finds the border bit by bit. Then one thread writes the result.
__global__ void choose_kernel(const DeviceIndexSelectParams p, int64_t first_row, const float* all_scores,
                              int64_t score_stride) {
  pdl_wait();
  const int64_t row = first_row + blockIdx.x;
  const int32_t num_keys = p.kv_len[row];
  if (!selects_keys(num_keys, p.shape.topk)) return;
  const auto* scores = reinterpret_cast<const uint32_t*>(all_scores + blockIdx.x * score_stride);
  const auto count = [&](auto accept) {
    int own = 0;
    for (int s = static_cast<int>(threadIdx.x); s < num_keys; s += kThreads)
      own += accept(sortable_score(scores[s])) ? 1 : 0;
    __shared__ int total;
    __syncthreads();
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, own);
    __syncthreads();
    return total;
  };
  uint32_t border = 0;  // the largest number that at least topk scores reach
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t higher = border | 1U << bit;
    if (count([&](uint32_t score) { return score >= higher; }) >= p.shape.topk) border = higher;
  }
  int equal = p.shape.topk - count([&](uint32_t score) { return score > border; });
  if (threadIdx.x != 0) return;
  if (p.bits != nullptr) {
    for (int64_t i = 0; i < p.bits_stride; ++i) p.bits[row * p.bits_stride + i] = 0;
  } else {
    p.counts[row] = p.shape.topk;
  }
  const int32_t* table = p.page_table + p.seq_idx[row] * p.page_table_stride;
  int32_t* slot = p.slots + row * p.shape.topk;
  for (int s = 0; s < num_keys; ++s) {
    const uint32_t score = sortable_score(scores[s]);
    if (score < border || (score == border && equal-- <= 0)) continue;
    if (p.bits != nullptr) {
      p.bits[row * p.bits_stride + s / kPageSize] |= uint64_t{1} << (s % kPageSize);
    } else {
      *slot++ = table[s / kPageSize] * kPageSize + s % kPageSize;
    }
  }
}

}  // namespace

void index_write(const DeviceIndexWriteParams& p, const Launch& launch) {
  launch_kernel<index_write_kernel>(launch, static_cast<unsigned>(p.m), kIndexHeadDim, 0, p);
}

void index_query(const DeviceIndexQueryParams& p, const Launch& launch) {
  launch_kernel<index_query_kernel>(launch, static_cast<unsigned>(p.m * p.num_heads), kIndexHeadDim, 0, p,
                                    index_query_factor(p.num_heads));
}

void index_select(const DeviceIndexSelectParams& p, const IndexSelectPlan& plan, const Launch& launch) {
  auto* scores = static_cast<float*>(p.workspace);
  for (int64_t begin = 0; begin < p.shape.num_rows; begin += plan.rows_at_once) {
    const auto rows = static_cast<unsigned>(std::min(plan.rows_at_once, p.shape.num_rows - begin));
    const dim3 grid(static_cast<unsigned>((p.shape.most_keys + kThreads - 1) / kThreads), rows);
    launch_kernel<score_kernel>(launch, grid, dim3(kThreads), 0, p, begin, scores, plan.score_stride);
    launch_kernel<choose_kernel>(launch, dim3(rows), dim3(kThreads), 0, p, begin,
                                 static_cast<const float*>(scores), plan.score_stride);
  }
}

}  // namespace hadal::cuda::reference
