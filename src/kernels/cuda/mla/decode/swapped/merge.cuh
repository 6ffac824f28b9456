// Joins the splits of a sequence inside the swapped decode kernel. All blocks with a split of the sequence
// take part. The blocks of one tile of the sequence (its splits times the blocks of a cluster) synchronise at
// a counter in the plan, which is a multiple of their number between launches. A block calls arrive_split
// after it has written its share of a split's slot. After its last piece it calls merge_splits_noted, which
// waits until all blocks of the tile have arrived and merges the block's share of the tile. Waiting is safe,
// because the whole grid is resident and every block finishes all its pieces before it waits.
//
// A split's results lie in its slot as they lie in registers (mla/decode/swapped/send.cuh): float32,
// unnormalised, with each row's maximum and sum. A block merges a run of the tile's chunks of 32 bytes, which
// are two dims of four rows. The merge is latency-bound, so a thread loads the maxima and sums of several
// splits together with their values. There is no first pass over the maxima: weights are relative to the
// running maximum of the splits that the thread has read. The order of additions depends only on the numbers
// of splits, blocks and rows.
#pragma once

#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode/swapped/join.cuh"

namespace hadal::cuda::swapped {

// Describes a block's part in the merge of one tile of a split sequence.
struct MergeShare {
  int seq, num_splits, first_slot;
  int tile, first_row, num_rows;  // the tile has rows [first_row, first_row + num_rows) of the sequence
  int member, num_members;        // this block's number, and the number of blocks that synchronise
  uint32_t complete;              // value of the counter after all of them have arrived
};
// Holds, in shared memory, the splits that a block has finished. Thread 0 of the consumers sets `count` to 0
// before the first arrive_split.
struct MergeNotes {
  MergeShare shares[2];  // a part ends one split sequence and begins another, at most
  int count;
};
struct MergeShared {
  float2 facts[4][kConsumers];
  float2 values[4][kConsumers];
};

// Waits until all members have finished; called by one thread.
__device__ __forceinline__ void await_members(const int32_t* arrived, uint32_t complete) {
  const SpinDeadline deadline;
  uint32_t count;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
    if (deadline.has_passed()) __trap();
  } while (static_cast<int32_t>(count - complete) < 0);
}

// Holds a thread's chunk, two dims of four rows, joined over the splits that the thread has read.
struct PartialChunk {
  float maximum[4];
  float sum[4];
  float2 values[4];  // sums over splits, weighted by 2^(the split's maximum − maximum)
};
__device__ __forceinline__ void add_split(PartialChunk& chunk, int row, float base, float maximum, float sum,
                                          const float2& values) {
  const float weight = exp2_fast(maximum - base);
  chunk.sum[row] += weight * sum;
  chunk.values[row].x += weight * values.x;
  chunk.values[row].y += weight * values.y;
}
// Rescales a row of the chunk to a new maximum. Returns this maximum, with −∞ as 0.
__device__ __forceinline__ float raise(PartialChunk& chunk, int row, float maximum) {
  const float base = maximum == -INFINITY ? 0.0F : maximum;
  const float factor = exp2_fast(chunk.maximum[row] - base);
  chunk.maximum[row] = maximum;
  chunk.sum[row] *= factor;
  chunk.values[row] = {chunk.values[row].x * factor, chunk.values[row].y * factor};
  return base;
}

// Gives the place of chunk `number` of a tile: rows row[0], row[0] + 1, row[1] and row[1] + 1, and two dims.
template <typename Format, int kN>
struct ChunkPlace {
  int row[2];
  int dim;        // the dim that lies first
  int other_dim;  // the dim that lies second
  __device__ __forceinline__ explicit ChunkPlace(int number) {
    constexpr int kEach = 32 / Sender<kN>::kThreadBytes;  // threads per chunk
    const int thread = number * kEach % 128;
    const int unit = number * kEach / 128;
    const int lane = thread % 32;
    row[0] = unit % 2 * (kN / 2) + 2 * (lane % 4);
    row[1] = row[0] + (kN == 16 ? 2 : 8);
    const int first = unit / 2 * 64 + thread / 32 * 16 + lane / 4 * (Format::kPairedDims ? 2 : 1);
    constexpr int kApart = Format::kPairedDims ? 1 : 8;
    const bool turned = number / 4 % 2 != 0;
    dim = first + (turned ? kApart : 0);
    other_dim = first + (turned ? 0 : kApart);
  }
};

template <typename Format, int kN>
__device__ __forceinline__ void store_merged_row(const DecodeArgs& args, const MergeShare& share,
                                                 const ChunkPlace<Format, kN>& place, int number,
                                                 float maximum, float sum, const float2& values) {
  using Out = typename Format::Out;
  const int row = number < 2 ? place.row[0] + number : place.row[1] + number - 2;
  if (row >= share.num_rows) return;
  const float inverse = sum > 0.0F ? __fdividef(1.0F, sum) : 0.0F;
  const uint32_t packed = pack_two<Out>(values.x * inverse, values.y * inverse);
  const int64_t of_all = int64_t{share.seq} * args.rows + share.first_row + row;
  auto* out = reinterpret_cast<uint16_t*>(args.out) + of_all * kKvLatentDim;
  out[place.dim] = static_cast<uint16_t>(packed);
  out[place.other_dim] = static_cast<uint16_t>(packed >> 16);
  if (args.lse != nullptr && min(place.dim, place.other_dim) == 0) {
    args.lse[of_all] = sum > 0.0F ? (maximum + log2f(sum) - Format::kWeightLog2) * kLn2 : -INFINITY;
  }
}

// Merges the chunks begin … begin + apart − 1 that are below `end`. Thread t has chunk begin + t % apart of
// the splits t / apart, t / apart + kConsumers / apart, ….
template <typename Format, int kN>
__device__ __forceinline__ void merge_chunks(const DecodeArgs& args, const MergeShare& share, int begin,
                                             int end, int apart_log2, int thread, MergeShared& shared,
                                             bool wait) {
  constexpr int kSplits = 4;  // splits in flight
  const int apart = 1 << apart_log2;
  const int groups = kConsumers >> apart_log2;
  const int own = begin + (thread & (apart - 1));
  const ChunkPlace<Format, kN> place(own);
  const std::byte* partials = partial_of<kN>(args, share.first_slot, share.tile);
  const int64_t split_bytes = int64_t{args.num_tiles} * kN * kDecodePartialRowBytes;
  const std::byte* values = partials + own * 32;
  const std::byte* facts = partials + kPartialValues<kN>;
  // All addresses are computed before the wait; the other blocks' results are read only after it.
  if (wait) {
    if (thread == 0) {
      await_members(args.plan.arrivals + (int64_t{share.seq} * args.num_tiles + share.tile) * 2,
                    share.complete);
    }
    named_barrier_sync(kAllConsumers, kConsumers);
  }
  PartialChunk chunk;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    chunk.maximum[r] = -INFINITY;
    chunk.sum[r] = 0.0F;
    chunk.values[r] = {0.0F, 0.0F};
  }
#pragma unroll 1
  for (int split = thread >> apart_log2; split < share.num_splits; split += kSplits * groups) {
    float4 v[kSplits][2];
    float4 f[kSplits][2];
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
      const int s = split + i * groups;
      v[i][0] = v[i][1] = {0.0F, 0.0F, 0.0F, 0.0F};
      f[i][0] = f[i][1] = {-INFINITY, 0.0F, -INFINITY, 0.0F};
      if (own < end && s < share.num_splits) {
        const int64_t at = s * split_bytes;
        v[i][0] = __ldcg(reinterpret_cast<const float4*>(values + at));
        v[i][1] = __ldcg(reinterpret_cast<const float4*>(values + at + 16));
        f[i][0] = __ldcg(reinterpret_cast<const float4*>(facts + at + place.row[0] * 8));
        f[i][1] = __ldcg(reinterpret_cast<const float4*>(facts + at + place.row[1] * 8));
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const auto maximum_of = [&](int i) { return r % 2 == 0 ? f[i][r / 2].x : f[i][r / 2].z; };
      float top = chunk.maximum[r];
#pragma unroll
      for (int i = 0; i < kSplits; ++i) top = fmaxf(top, maximum_of(i));
      const float base = raise(chunk, r, top);
#pragma unroll
      for (int i = 0; i < kSplits; ++i) {
        // The order of the four pairs of values, each named by (pair of rows, dim), is 00, 01, 10, 11 with
        // kN 16, and 00, 10, 01, 11 with kN 32.
        const auto value = [&](int dim) {
          const float4& pairs = v[i][kN == 16 ? r / 2 : dim];
          const bool back = (kN == 16 ? dim : r / 2) != 0;
          return r % 2 == 0 ? (back ? pairs.z : pairs.x) : (back ? pairs.w : pairs.y);
        };
        add_split(chunk, r, base, maximum_of(i), r % 2 == 0 ? f[i][r / 2].y : f[i][r / 2].w,
                  {value(0), value(1)});
      }
    }
  }
#pragma unroll 1
  for (int d = apart; d < 32; d *= 2) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float maximum = __shfl_xor_sync(0xffffffffU, chunk.maximum[r], d);
      const float sum = __shfl_xor_sync(0xffffffffU, chunk.sum[r], d);
      const float2 other = {__shfl_xor_sync(0xffffffffU, chunk.values[r].x, d),
                            __shfl_xor_sync(0xffffffffU, chunk.values[r].y, d)};
      const float base = raise(chunk, r, fmaxf(chunk.maximum[r], maximum));
      add_split(chunk, r, base, maximum, sum, other);
    }
  }
  if (apart == kConsumers) {
    if (own >= end) return;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      store_merged_row(args, share, place, r, chunk.maximum[r], chunk.sum[r], chunk.values[r]);
    return;
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    shared.facts[r][thread] = {chunk.maximum[r], chunk.sum[r]};
    shared.values[r][thread] = chunk.values[r];
  }
  named_barrier_sync(kAllConsumers, kConsumers);
  const int step = max(apart, 32);
#pragma unroll 1
  for (int task = thread; task < 4 * apart; task += kConsumers) {
    const int i = task & (apart - 1);
    const int r = task >> apart_log2;
    if (begin + i >= end) continue;
    constexpr int kMost = kConsumers / 32;
    float2 f[kMost];
    float2 v[kMost];
    float top = -INFINITY;
#pragma unroll
    for (int g = 0; g < kMost; ++g) {
      const bool exists = g * step < kConsumers;
      f[g] = exists ? shared.facts[r][g * step + i] : float2{-INFINITY, 0.0F};
      v[g] = exists ? shared.values[r][g * step + i] : float2{0.0F, 0.0F};
      top = fmaxf(top, f[g].x);
    }
    PartialChunk all;
    all.sum[0] = 0.0F;
    all.values[0] = {0.0F, 0.0F};
    const float base = top == -INFINITY ? 0.0F : top;
#pragma unroll
    for (int g = 0; g < kMost; ++g) add_split(all, 0, base, f[g].x, f[g].y, v[g]);
    store_merged_row(args, share, ChunkPlace<Format, kN>(begin + i), r, top, all.sum[0], all.values[0]);
  }
  named_barrier_sync(kAllConsumers, kConsumers);  // `shared` is free again
}

// Reads the counter of the tile. It is called by thread 0, after the previous launch has ended and before
// this block arrives. The value read lies below the next multiple of the number of members, because the
// counter cannot reach that multiple before this block arrives.
__device__ __forceinline__ uint32_t read_arrivals(const DecodeArgs& args, const DecodePiece& piece,
                                                  int tile) {
  const int32_t* arrivals = args.plan.arrivals + (int64_t{piece.seq} * args.num_tiles + tile) * 2;
  uint32_t count;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrivals) : "memory");
  return count;
}

// Signals that this block's share of the split `piece` is in its slot, and notes the split for the merge. It
// is called by the consumers. The counter is increased without a result to wait for, because read_arrivals
// has read it before.
__device__ __forceinline__ void arrive_split(const DecodeArgs& args, const DecodePiece& piece,
                                             const Member& member, int tile_rows, uint32_t before,
                                             MergeNotes& notes) {
  named_barrier_sync(kAllConsumers, kConsumers);
  if (threadIdx.x != 0) return;
  int32_t* arrivals = args.plan.arrivals + (int64_t{piece.seq} * args.num_tiles + member.tile) * 2;
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
  const int number = notes.count++;
  if (number >= 2) __trap();  // no plan gives a part three split sequences
  const auto num_members = static_cast<uint32_t>(piece.split.num_splits * member.cluster);
  notes.shares[number] = {piece.seq,
                          piece.split.num_splits,
                          piece.split.first_slot,
                          member.tile,
                          member.first_row,
                          min(tile_rows, args.rows - member.first_row),
                          (piece.slot - piece.split.first_slot) * member.cluster + member.rank,
                          static_cast<int>(num_members),
                          (before / num_members + 1) * num_members};
}

// Merges the splits that arrive_split has noted. It is called by the consumers, after the last call of
// arrive_split.
template <typename Format, int kN>
__device__ __forceinline__ void merge_splits_noted(const DecodeArgs& args, int thread,
                                                   const MergeNotes& notes, MergeShared& shared) {
  named_barrier_sync(kAllConsumers, kConsumers);
  const int count = notes.count;
#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    const MergeShare share = notes.shares[number];
    constexpr int kChunks = kN * kKvLatentDim * 2 / 16;
    const int begin = kChunks * share.member / share.num_members;
    const int end = kChunks * (share.member + 1) / share.num_members;
    // If there are few chunks, groups of threads share their splits.
    int apart_log2 = 8;
    while (apart_log2 > 3 && 1 << (apart_log2 - 1) >= end - begin) --apart_log2;
    // The loop runs at least once, even without chunks, because merge_chunks also has the wait.
    int first = begin;
    do {
      merge_chunks<Format, kN>(args, share, first, end, apart_log2, thread, shared, first == begin);
      first += 1 << apart_log2;
    } while (first < end);
  }
}

}  // namespace hadal::cuda::swapped
