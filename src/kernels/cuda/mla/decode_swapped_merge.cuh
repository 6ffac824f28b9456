// Joining the splits of a sequence inside the swapped decode kernel, by all blocks that hold one
// (decode_merge.cuh says how they meet). A member of the meeting has a run of the tile's quads (four columns
// of a row, row by row). What it costs is latency, so all loads of a thread are on their way at once, each
// split's lse beside its values, and weights are relative to what the thread has seen so far: no pass over
// the lse comes first. The order of additions depends on the numbers of splits, blocks and rows alone.
#pragma once

#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode_merge.cuh"
#include "kernels/cuda/mla/decode_swapped_page.cuh"

namespace hadal::cuda::swapped {

struct MergeShared {
  float4 values[kConsumers];
  float2 facts[kConsumers];
};

struct PartialRow {
  float maximum = -INFINITY;  // base 2
  float sum = 0.0F;
  float4 values = {0.0F, 0.0F, 0.0F, 0.0F};  // weighted by 2^(lse − maximum)
};
__device__ __forceinline__ void add_weighted(float4& sum, float weight, const float4& v) {
  sum = {sum.x + weight * v.x, sum.y + weight * v.y, sum.z + weight * v.z, sum.w + weight * v.w};
}

// kAtOnce quads of a thread, `apart` from each other, over the splits group, group + groups, …; eight loads
// of values in flight.
template <typename Out, int kAtOnce>
__device__ __forceinline__ void merge_quads(const DecodeArgs& args, const MergeShare& share, int quad,
                                            int apart, int end, int group, int groups, int thread,
                                            MergeShared& shared) {
  constexpr int kSplits = 8 / kAtOnce;
  PartialRow rows[kAtOnce];
  const int64_t first = int64_t{share.first_slot} * args.rows + share.first_row;
  const float* lse = args.partial_lse + first;
  const float* values = args.partial_out + first * kKvLatentDim;
#pragma unroll 1
  for (int split = group; split < share.num_splits; split += kSplits * groups) {
    float4 v[kAtOnce][kSplits];
    float l[kAtOnce][kSplits];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int own = quad + i * apart;
#pragma unroll
      for (int j = 0; j < kSplits; ++j) {
        const int s = split + j * groups;
        const bool exists = own < end && s < share.num_splits;
        const int64_t row = int64_t{s} * args.rows;
        v[i][j] = {0.0F, 0.0F, 0.0F, 0.0F};
        l[i][j] = -INFINITY;
        if (exists) {
          v[i][j] = __ldcg(reinterpret_cast<const float4*>(values + row * kKvLatentDim) + own);
          l[i][j] = __ldcg(lse + row + own / (kKvLatentDim / 4));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float top = rows[i].maximum;
#pragma unroll
      for (int j = 0; j < kSplits; ++j) top = fmaxf(top, l[i][j]);
      const float base = top == -INFINITY ? 0.0F : top;
      const float factor = exp2_fast(rows[i].maximum - base);
      rows[i].maximum = top;
      rows[i].sum *= factor;
      float4& sum = rows[i].values;
      sum = {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
#pragma unroll
      for (int j = 0; j < kSplits; ++j) {
        const float weight = exp2_fast(l[i][j] - base);
        rows[i].sum += weight;
        add_weighted(sum, weight, v[i][j]);
      }
    }
  }
  if (groups > 1) {  // then kAtOnce is 1
    shared.values[thread] = rows[0].values;
    shared.facts[thread] = {rows[0].maximum, rows[0].sum};
    named_barrier_sync(kAllConsumers, kConsumers);
    if (group > 0) return;
    float top = rows[0].maximum;
    for (int g = 1; g < groups; ++g) top = fmaxf(top, shared.facts[thread + g * apart].x);
    const float base = top == -INFINITY ? 0.0F : top;
    PartialRow all;
    all.maximum = top;
    for (int g = 0; g < groups; ++g) {
      const float2 facts = shared.facts[thread + g * apart];
      const float weight = exp2_fast(facts.x - base);
      all.sum += weight * facts.y;
      add_weighted(all.values, weight, shared.values[thread + g * apart]);
    }
    rows[0] = all;
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int own = quad + i * apart;
    if (own >= end) continue;
    const float inverse = rows[i].sum > 0.0F ? __fdividef(1.0F, rows[i].sum) : 0.0F;
    float4 v = rows[i].values;
    v = {v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse};
    const int64_t row = int64_t{share.seq} * args.rows + share.first_row;
    *reinterpret_cast<uint2*>(static_cast<Out*>(args.out) + row * kKvLatentDim + int64_t{own} * 4) =
        pack_columns<Out>(v);
    if (args.lse != nullptr && own % (kKvLatentDim / 4) == 0) {
      args.lse[row + own / (kKvLatentDim / 4)] =
          rows[i].sum > 0.0F ? (rows[i].maximum + log2f(rows[i].sum)) * 0.6931471805599453F : -INFINITY;
    }
  }
}

// Merges what finish_split has noted; by the consumers, after the last of them.
template <typename Out>
__device__ __forceinline__ void merge_splits_noted(const DecodeArgs& args, int thread,
                                                   const MergeNotes& notes, MergeShared& shared) {
  named_barrier_sync(kAllConsumers, kConsumers);
  const int count = notes.count;
#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    const MergeShare share = notes.shares[number];
    const int32_t* meeting = args.plan.meetings + (int64_t{share.seq} * args.num_tiles + share.tile) * 2;
    if (thread == 0) await_members(meeting, share.complete);
    named_barrier_sync(kAllConsumers, kConsumers);
    const int quads = share.num_rows * (kKvLatentDim / 4);
    const int begin = quads * share.member / share.num_members;
    const int end = quads * (share.member + 1) / share.num_members;
    const int most = (quads + share.num_members - 1) / share.num_members;
    // Few quads: groups of threads share their splits.
    int apart = kConsumers;
    while (apart > 32 && apart / 2 >= most) apart /= 2;
    const int groups = kConsumers / apart;
    const int group = thread / apart;
    const int quad = begin + thread % apart;
    if (groups > 1) {
      merge_quads<Out, 1>(args, share, quad, apart, end, group, groups, thread, shared);
    } else if (share.num_splits <= 2) {
      for (int i = 0; i < end - begin; i += 4 * apart)
        merge_quads<Out, 4>(args, share, quad + i, apart, end, 0, 1, thread, shared);
    } else {
      for (int i = 0; i < end - begin; i += 2 * apart)
        merge_quads<Out, 2>(args, share, quad + i, apart, end, 0, 1, thread, shared);
    }
    named_barrier_sync(kAllConsumers, kConsumers);  // `shared` is free again
  }
}

}  // namespace hadal::cuda::swapped
