// Holds a row of logits in the shared memory of a cluster of eight blocks, with the reductions over it: the
// best token, the sum of weights, the lowest key that a truncation keeps, and the draw. Block r holds ids
// [r · 16 · chunk, …), its warp w has chunk w of them, and a lane has four ids at a time. All sums and
// searches are in ascending order of id and use integers only, so no result depends on the order in which
// blocks or warps arrive.
#pragma once

#include "kernels/cuda/sampling/cluster.cuh"
#include "kernels/cuda/sampling/values.cuh"

namespace hadal::cuda::sampling {

inline constexpr int kClusterBlocks = 8;
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kIdBits = 17;
inline constexpr int64_t kMaxVocab = int64_t{1} << kIdBits;
inline constexpr int kLaneStep = 128;  // ids of a warp at a time, four per lane
inline constexpr int kMaxSteps = static_cast<int>(kMaxVocab) / (kClusterBlocks * kWarps * kLaneStep);
inline constexpr int kBinBits = 10;
inline constexpr int kBins = 1 << kBinBits;
inline constexpr int kBlockBins = kBins / kClusterBlocks;
inline constexpr float kBinsPerLogit = 32.0F;  // in the first, linear histogram: 32 logits below the best
inline constexpr int kBinLowBits = 18;  // 2^14 weights of a block: their low and high parts fit 32 bits each
inline constexpr int kSumLowBits = 27;  // 2^17 weights of at most 2^44
inline constexpr int kMaxCandidates = 1024;  // keys of a block that every level of a truncation reads
inline constexpr uint64_t kNanKey = ~uint64_t{0};
inline constexpr uint64_t kLowestKey = uint64_t{kOrderedMasked} << kIdBits;  // key of −inf, whatever the id
inline constexpr uint64_t kLowestUnmasked = uint64_t{kOrderedMasked + 1} << kIdBits;
inline constexpr unsigned kAll = 0xffffffffU;
inline constexpr float kLog2e = 1.44269504088896341F;

// Splits a key into its two halves. The tokens with at least this key are those with x > logit and, among
// those with x == logit, the ids up to last_id. This test is cheaper than the comparison of keys.
struct Bound {
  float logit;
  int last_id;

  __device__ explicit Bound(uint64_t key)
      : logit(from_ordered(static_cast<uint32_t>(key >> kIdBits))),
        last_id(static_cast<int>(kMaxVocab - 1 - static_cast<int64_t>(key & (kMaxVocab - 1)))) {}
  __device__ bool keeps(float x, int id) const { return x > logit || (x == logit && id <= last_id); }
};

// Returns the ids per warp, a multiple of kLaneStep.
inline int chunk_of(int64_t vocab) {
  const int64_t warps = kClusterBlocks * kWarps;
  return static_cast<int>((vocab + warps * kLaneStep - 1) / (warps * kLaneStep) * kLaneStep);
}

struct RowShared {
  uint64_t warp_values[2][kWarps];
  uint64_t exchange[2][kClusterBlocks][3];
  uint64_t bin_mass[kBlockBins];
  uint64_t list[kMaxTopLogprobs];
  uint32_t bin_count[kBlockBins];
  uint32_t count[kBins], low[kBins], high[kBins];
  uint32_t list_size;
  uint32_t num_candidates;
  uint64_t candidates[kMaxCandidates];
  SlotSampling slot;
};
inline constexpr size_t kValuesOffset = (sizeof(RowShared) + 15) / 16 * 16;
inline size_t shared_bytes(int chunk) {
  return kValuesOffset + sizeof(float) * kWarps * chunk;
}

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}
__device__ __forceinline__ uint64_t warp_inclusive_scan(uint64_t value, int lane) {
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t before = __shfl_up_sync(kAll, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

struct Row {
  RowShared& shared;
  float* values;  // [kWarps · chunk] of this block
  int rank, warp, lane;
  int vocab;
  int chunk;
  int parity = 0;
  bool listed = false;  // shared.candidates holds all keys of the block that the truncation may keep

  __device__ Row(std::byte* memory, int64_t vocab_, int chunk_)
      : shared(*reinterpret_cast<RowShared*>(memory)),
        values(reinterpret_cast<float*>(memory + kValuesOffset)),
        rank(static_cast<int>(block_rank_in_cluster())),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        vocab(static_cast<int>(vocab_)),
        chunk(chunk_) {}

  // Returns the number of warps of the cluster that hold a part of the row.
  __device__ int num_warps() const { return (vocab + chunk - 1) / chunk; }
  __device__ int block_first() const { return rank * kWarps * chunk; }
  __device__ int warp_first() const { return (rank * kWarps + warp) * chunk; }

  // Calls visit(four, id) for every group of four tokens of the lane, in ascending order. The group's logits
  // are `four`, and its ids begin at `id`. Beyond the row's end logits are −inf.
  template <typename Visit>
  __device__ void for_each_four(Visit&& visit) const {
#pragma unroll 2
    for (int i = lane * 4; i < chunk && warp_first() + i < vocab; i += kLaneStep) {
      visit(*reinterpret_cast<const float4*>(values + warp * chunk + i), warp_first() + i);
    }
  }
  template <typename Visit>
  __device__ void for_each(Visit&& visit) const {
    for_each_four([&](const float4& four, int id) {
      visit(four.x, id);
      visit(four.y, id + 1);
      visit(four.z, id + 2);
      visit(four.w, id + 3);
    });
  }

  // Element [r] of the result is what block r published. The two halves of `exchange` are used in turn, so
  // that a block that runs ahead writes to the half that all blocks have already read.
  using Published = const uint64_t (*)[3];
  __device__ Published published() {
    cluster_sync();
    Published all = shared.exchange[parity];
    parity ^= 1;
    return all;
  }
  __device__ void publish(int word, int to, uint64_t value) {
    store_in_block(&shared.exchange[parity][rank][word], to, value);
  }

  // Returns the largest `value` of all threads of the cluster.
  __device__ uint64_t largest(uint64_t value) {
    put_block(0, value, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    return of_all(published(), 0, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }

  // Returns the sum of `value` over each block's threads, for all blocks.
  __device__ Published sums(uint64_t value) {
    put_block(0, value, [](uint64_t a, uint64_t b) { return a + b; });
    return published();
  }

  // Joins the values of a block's threads (0 is neutral) and publishes the result.
  template <typename Join>
  __device__ void put_block(int word, uint64_t value, Join&& join) {
    uint64_t* warps = shared.warp_values[parity];
    for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(kAll, value, step));
    if (lane == 0) warps[warp] = value;
    __syncthreads();
    if (warp != 0) return;
    value = lane < kWarps ? warps[lane] : 0;
    for (int step = kWarps / 2; step > 0; step /= 2) value = join(value, __shfl_xor_sync(kAll, value, step));
    if (lane < kClusterBlocks) publish(word, lane, value);
  }
  template <typename Join>
  __device__ static uint64_t of_all(Published all, int word, Join&& join) {
    uint64_t value = all[0][word];
#pragma unroll
    for (int r = 1; r < kClusterBlocks; ++r) value = join(value, all[r][word]);
    return value;
  }

  // Returns a sum of up to four weights as an integer in units of 2^−44.
  __device__ static uint64_t fixed_sum(float sum) {
    return joined<kSumLowBits>(fixed_weight<kSumLowBits>(sum));
  }

  // Holds sums of the row's weights in units of 2^−44: of all tokens, and of those at or above a logit.
  struct Mass {
    uint64_t all, above;
  };
  __device__ Mass total_weight(float best, float scale, float logit) {
    uint64_t all = 0;
    uint64_t above = 0;
    for_each_four([&](const float4& four, int) {
      const float w[4] = {weight_of(four.x, best, scale), weight_of(four.y, best, scale),
                          weight_of(four.z, best, scale), weight_of(four.w, best, scale)};
      all += fixed_sum(((w[0] + w[1]) + w[2]) + w[3]);
      if (fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)) < logit) return;
      above += fixed_sum((((four.x < logit ? 0.0F : w[0]) + (four.y < logit ? 0.0F : w[1])) +
                          (four.z < logit ? 0.0F : w[2])) +
                         (four.w < logit ? 0.0F : w[3]));
    });
    auto add = [](uint64_t a, uint64_t b) { return a + b; };
    put_block(1, above, add);
    __syncthreads();  // the warps' values have been read and may be written again
    const Published published = sums(all);
    return {of_all(published, 0, add), of_all(published, 1, add)};
  }
};

}  // namespace hadal::cuda::sampling
