// Joining the partial results of a split sequence by log-sum-exp: in a kernel of its own (merge.cu), or,
// where splits are few (decode.cpp decides), at the end of the streaming kernel itself.
//
// There, a sequence's blocks meet at two counters in the plan, which are zero between launches: each split
// arrives when its partial result is written; when all have, each block merges some rows; the last one to
// leave sets the counters back. Waiting is safe: the grid has at most one block a multiprocessor and every
// block arrives before it waits.
#pragma once

#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"

namespace hadal::cuda {

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, d));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
  return v;
}

struct MergedColumns {
  float4 values;  // group `group`'s share of the weighted sum
  float lse;      // of the row, natural
};

// By a converged warp: four columns a thread, `quad` counting them (0…127). kGroups groups share the splits:
// group g has splits g, g + kGroups … The order of additions depends on the number of splits and kGroups
// alone. The first partial results are on their way while the weights are worked out.
template <int kGroups, int kInFlight = 8>
__device__ __forceinline__ MergedColumns merge_splits(const DecodeArgs& args, const DecodeSequence& split,
                                                      int row, int quad, int group) {
  constexpr int kPerGroup = 32 / kGroups;
  constexpr int kAtOnce =
      kPerGroup < kInFlight ? kPerGroup : kInFlight;  // partial results in flight a thread
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_splits = split.num_splits;
  const int64_t first = int64_t{split.first_slot} * args.rows + row;
  const float* lse = args.partial_lse + first;
  const auto* partial = reinterpret_cast<const float4*>(args.partial_out + first * kKvLatentDim) + quad;
  const int64_t stride = int64_t{args.rows} * (kKvLatentDim / 4);
  const auto lse_of = [&](int s) {
    return s < num_splits ? __ldcg(lse + int64_t{s} * args.rows) : -INFINITY;
  };

  float own_lse = lse_of(lane);
  float4 values[kAtOnce];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = begin + i * kGroups + group;
      values[i] = number < num_splits ? __ldcg(partial + number * stride) : float4{0.0F, 0.0F, 0.0F, 0.0F};
    }
  };
  load(0);

  float top = own_lse;
  for (int chunk = 32; chunk < num_splits; chunk += 32) top = fmaxf(top, lse_of(chunk + lane));
  top = warp_max(top);
  const float base = top == -INFINITY ? 0.0F : top;
  float total = exp2_fast(own_lse - base);
  for (int chunk = 32; chunk < num_splits; chunk += 32) total += exp2_fast(lse_of(chunk + lane) - base);
  total = warp_sum(total);
  const float scale = total > 0.0F ? 1.0F / total : 0.0F;

  float4 sum = {0.0F, 0.0F, 0.0F, 0.0F};
  for (int chunk = 0; chunk < num_splits; chunk += 32) {
    if (chunk > 0) own_lse = lse_of(chunk + lane);
    const float own_weight = exp2_fast(own_lse - base) * scale;
#pragma unroll
    for (int step = 0; step < 32; step += kAtOnce * kGroups) {
      if (chunk + step >= num_splits) break;
      if (chunk + step > 0) load(chunk + step);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = __shfl_sync(0xffffffffU, own_weight, step + i * kGroups + group);
        sum.x += weight * values[i].x;
        sum.y += weight * values[i].y;
        sum.z += weight * values[i].z;
        sum.w += weight * values[i].w;
      }
    }
  }
  return {sum, total > 0.0F ? (base + log2f(total)) * 0.6931471805599453F : -INFINITY};
}

__device__ __forceinline__ void store_merged(const DecodeArgs& args, int seq, int row, int quad,
                                             const MergedColumns& merged) {
  const int64_t out_row = int64_t{seq} * args.rows + row;
  const float4& v = merged.values;
  *reinterpret_cast<uint2*>(static_cast<bf16*>(args.out) + out_row * kKvLatentDim + quad * 4) =
      make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  if (quad == 0 && args.lse != nullptr) args.lse[out_row] = merged.lse;
}

// The meeting of a sequence's splits; each by one thread, between barriers of its block.
__device__ __forceinline__ void arrive_split(const DecodeArgs& args, const DecodePiece& piece) {
  __threadfence();
  atomicAdd(args.plan.meetings + int64_t{2} * args.num_tiles * piece.seq, 1);
}
__device__ __forceinline__ void await_splits(const DecodeArgs& args, const DecodePiece& piece) {
  const int32_t* arrived = args.plan.meetings + int64_t{2} * args.num_tiles * piece.seq;
  int32_t count;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
  } while (count < piece.split.num_splits);
}
__device__ __forceinline__ void leave_splits(const DecodeArgs& args, const DecodePiece& piece) {
  int32_t* meeting = args.plan.meetings + int64_t{2} * args.num_tiles * piece.seq;
  if (atomicAdd(meeting + 1, 1) == piece.split.num_splits - 1) {
    meeting[0] = 0;
    meeting[1] = 0;
  }
}

}  // namespace hadal::cuda
