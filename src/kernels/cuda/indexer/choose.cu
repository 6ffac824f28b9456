// Chooses the topk best of a row's scores.
//
// Grid: it has a cluster of 1 to 8 blocks of 512 threads per row. Each block has a slice of the row's
// positions, whose scores it reads four times: first from the L2, and then from shared memory, where each
// thread keeps the scores that it has read. The scores of a slice that is longer than this memory are read
// from the L2 again. The first three passes count digits (11, 11 and 10 bits of the sortable score) among the
// scores that share the border's higher digits; the fourth writes the chosen keys. After each count every
// block reads the histograms of all blocks and derives the border's next digit. Before the last pass every
// block reads how many better and equal scores the lower blocks have, which gives the place of its own
// output. Blocks of rows without a selection end at once. The next kernel may begin to wait as soon as the
// scores are complete.
//
// | barrier          | orders                                                                             |
// |------------------|------------------------------------------------------------------------------------|
// | cluster, 3 times | a histogram is complete in all blocks before any block reads it                    |
// | cluster          | `published` is written before other blocks read it                                 |
// | cluster, halves  | arrive after the last remote read, wait at the end: a block outlives its readers   |
#include <cuda_runtime.h>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/indexer/select.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = kIndexSelectThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kBinsEach = kScoreBins / kThreads;
constexpr int kTile = kIndexKeptTile;  // positions that the block reads at once
static_assert(kTile == 4 * kThreads);
constexpr unsigned kAll = 0xffffffffU;
static_assert(kBinsEach == 4, "a thread's bins are one load of 16 bytes");

struct Shared {
  alignas(16) uint32_t histograms[kScoreDigits][kScoreBins];
  alignas(16) uint32_t published[4];  // numbers of better and of equal scores in this block's slice
  uint32_t warp_sums[2][kWarps];
  uint32_t digit;
  uint32_t wanted;
};

static_assert(sizeof(Shared) <= kIndexChooseBytes);

__device__ __forceinline__ int thread() {
  return static_cast<int>(threadIdx.x);
}

// Holds the scores of a block's slice. Each thread keeps those of its own positions, so no barrier is needed.
struct Slice {
  const float* scores;  // of the row
  int64_t begin;
  int64_t end;   // of positions that have a score
  uint4* kept;   // shared memory
  int num_kept;  // positions from `begin` on, a multiple of kTile

  // Reads the scores of four positions from `position` on.
  template <bool kFirst>
  __device__ __forceinline__ uint4 read(int64_t position) const {
    const int64_t offset = position - begin;
    if (!kFirst && offset < num_kept) return kept[offset / 4];
    return *reinterpret_cast<const uint4*>(scores + position);
  }

  // Calls body(score bits) for each position. The scores of several tiles are read before the first is used.
  template <bool kFirst, typename Body>
  __device__ __forceinline__ void for_each(Body body) const {
    constexpr int kTilesAtOnce = 4;
    for (int64_t tile = begin + 4 * thread(); tile < end; tile += kTilesAtOnce * kTile) {
      uint4 four[kTilesAtOnce];
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        if (tile + i * kTile < end) four[i] = read<kFirst>(tile + i * kTile);
      }
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        const int64_t position = tile + i * kTile;
        if (kFirst && position < end && position - begin < num_kept) kept[(position - begin) / 4] = four[i];
        if (position < end) body(four[i].x);
        if (position + 1 < end) body(four[i].y);
        if (position + 2 < end) body(four[i].z);
        if (position + 3 < end) body(four[i].w);
      }
    }
  }
};

// Returns the sum over the threads before this one, and stores the sum over all threads in `all`. `sums` may
// be used again after one call with other `sums`, whose barrier shows that all threads have read these.
__device__ __forceinline__ uint32_t scan(uint32_t value, uint32_t* sums, uint32_t& all) {
  const int lane = thread() % 32, warp = thread() / 32;
  uint32_t sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAll, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  uint32_t of_warps = lane < kWarps ? sums[lane] : 0;
#pragma unroll
  for (int distance = 1; distance < kWarps; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAll, of_warps, distance);
    if (lane >= distance) of_warps += other;
  }
  all = __shfl_sync(kAll, of_warps, kWarps - 1);
  const uint32_t before = __shfl_sync(kAll, of_warps, warp == 0 ? 0 : warp - 1);
  return sum - value + (warp == 0 ? 0 : before);
}

template <bool kBits>
__global__ void __launch_bounds__(kThreads)
    index_choose_kernel(const IndexChooseArgs args, int cluster, int num_kept) {
  __shared__ Shared shared;
  extern __shared__ __align__(16) uint4 kept[];  // num_kept scores
  for (int i = thread(); i < kScoreDigits * kScoreBins; i += kThreads) (&shared.histograms[0][0])[i] = 0;
  pdl_wait();
  pdl_launch_dependents();
  const auto rank = static_cast<int>(cluster_rank());
  const int64_t row = blockIdx.x / cluster;
  const int32_t num_keys = args.kv_len[row];
  if (!selects_keys(num_keys, args.topk)) return;  // all blocks of the cluster return
  __syncthreads();                                 // the histograms are zeros

  const float* scores = args.scores + row * args.score_stride;
  const int64_t extent = kBits ? args.bits_stride * kPageSize : num_keys;
  const int64_t begin = slice_begin(extent, rank, cluster);
  const int64_t end = slice_begin(extent, rank + 1, cluster);
  const int64_t end_of_keys = min(end, int64_t{num_keys});
  const Slice slice{scores, begin, end_of_keys, kept, num_kept};

  uint32_t border = 0;
  uint32_t wanted = args.topk;  // keys still to choose among the scores that share the border's known digits
  uint32_t better = 0;          // this thread's part of the slice's scores above the border
  uint32_t parity = 0;
  for (int digit = 0; digit < kScoreDigits; ++digit) {
    uint32_t* histogram = shared.histograms[digit];
    const auto count = [&](uint32_t bits) {
      const uint32_t score = sortable_score(bits);
      if (above_digits_equal(score, border, digit)) atomicAdd(&histogram[score_digit(score, digit)], 1U);
    };
    if (digit == 0) {
      slice.for_each<true>(count);
    } else {
      slice.for_each<false>(count);
    }
    __syncwarp();  // lanes leave the loop at different times
    cluster_sync();
    uint32_t totals[kBinsEach] = {};
    for (int other = 0; other < cluster; ++other) {
      const float4 bins = load_remote(shared_address(histogram + kBinsEach * thread()), other);
      totals[0] += __float_as_uint(bins.x);
      totals[1] += __float_as_uint(bins.y);
      totals[2] += __float_as_uint(bins.z);
      totals[3] += __float_as_uint(bins.w);
    }
    uint32_t all = 0;
    const uint32_t own = totals[0] + totals[1] + totals[2] + totals[3];
    const uint32_t before = scan(own, shared.warp_sums[parity], all);
    parity ^= 1U;
    uint32_t above = all - before - own;  // scores in bins above this thread's
#pragma unroll
    for (int i = kBinsEach - 1; i >= 0; --i) {
      if (above < wanted && above + totals[i] >= wanted) {
        shared.digit = kBinsEach * thread() + i;
        shared.wanted = wanted - above;
      }
      above += totals[i];
    }
    __syncthreads();
    const uint32_t found = shared.digit;
    wanted = shared.wanted;
    border |= found << digit_shift(digit);
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) {
      if (static_cast<uint32_t>(kBinsEach * thread() + i) > found)
        better += histogram[kBinsEach * thread() + i];
    }
  }
  uint32_t all_better = 0;
  scan(better, shared.warp_sums[parity], all_better);
  parity ^= 1U;
  if (thread() == 0) {
    shared.published[0] = all_better;
    shared.published[1] = shared.histograms[kScoreDigits - 1][score_digit(border, kScoreDigits - 1)];
  }
  cluster_sync();
  uint32_t better_before = 0, equal_before = 0;
  for (int other = 0; other < rank; ++other) {
    const float4 counts = load_remote(shared_address(shared.published), other);
    better_before += __float_as_uint(counts.x);
    equal_before += __float_as_uint(counts.y);
  }
  cluster_arrive();

  const int32_t* table = args.page_table + args.seq_idx[row] * args.page_table_stride;
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t position = tile + 4 * thread();
    uint32_t chosen = 0, equal = 0;  // bit i belongs to position + i
    if (position < end_of_keys) {
      const uint4 four = slice.read<false>(position);
      const uint32_t bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t score = sortable_score(bits[i]);
        const bool exists = position + i < end_of_keys;
        chosen |= static_cast<uint32_t>(exists && score > border) << i;
        equal |= static_cast<uint32_t>(exists && score == border) << i;
      }
    }
    // A tile has at most 2,048 chosen and 2,048 equal scores, so both counts fit into one word.
    uint32_t all = 0;
    const uint32_t before = scan(__popc(chosen) | __popc(equal) << 16, shared.warp_sums[parity], all);
    parity ^= 1U;
    uint32_t equal_rank = equal_before + (before >> 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((equal >> i & 1U) != 0) chosen |= static_cast<uint32_t>(equal_rank++ < wanted) << i;
    }
    if constexpr (kBits) {
      // Eight lanes have the 32 bits of half a word.
      const int lane = thread() % 32;
      uint32_t word = chosen << (lane % 8 * 4);
#pragma unroll
      for (int distance = 1; distance < 8; distance *= 2) word |= __shfl_xor_sync(kAll, word, distance);
      if (lane % 8 == 0 && position < end)
        reinterpret_cast<uint32_t*>(args.bits + row * args.bits_stride)[position / 32] = word;
    } else {
      uint32_t at = better_before + (before & 0xffffU) + min(equal_before + (before >> 16), wanted);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((chosen >> i & 1U) == 0) continue;
        args.slots[row * args.topk + at++] =
            table[(position + i) / kPageSize] * kPageSize + static_cast<int32_t>((position + i) % kPageSize);
      }
      better_before += all & 0xffffU;
    }
    equal_before += all >> 16;
  }
  if (!kBits && rank == 0 && thread() == 0) args.counts[row] = args.topk;
  __syncwarp();
  cluster_wait();
}

}  // namespace

void index_choose(const IndexChooseArgs& args, int cluster, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(args.num_rows * cluster));
  const int num_kept = index_kept_scores(args.score_stride, args.num_rows, cluster, launch.num_sms);
  const auto run = [&]<bool kBits>() {
    constexpr auto kKernel = index_choose_kernel<kBits>;
    const size_t bytes = static_cast<size_t>(num_kept) * sizeof(float);
    allow_shared_memory<kKernel>(bytes);  // with the static memory, also fewer bytes may exceed the default
    launch_clusters<kKernel>(launch, cluster, grid, dim3(kThreads), bytes, args, cluster, num_kept);
  };
  if (args.bits != nullptr) return run.template operator()<true>();
  run.template operator()<false>();
}

}  // namespace hadal::cuda
