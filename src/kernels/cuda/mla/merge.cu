// Joins the partial results of split sequences by log-sum-exp.
//
// Grid: blocks walk the rows of all split sequences (how many there are, the plan knows). A thread owns four
// columns of 512. Splits are taken 32 at a time, and kGroups groups of 128 threads share them: group g has
// splits g · 32 / kGroups and following of each 32; group 0 adds up what the groups have. The order of
// additions depends on the number of splits and on kGroups alone. Every warp works out the weights for
// itself, while the first partial results are on their way.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode.h"

namespace hadal::cuda {
namespace {

constexpr float kLn2 = 0.6931471805599453F;
constexpr int kAtOnce = 8;  // partial results in flight a thread

__device__ __forceinline__ float warp_max(float v) {
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, d));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
  return v;
}

template <int kGroups>
__global__ void __launch_bounds__(kGroups * 128) mla_merge_kernel(const __grid_constant__ DecodeArgs args) {
  constexpr int kPerGroup = 32 / kGroups;
  __shared__ float4 shares[kGroups][128];
  pdl_wait();
  pdl_launch_dependents();
  const int t = static_cast<int>(threadIdx.x) % 128;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = t % 32;
  // The first item's facts are read beside the number of items: one round trip less. (The array has num_seqs
  // entries.)
  int item = static_cast<int>(blockIdx.x);
  DecodeMerge merge = args.plan.merges[min(item / args.rows, args.num_seqs - 1)];
  const int num_items = *args.plan.num_merges * args.rows;
  for (; item < num_items; item += static_cast<int>(gridDim.x)) {
    if (item != static_cast<int>(blockIdx.x)) merge = args.plan.merges[item / args.rows];
    const int row = item % args.rows;
    const float* lse = args.partial_lse + int64_t{merge.first_slot} * args.rows + row;
    const auto* partial =
        reinterpret_cast<const float4*>(args.partial_out +
                                        (int64_t{merge.first_slot} * args.rows + row) * kKvLatentDim) +
        t;
    const int64_t stride = int64_t{args.rows} * (kKvLatentDim / 4);

    float own_lse = lane < merge.num_splits ? lse[int64_t{lane} * args.rows] : -INFINITY;
    float4 values[kAtOnce];
    const auto load = [&](int first) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int split = first + i;
        values[i] = split < merge.num_splits ? partial[split * stride] : float4{0.0F, 0.0F, 0.0F, 0.0F};
      }
    };
    load(group * kPerGroup);

    float top = own_lse;
    for (int s = lane + 32; s < merge.num_splits; s += 32) top = fmaxf(top, lse[int64_t{s} * args.rows]);
    top = warp_max(top);
    const float base = top == -INFINITY ? 0.0F : top;
    float total = exp2f(own_lse - base);
    for (int s = lane + 32; s < merge.num_splits; s += 32) total += exp2f(lse[int64_t{s} * args.rows] - base);
    total = warp_sum(total);
    const float scale = total > 0.0F ? 1.0F / total : 0.0F;

    float4 sum = {0.0F, 0.0F, 0.0F, 0.0F};
    for (int chunk = 0; chunk < merge.num_splits; chunk += 32) {
      if (chunk > 0) {
        const int s = chunk + lane;
        own_lse = s < merge.num_splits ? lse[int64_t{s} * args.rows] : -INFINITY;
      }
      const float own_weight = exp2f(own_lse - base) * scale;
#pragma unroll
      for (int first = 0; first < kPerGroup; first += kAtOnce) {
        const int split = group * kPerGroup + first;  // of the chunk
        if (chunk + split >= merge.num_splits) break;
        if (chunk + first > 0) load(chunk + split);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float weight = __shfl_sync(0xffffffffU, own_weight, split + i);
          sum.x += weight * values[i].x;
          sum.y += weight * values[i].y;
          sum.z += weight * values[i].z;
          sum.w += weight * values[i].w;
        }
      }
    }
    if constexpr (kGroups > 1) {
      shares[group][t] = sum;
      __syncthreads();
      if (group == 0) {
        for (int other = 1; other < kGroups; ++other) {
          const float4 share = shares[other][t];
          sum = {sum.x + share.x, sum.y + share.y, sum.z + share.z, sum.w + share.w};
        }
      }
      __syncthreads();  // shares are free again
    }
    if (group == 0) {
      const int64_t out_row = int64_t{merge.seq} * args.rows + row;
      *reinterpret_cast<uint2*>(args.out + out_row * kKvLatentDim + t * 4) =
          make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
      if (t == 0 && args.lse != nullptr) {
        args.lse[out_row] = total > 0.0F ? (base + log2f(total)) * kLn2 : -INFINITY;
      }
    }
  }
}

}  // namespace

void mla_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  // Few rows want more threads each, many rows want many blocks. With fixed splits the choice, which decides
  // the order of additions, must not depend on the batch.
  const int most_items = args.num_seqs * args.rows;
  if (geometry.fixed_splits || most_items > launch.num_sms * 2) {
    launch_kernel<mla_merge_kernel<1>>(
        launch, dim3(static_cast<unsigned>(std::min(launch.num_sms * 12, most_items))), dim3(128), 0, args);
  } else {
    launch_kernel<mla_merge_kernel<4>>(
        launch, dim3(static_cast<unsigned>(std::min(launch.num_sms * 2, most_items))), dim3(512), 0, args);
  }
}

}  // namespace hadal::cuda
