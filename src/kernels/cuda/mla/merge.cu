// Joins the partial results of split sequences by log-sum-exp.
//
// Grid: blocks walk the rows of all split sequences (how many there are, the plan knows). Each thread owns
// four columns of 512; kGroups groups of 128 threads take a contiguous share of the splits each, and group 0
// adds up the shares. The order of additions depends on the number of splits and kGroups alone.
#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode.h"

namespace hadal::cuda {
namespace {

constexpr int kMaxSplits = 1024;
constexpr float kLn2 = 0.6931471805599453F;

template <int kGroups>
__global__ void __launch_bounds__(kGroups * 128) mla_merge_kernel(DecodeArgs args) {
  __shared__ float weights[kMaxSplits];
  __shared__ float4 shares[kGroups][128];
  pdl_wait();
  pdl_launch_dependents();
  const int t = static_cast<int>(threadIdx.x) % 128;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = t % 32;
  const int num_items = *args.plan.num_split_sequences * args.rows;
  for (int item = static_cast<int>(blockIdx.x); item < num_items; item += static_cast<int>(gridDim.x)) {
    const int seq = args.plan.split_sequences[item / args.rows];
    const int row = item % args.rows;
    const DecodeSequence split = args.plan.sequences[seq];
    const float* lse = args.partial_lse + int64_t{split.first_slot} * args.rows + row;
    const int64_t out_row = int64_t{seq} * args.rows + row;
    if (threadIdx.x < 32) {
      float top = -INFINITY;
      for (int s = lane; s < split.num_splits; s += 32) top = fmaxf(top, lse[int64_t{s} * args.rows]);
      for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, d));
      const float base = top == -INFINITY ? 0.0F : top;
      float sum = 0.0F;
      for (int s = lane; s < split.num_splits; s += 32) {
        const float weight = exp2f(lse[int64_t{s} * args.rows] - base);
        weights[s] = weight;
        sum += weight;
      }
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, d);
      const float scale = sum > 0.0F ? 1.0F / sum : 0.0F;
      __syncwarp();
      for (int s = lane; s < split.num_splits; s += 32) weights[s] *= scale;
      if (lane == 0 && args.lse != nullptr)
        args.lse[out_row] = sum > 0.0F ? (base + log2f(sum)) * kLn2 : -INFINITY;
    }
    __syncthreads();
    const int per_group = (split.num_splits + kGroups - 1) / kGroups;
    const int begin = group * per_group;
    const int end = min(begin + per_group, split.num_splits);
    const auto* partial =
        reinterpret_cast<const float4*>(args.partial_out +
                                        (int64_t{split.first_slot} * args.rows + row) * kKvLatentDim) +
        t;
    const int64_t stride = int64_t{args.rows} * (kKvLatentDim / 4);
    float4 sum = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 8
    for (int s = begin; s < end; ++s) {
      const float4 value = partial[s * stride];
      const float weight = weights[s];
      sum.x += weight * value.x;
      sum.y += weight * value.y;
      sum.z += weight * value.z;
      sum.w += weight * value.w;
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
    }
    if (group == 0) {
      *reinterpret_cast<uint2*>(args.out + out_row * kKvLatentDim + t * 4) =
          make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
    }
    __syncthreads();  // weights and shares are free again
  }
}

}  // namespace

void mla_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  HADAL_CHECK(geometry.num_parts <= kMaxSplits, "num_parts {}: at most {}", geometry.num_parts, kMaxSplits);
  // Many splits of few rows want threads a row; few splits of many rows want many blocks. With fixed splits
  // the choice, which decides the order of additions, must not depend on the batch.
  if (geometry.fixed_splits || args.num_seqs >= 16) {
    launch_kernel<mla_merge_kernel<1>>(launch, dim3(static_cast<unsigned>(launch.num_sms) * 12), dim3(128), 0,
                                       args);
  } else {
    launch_kernel<mla_merge_kernel<4>>(launch, dim3(static_cast<unsigned>(launch.num_sms) * 2), dim3(512), 0,
                                       args);
  }
}

}  // namespace hadal::cuda
