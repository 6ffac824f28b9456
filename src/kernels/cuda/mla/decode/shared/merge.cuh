// Joining the partial results of split sequences by log-sum-exp.
//
// Inside a decode kernel (of the 64-row ones only where a test asks for it; the swapped one has a way of its
// own to merge, mla/decode/swapped/merge.cuh, and shares the notes and the wait): the blocks that hold a
// split of one tile of a sequence (its splits times the blocks of a cluster) meet at a counter in the plan, a
// multiple of their number between launches. A block that has written its share of a split's slot calls
// finish_split, and, when it has nothing left to compute, merge_pending: it waits until all blocks of the
// tile have finished theirs, and merges its share of the tile's rows × columns. Waiting is safe: the whole
// grid is resident and every block finishes all it has before it waits.
//
// Work is dealt out in units of 128 columns of a row, so that every block reads about as much, whatever the
// numbers of rows and splits; with fewer units than warps, several warps share the splits of one. The order
// of additions depends on the numbers of splits, blocks and rows alone.
//
// Where DecodeGeometry::merge_inside is false (fixed splits, tiles of 64 rows) a kernel of its own follows
// (merge.cu), whose order of additions depends on the number of splits alone.
#pragma once

#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode/shared/pieces.cuh"

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

// Columns of a merged row, four neighbours, in the output's type (bf16 or float16).
template <typename Out>
__device__ __forceinline__ uint2 pack_columns(const float4& v) {
  return make_uint2(pack_two<Out>(v.x, v.y), pack_two<Out>(v.z, v.w));
}

// Partial results of 64-row tiles of 16-bit products are float16: half the bytes of float32, and still eight
// times as fine as a bf16 output. They lie in the first half of partial_out's room, [max_slots, rows, 512].
// Each half of a row is multiplied by a power of two, which brings its largest value below 2^15, so that any
// range will do; what takes it back is in the second half: [max_slots, rows, 2].
struct HalfPartials {
  f16* values;
  float* scales;
};
__device__ __forceinline__ HalfPartials half_partials(const DecodeArgs& args) {
  return {reinterpret_cast<f16*>(args.partial_out),
          args.partial_out + (args.partial_lse - args.partial_out) / 2};
}
// The power of two for values up to `largest`, and its inverse.
__device__ __forceinline__ float2 half_scale(float largest) {
  const uint32_t exponent = max(__float_as_uint(largest) >> 23, 15U);
  return {__uint_as_float((268U - exponent) << 23), __uint_as_float((exponent - 14U) << 23)};
}

inline constexpr int kMergeMaxSplits = 256;  // of a sequence: parts of the plan
inline constexpr int kMergeMaxTileRows = 64;

// A block's part in the merge of one tile of a split sequence.
struct MergeShare {
  int seq, num_splits, first_slot;
  int tile, first_row, num_rows;  // of the tile: rows [first_row, first_row + num_rows) of the sequence
  int member, num_members;        // of the blocks that meet
  uint32_t complete;              // the counter when all have arrived
};
// In shared memory: what a block has finished. `count` is set to 0 by the thread 0 of those who merge, before
// its first finish_split.
struct MergeNotes {
  MergeShare shares[2];  // a part ends one split sequence and begins another, at most
  int count;
};
// In shared memory, 16-byte aligned; in use while merge_pending runs.
struct MergeScratch {
  float4 sums[16][32];  // of warps that share a unit
  float weights[kMergeMaxTileRows + 2 * kMergeMaxSplits];
};

// The split `piece` of tile `tile` (of `tile_rows` rows) is in its slot, as far as this block writes it:
// announces it, and notes that it is to be merged. By kThreads threads with the numbers 0 … kThreads − 1,
// which have the named barrier kBarrier for themselves. The block is `rank` of a part's `cluster`.
template <int kThreads, int kBarrier>
__device__ __forceinline__ void finish_split(const DecodeArgs& args, const DecodePiece& piece, int tile,
                                             int tile_rows, int rank, int cluster, int thread,
                                             MergeNotes& notes) {
  named_barrier_sync(kBarrier, kThreads);
  if (thread != 0) return;
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  auto* meeting =
      reinterpret_cast<uint32_t*>(args.plan.meetings) + (int64_t{piece.seq} * args.num_tiles + tile) * 2;
  const uint32_t before = atomicAdd(meeting, 1U);
  const auto num_members = static_cast<uint32_t>(piece.split.num_splits * cluster);
  const int number = notes.count++;
  if (number >= 2) __trap();  // no plan gives a part three split sequences
  const int first_row = tile * tile_rows;
  notes.shares[number] = {piece.seq,
                          piece.split.num_splits,
                          piece.split.first_slot,
                          tile,
                          first_row,
                          min(tile_rows, args.rows - first_row),
                          (piece.slot - piece.split.first_slot) * cluster + rank,
                          static_cast<int>(num_members),
                          (before / num_members + 1) * num_members};
}

// Until all members have finished; by one thread.
__device__ __forceinline__ void await_members(const int32_t* arrived, uint32_t complete) {
  const SpinDeadline deadline;
  uint32_t count;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
    if (deadline.has_passed()) __trap();
  } while (static_cast<int32_t>(count - complete) < 0);
}

// The weights of the rows of units [begin, end), a warp a row: 2^(lse − maximum) / sum; and these rows' lse.
template <int kThreads>
__device__ __forceinline__ void merge_weights(const DecodeArgs& args, const MergeShare& share, int begin,
                                              int end, int thread, MergeScratch& scratch) {
  constexpr int kChunks = kMergeMaxSplits / 32;
  const int lane = thread % 32;
  const int first_row = begin / 4;
  const int rows = begin < end ? (end - 1) / 4 - first_row + 1 : 0;
#pragma unroll 1
  for (int row = thread / 32; row < rows; row += kThreads / 32) {
    const int row_of_seq = share.first_row + first_row + row;
    const float* lse = args.partial_lse + int64_t{share.first_slot} * args.rows + row_of_seq;
    float own[kChunks];
    float top = -INFINITY;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int split = c * 32 + lane;
      own[c] = split < share.num_splits ? __ldcg(lse + int64_t{split} * args.rows) : -INFINITY;
      top = fmaxf(top, own[c]);
    }
    top = warp_max(top);
    const float base = top == -INFINITY ? 0.0F : top;
    float total = 0.0F;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      own[c] = exp2_fast(own[c] - base);
      total += own[c];
    }
    total = warp_sum(total);
    const float inverse = total > 0.0F ? 1.0F / total : 0.0F;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int split = c * 32 + lane;
      if (split < share.num_splits) scratch.weights[row * share.num_splits + split] = own[c] * inverse;
    }
    const int first_unit = (first_row + row) * 4;  // whoever has it writes the row's lse
    if (args.lse != nullptr && lane == 0 && first_unit >= begin && first_unit < end) {
      args.lse[int64_t{share.seq} * args.rows + row_of_seq] =
          total > 0.0F ? (base + log2f(total)) * kLn2 : -INFINITY;
    }
  }
}

// The units [begin, end) of a share: kUnits of them at once a warp, a thread has one quad of columns of each,
// kSplits loads in flight for each. `sharing` warps share the splits of a unit, and then have no other.
template <typename Out, int kThreads, int kBarrier, int kUnits, int kSplits>
__device__ __forceinline__ void merge_units(const DecodeArgs& args, const MergeShare& share, int begin,
                                            int end, int sharing, int thread, MergeScratch& scratch) {
  static_assert(kThreads <= 512);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int at_once = kThreads / 32 / sharing;  // groups of warps that share a unit
  const int num_splits = share.num_splits;
  const int64_t first_partial = int64_t{share.first_slot} * args.rows + share.first_row;
  const auto* partial =
      reinterpret_cast<const float4*>(args.partial_out + first_partial * kKvLatentDim) + lane;
  const uint32_t split_size = args.rows * (kKvLatentDim / 4);
  Out* out = static_cast<Out*>(args.out) + (int64_t{share.seq} * args.rows + share.first_row) * kKvLatentDim +
             lane * 4;
  const auto add = [](float4& sum, const float4& v, float weight) {
    sum = {sum.x + weight * v.x, sum.y + weight * v.y, sum.z + weight * v.z, sum.w + weight * v.w};
  };
  const int first_unit = warp / sharing < at_once ? begin + warp / sharing : end;
#pragma unroll 1
  for (int unit = first_unit; unit < end; unit += kUnits * at_once) {
    float4 sums[kUnits] = {};
#pragma unroll 1
    for (int first = warp % sharing; first < num_splits; first += kSplits * sharing) {
      float4 values[kUnits][kSplits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < kSplits; ++i) {
          const int of = unit + u * at_once;
          const int split = first + i * sharing;
          values[u][i] = of < end && split < num_splits ? __ldcg(partial + split * split_size + of * 32)
                                                        : float4{0.0F, 0.0F, 0.0F, 0.0F};
        }
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const float* weights = scratch.weights + ((unit + u * at_once) / 4 - begin / 4) * num_splits;
#pragma unroll
        for (int i = 0; i < kSplits; ++i) {
          const int split = first + i * sharing;
          if (unit + u * at_once < end && split < num_splits) add(sums[u], values[u][i], weights[split]);
        }
      }
    }
    if (sharing > 1) {
      scratch.sums[warp][lane] = sums[0];
      break;
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int of = unit + u * at_once;
      if (of < end) *reinterpret_cast<uint2*>(out + of * 128) = pack_columns<Out>(sums[u]);
    }
  }
  if (sharing == 1) return;
  named_barrier_sync(kBarrier, kThreads);
  if (warp % sharing == 0 && first_unit < end) {
    float4 sum = scratch.sums[warp][lane];
#pragma unroll 1
    for (int other = 1; other < sharing; ++other) add(sum, scratch.sums[warp + other][lane], 1.0F);
    *reinterpret_cast<uint2*>(out + first_unit * 128) = pack_columns<Out>(sum);
  }
}

// Merges what finish_split has noted; by the same threads, after the last of them. kInFlight: 16-byte loads
// of a thread at once (four registers each).
template <typename Out, int kThreads, int kBarrier, int kInFlight = 8>
__device__ __forceinline__ void merge_pending(const DecodeArgs& args, int thread, const MergeNotes& notes,
                                              MergeScratch& scratch) {
  named_barrier_sync(kBarrier, kThreads);
  const int count = notes.count;
#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    const MergeShare share = notes.shares[number];
    const int32_t* meeting = args.plan.meetings + (int64_t{share.seq} * args.num_tiles + share.tile) * 2;
    if (thread == 0) await_members(meeting, share.complete);
    named_barrier_sync(kBarrier, kThreads);
    // Units in order; a row's four follow each other.
    const int num_units = share.num_rows * 4;
    const int begin = num_units * share.member / share.num_members;
    const int end = num_units * (share.member + 1) / share.num_members;
    const int most = (num_units + share.num_members - 1) / share.num_members;
    int sharing = 1;
    while (2 * sharing * most <= kThreads / 32 && share.num_splits > sharing) sharing *= 2;
    merge_weights<kThreads>(args, share, begin, end, thread, scratch);
    named_barrier_sync(kBarrier, kThreads);
    // Short code: it runs once, and comes from far.
    if (share.num_splits <= 2) {
      merge_units<Out, kThreads, kBarrier, kInFlight / 2, 2>(args, share, begin, end, sharing, thread,
                                                             scratch);
    } else {
      merge_units<Out, kThreads, kBarrier, 1, kInFlight>(args, share, begin, end, sharing, thread, scratch);
    }
    named_barrier_sync(kBarrier, kThreads);  // scratch is free again
  }
}

}  // namespace hadal::cuda
