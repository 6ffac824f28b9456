// Computes one row of a fused norm, from any form of input. norm.cu describes the method.
#pragma once

#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda::norm {

inline constexpr int kMaxTopK = 32;  // a lane holds one expert's row and weight

enum class Input : uint8_t { kDense, kExperts, kParts, kLines };  // the forms of NormInput

inline Input form_of(const NormInput& input) {
  if (input.exchange != nullptr) return Input::kLines;
  if (input.expert_rows != nullptr) return Input::kExperts;
  return input.exchanged.num_ranks > 0 ? Input::kParts : Input::kDense;
}

// Returns Σ_j weights[row, j] · expert_rows[row_of[row, j], column …], in ascending order of j. All lanes
// call it; lanes with !inside only supply their indices. kBatch rows are loaded before the first is used.
// With kSkips, pairs without a row are skipped.
template <typename T, int kBatch, bool kSkips = false>
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
      if (inside && first + j < input.top_k && (!kSkips || source >= 0)) {
        rows[j] =
            *reinterpret_cast<const uint4*>(static_cast<const T*>(input.expert_rows) + source * n + column);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const float w = __shfl_sync(kAllLanes, weight, first + j);
      const bool skipped = kSkips && __shfl_sync(kAllLanes, expert_row, first + j) < 0;
      if (!inside || first + j >= input.top_k || skipped) continue;
      const Floats8 x = widen8<T>(rows[j]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum.v[i] = fmaf(w, x.v[i], sum.v[i]);
    }
  }
  return sum;
}

// Returns Σ_r parts[r][row, column …], in ascending order of r. kBatch parts are loaded before the first is
// used.
template <typename T, int kBatch>
__device__ __forceinline__ Floats8 sum_parts8(const NormInput& input, int64_t row, int64_t n, int column,
                                              bool inside) {
  Floats8 sum{};
#pragma unroll
  for (int first = 0; first < kMaxRanks; first += kBatch) {
    uint4 rows[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch && first + j < kMaxRanks; ++j) {
      if (inside && first + j < input.exchanged.num_ranks) {
        const T* part = static_cast<const T*>(input.exchanged.parts[first + j]);
        rows[j] = load_part(reinterpret_cast<const uint4*>(part + row * n + column));
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch && first + j < kMaxRanks; ++j) {
      if (!inside || first + j >= input.exchanged.num_ranks) continue;
      const Floats8 x = widen8<T>(rows[j]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum.v[i] += x.v[i];
    }
  }
  return sum;
}

template <typename T, Input kInput, int kBatch>
__device__ __forceinline__ Floats8 input8(const NormInput& input, int64_t row, int64_t n, int column,
                                          bool inside) {
  if constexpr (kInput == Input::kExperts) return combine8<T, kBatch>(input, row, n, column, inside);
  if constexpr (kInput == Input::kParts)
    return sum_parts8<T, (kBatch < kMaxRanks ? kBatch : kMaxRanks)>(input, row, n, column, inside);
  if (inside && input.dense != nullptr)
    return load8(static_cast<const T*>(input.dense) + row * input.x_stride + column);
  return {};
}

// Replaces the exchange in kernels that do not exchange parts.
struct NoExchange {
  __device__ __forceinline__ static bool lets_dependents_begin() { return true; }
  __device__ __forceinline__ static void begin() {}
};

// Computes one row with the kBlocks blocks of a cluster, or with this block alone if kBlocks is 1. kAhead
// marks the kernel for few rows. With kLines, `exchange` gives the sums over ranks (exchanging_norm.cu).
template <typename T, int kMaxThreads, int kMinBlocks, Input kInput, bool kAhead, int kBlocks,
          typename Exchange = NoExchange>
__device__ __forceinline__ void norm_row(const AddRmsNormParams& p, int64_t out_row, int block,
                                         Exchange&& exchange = {}) {
  constexpr bool kCombine = kInput == Input::kExperts;
  __shared__ float partial[32];  // a warp's sum of squares, of the whole row
  __shared__ float peaks[32];    // a warp's largest |x · weight|: rows with one scale
  // If registers hold experts' rows, they have no room for weights. Each thread then keeps its own weights
  // here, which needs no barrier.
  constexpr bool kParkWeights = kCombine && kAhead && kBlocks == 1;
  __shared__ float4 own_weight[kParkWeights ? 2 * kMaxThreads : 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int column = (block * threads + thread) * kVec;
  const bool inside = column < p.n;
  Floats8 weight{};
  if (exchange.lets_dependents_begin()) pdl_launch_dependents();
  if (kBlocks > 1) cluster_arrive();
  if (kAhead && inside) weight = load8(p.weight + column);
  if (kParkWeights) {
    own_weight[thread] = {weight.v[0], weight.v[1], weight.v[2], weight.v[3]};
    own_weight[kMaxThreads + thread] = {weight.v[4], weight.v[5], weight.v[6], weight.v[7]};
  }
  pdl_wait();
  exchange.begin();

  const int64_t row = p.rows != nullptr ? p.rows[out_row] : out_row;
  const bool real = inside && row >= 0;
  Floats8 x{};
  // The weights are loaded ahead of the experts' rows, or after them to save registers.
  constexpr int kBatch = kAhead ? (kMaxThreads <= 896 ? 9 : 6) : (kMinBlocks * kMaxThreads <= 1536 ? 3 : 2);
  constexpr bool kResidualFirst = kAhead || !kCombine;
  if (kResidualFirst && real) x = load8(p.residual + row * p.n + column);
  if (row >= 0 && (kInput != Input::kDense || p.input.dense != nullptr)) {
    Floats8 added{};
    if constexpr (kInput == Input::kLines) {
      if (inside) added = exchange.template sum8<T>(row, column);
    } else {
      added = input8<T, kInput, kBatch>(p.input, row, p.n, column, inside);
    }
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
  const int lane = thread % 32;
  const int row_warp = (block * threads + thread) / 32;
  const bool per_token = p.y_quantized && is_per_token(p.y_quantized.format);
  const auto fetch_weight = [&] {
    if (!kAhead && inside) weight = load8(p.weight + column);
    if (kParkWeights) {
      const float4 low = own_weight[thread];
      const float4 high = own_weight[kMaxThreads + thread];
      weight = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    }
  };
  float peak = 0.0F;
  if (per_token) {
    fetch_weight();
#pragma unroll
    for (int i = 0; i < kVec; ++i) peak = fmaxf(peak, fabsf(x.v[i] * weight.v[i]));
    peak = lanes_max(peak);
  }
  if constexpr (kBlocks > 1) {
    cluster_wait();  // every block has started
    if (lane < kBlocks) {
      cluster_store(&partial[row_warp], sum, static_cast<uint32_t>(lane));
      if (per_token) cluster_store(&peaks[row_warp], peak, static_cast<uint32_t>(lane));
    }
    cluster_arrive();
    cluster_wait();
  } else {
    if (lane == 0) {
      partial[row_warp] = sum;
      if (per_token) peaks[row_warp] = peak;
    }
    __syncthreads();
  }
  const bool has_warp = lane < threads * kBlocks / 32;
  sum = lanes_sum(has_warp ? partial[lane] : 0.0F);
  const float factor = norm_factor(sum, p.n, p.eps);

  fetch_weight();
#pragma unroll
  for (int i = 0; i < kVec; ++i) x.v[i] = x.v[i] * factor * weight.v[i];
  if (p.y != nullptr && inside) store8(static_cast<T*>(p.y) + out_row * p.n + column, x);
  if (per_token) {
    const float scale = scale_of(p.y_quantized, lanes_max(has_warp ? peaks[lane] : 0.0F) * factor);
    store8_of_token(p.y_quantized, out_row, column, x, scale);
  } else if (p.y_quantized) {
    store8_quantized(p.y_quantized, out_row, column, x);
  }
}

}  // namespace hadal::cuda::norm
