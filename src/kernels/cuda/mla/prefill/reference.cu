// Implements the plain kernel of un-absorbed prefill attention, with one block of 128 threads per query and
// head, for any stride and any architecture. It processes keys in chunks of 128: each thread computes one
// score, the block computes a softmax over the chunk, and then each thread computes one column of the values,
// which is rescaled whenever the maximum grows. All arithmetic is in float32.
#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/prefill/prefill.h"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = 128;
static_assert(kThreads == kPrefillValue);

template <typename Join>
__device__ float block_reduce(float value, float* scratch, Join join) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return join(join(scratch[0], scratch[1]), join(scratch[2], scratch[3]));
}

__global__ void __launch_bounds__(kThreads) mla_prefill_kernel(DevicePrefillParams p) {
  __shared__ float q[kPrefillQk];
  __shared__ float probabilities[kThreads];
  __shared__ float scratch[kThreads / 32];
  pdl_wait();
  const int t = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  int query = static_cast<int>(blockIdx.x);  // index among all queries, then within its run
  int r = 0;
  while (query >= p.runs[r].q_len) query -= p.runs[r++].q_len;
  const PrefillSegmentRun run = p.runs[r];
  const int64_t row = int64_t{run.q_begin} + query;
  const int visible = max(0, min(run.k_len, run.q_pos + query + 1 - run.k_pos));

  for (int d = t; d < kPrefillQk; d += kThreads)
    q[d] = load_16_bit(p.q, row * p.q_row_stride + head * p.q_head_stride + d, p.f16);
  __syncthreads();
  float maximum = -INFINITY;
  float sum = 0.0F;
  float value = 0.0F;
  for (int begin = 0; begin < visible; begin += kThreads) {
    const int count = min(kThreads, visible - begin);
    const int64_t first_key = int64_t{run.k_begin} + begin;
    float score = -INFINITY;
    const bool counts =
        t < count && (p.bits == nullptr ||
                      (p.bits[row * p.bits_stride + (begin + t) / 64] >> ((begin + t) % 64) & 1) != 0);
    if (counts) {
      const int64_t nope = ((first_key + t) * p.num_heads + head) * kPrefillKvRow;
      const int64_t rope = (first_key + t) * kPrefillRope;
      score = 0.0F;
      for (int d = 0; d < kPrefillNope; ++d) score += q[d] * load_16_bit(p.kv, nope + d, p.f16);
      for (int d = 0; d < kPrefillRope; ++d)
        score += q[kPrefillNope + d] * load_16_bit(p.k_rope, rope + d, p.f16);
      score *= p.softmax_scale;
    }
    const float new_maximum =
        fmaxf(maximum, block_reduce(score, scratch, [](float a, float b) { return fmaxf(a, b); }));
    if (p.bits != nullptr && new_maximum == -INFINITY) continue;  // no key has counted so far
    const float rescale = expf(maximum - new_maximum);
    const float probability = counts ? expf(score - new_maximum) : 0.0F;
    probabilities[t] = probability;
    sum = sum * rescale + block_reduce(probability, scratch, [](float a, float b) { return a + b; });
    value *= rescale;
    const int64_t column = (first_key * p.num_heads + head) * kPrefillKvRow + kPrefillNope + t;
    for (int k = 0; k < count; ++k)
      value += probabilities[k] * load_16_bit(p.kv, column + k * int64_t{p.num_heads} * kPrefillKvRow, p.f16);
    maximum = new_maximum;
    __syncthreads();
  }

  const int64_t out = row * p.out_stride + int64_t{head} * kPrefillValue + t;
  float* lse = p.lse != nullptr ? p.lse + row * p.num_heads + head : nullptr;
  const bool attends = p.bits == nullptr ? visible > 0 : sum != 0.0F;
  if (p.accumulate) {
    if (!attends) return;
    const float old_lse = *lse;
    const float new_lse = maximum + logf(sum);
    const float top = fmaxf(old_lse, new_lse);
    const float old_weight = expf(old_lse - top);
    const float new_weight = expf(new_lse - top);
    const float total = old_weight + new_weight;
    const float old_part = old_weight > 0.0F ? load_16_bit(p.out, out, p.f16) * (old_weight / total) : 0.0F;
    store_16_bit(p.out, out, old_part + value * (new_weight / (total * sum)), p.f16);
    __syncthreads();  // all threads have read the old log-sum-exp
    if (t == 0) *lse = top + logf(total);
  } else {
    store_16_bit(p.out, out, attends ? value / sum : 0.0F, p.f16);
    if (lse != nullptr && t == 0) *lse = attends ? maximum + logf(sum) : -INFINITY;
  }
}

}  // namespace

void mla_prefill(const DevicePrefillParams& p, const Launch& launch) {
  int64_t num_queries = 0;
  for (int r = 0; r < p.num_runs; ++r) num_queries += p.host_runs[r].q_len;
  launch_kernel<mla_prefill_kernel>(
      launch, dim3(static_cast<unsigned>(num_queries), static_cast<unsigned>(p.num_heads)), dim3(kThreads), 0,
      p);
}

}  // namespace hadal::cuda::reference
