// Routes any number of tokens in one kernel. The result is deterministic, because it does not depend on the
// order of the atomics.
//
// Grid: at most kMaxRouteBlocks blocks and at most one per multiprocessor. All blocks must be resident,
// because they wait for each other once. A block has a run of tokens, which its 32 warps process in turn.
// 1. Each warp gates its tokens and chooses their experts. Bit masks in shared memory say for each expert
//    which tokens of the run chose it; the block writes their counts to scratch: [block, experts rounded up
//    to even] of 16 bits.
// 2. All blocks wait for each other (`arrived`, which the last block to leave sets back to 0).
// 3. Every block adds up all counts, and the counts of the blocks before it, with two experts per thread. The
//    prefix sums over experts are the offsets. The row of a pair is its expert's offset + the expert's counts
//    in the blocks before + the pair's rank in the run, which the masks give. Block 0 stores the offsets.
// Shared memory holds the scores of one token per warp (at most 64 KB), masks (a word per expert and 32
// tokens), sums, offsets.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/experts/route/gate.cuh"
#include "kernels/cuda/experts/route/kernels.h"
#include "kernels/cuda/experts/route/sort.cuh"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 1024;

struct Run {
  uint32_t* counts;  // [blocks, columns], two experts per word
  int tokens;        // tokens of a block; the last block has fewer
  int columns;
  int words;  // words of an expert's mask
};

// Synchronises the grid: afterwards the earlier writes of each block are visible to all blocks. All threads
// of a block call it. *arrived is 0 before the first block arrives and again after the last block has left.
__device__ __forceinline__ void synchronise_grid(int32_t* arrived) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto blocks = static_cast<int>(gridDim.x);
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(arrived) : "memory");
    const SpinDeadline deadline;
    for (int count = 0; count < blocks;) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
      if (deadline.has_passed()) __trap();
    }
    if (atomicAdd(arrived, 1) == 2 * blocks - 1) *arrived = 0;
  }
  __syncthreads();
}

template <int kValues>
__global__ void __launch_bounds__(kThreads) route_large_kernel(const RouteParams p, const Run run) {
  extern __shared__ float4 shared[];
  __shared__ int totals[kMaxSortedExperts], before[kMaxSortedExperts];
  __shared__ int offsets[kMaxSortedExperts + 1];
  __shared__ int distinct;
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  float* scores = reinterpret_cast<float*>(shared) + warp * 32 * kValues;      // [32 · kValues]
  uint32_t* masks = reinterpret_cast<uint32_t*>(shared) + kThreads * kValues;  // [2 · columns, words]
  const int num_slots = p.top_k + p.num_shared;
  const int experts = p.num_experts + p.num_shared;
  const int64_t first_token = int64_t{blockIdx.x} * run.tokens;
  const int tokens = static_cast<int>(min(int64_t{run.tokens}, p.m - first_token));

  pdl_launch_dependents();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * run.columns * run.words; i += kThreads) masks[i] = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) totals[e] = before[e] = 0;
  float bias[kValues] = {};
  if (p.kind == GateKind::kSigmoidNoAuxTc && p.bias != nullptr)
    load_lane_values(p.bias, p.num_experts, 0.0F, bias);
  pdl_wait();
  __syncthreads();
  const int64_t valid = p.valid != nullptr ? *p.valid : p.m;
  for (int i = warp; i < tokens; i += kThreads / 32) {
    const int64_t token = first_token + i;
    const float* logits = p.logits + (token < valid ? token : 0) * p.num_experts;
    const int id = with_shared(p, select_experts(p, logits, bias, scores));
    store_choice(p, token, id, weigh_experts(p, scores, id));
    if (lane < num_slots) atomicOr(&masks[id * run.words + i / 32], 1U << (i % 32));
  }
  __syncthreads();

  const auto count = [&](int e) {
    int n = 0;
    for (int w = 0; w < run.words; ++w) n += __popc(masks[e * run.words + w]);
    return static_cast<uint32_t>(n);
  };
  uint32_t* mine = run.counts + int64_t{blockIdx.x} * run.columns;
  for (int column = static_cast<int>(threadIdx.x); column < run.columns; column += kThreads) {
    mine[column] = count(2 * column) | count(2 * column + 1) << 16;
  }
  synchronise_grid(p.arrived);

  const int groups = kThreads / run.columns;  // at least one, because there are at most 272 columns
  const int group = static_cast<int>(threadIdx.x) / run.columns;
  const int column = static_cast<int>(threadIdx.x) % run.columns;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto self = static_cast<int>(blockIdx.x);
  if (group < groups) {
    int sum[2] = {};
    int ahead[2] = {};
    constexpr int kAtOnce = 8;
    for (int first = group; first < blocks; first += kAtOnce * groups) {
      uint32_t pairs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int b = first + i * groups;
        pairs[i] = b < blocks ? __ldcg(run.counts + int64_t{b} * run.columns + column) : 0;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const auto low = static_cast<int>(pairs[i] & 0xffffU);
        const auto high = static_cast<int>(pairs[i] >> 16);
        const bool is_before = first + i * groups < self;
        sum[0] += low;
        sum[1] += high;
        ahead[0] += is_before ? low : 0;
        ahead[1] += is_before ? high : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = 2 * column + i;
      if (e >= experts) continue;
      atomicAdd(&totals[e], sum[i]);
      atomicAdd(&before[e], ahead[i]);
    }
  }
  __syncthreads();
  scan_experts(
      p, [&](int e) { return totals[e]; }, offsets, &distinct);
  if (blockIdx.x == 0) store_offsets(p, experts, offsets, distinct);

  const int pairs = tokens * num_slots;
  const int32_t* ids = p.topk_ids + first_token * num_slots;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    const int id = ids[i];
    if (!is_held(p, id)) {
      p.row_of[first_token * num_slots + i] = -1;
      continue;
    }
    const int token = i / num_slots;
    const uint32_t* mask = masks + id * run.words;
    int row = offsets[id] + before[id] + __popc(mask[token / 32] & ((1U << (token % 32)) - 1));
    for (int w = 0; w < token / 32; ++w) row += __popc(mask[w]);
    p.row_of[first_token * num_slots + i] = row;
    p.token_of[row] = static_cast<int32_t>(first_token) + token;
  }
}

template <int kValues>
void launch_large(const RouteParams& p, const Run& run, const Launch& launch) {
  const size_t bytes =
      (static_cast<size_t>(kThreads) * kValues + size_t{2} * run.columns * run.words) * sizeof(uint32_t);
  allow_shared_memory<route_large_kernel<kValues>>(bytes);  // below 48 KB, too: static arrays add to it
  launch_kernel<route_large_kernel<kValues>>(
      launch, static_cast<unsigned>((p.m + run.tokens - 1) / run.tokens), kThreads, bytes, p, run);
}

}  // namespace

void route_large(const RouteParams& p, const Launch& launch) {
  HADAL_CHECK(p.arrived != nullptr,
              "the kernel for {} tokens needs `arrived`, because its blocks wait for each other", p.m);
  const int64_t tokens = route_run(p.m, launch.num_sms);
  const Run run{.counts = static_cast<uint32_t*>(p.scratch),
                .tokens = static_cast<int>(tokens),
                .columns = (p.num_experts + p.num_shared + 1) / 2,
                .words = static_cast<int>((tokens + 31) / 32)};
  dispatch_lane_values(p.num_experts, [&]<int kValues>() { launch_large<kValues>(p, run, launch); });
}

}  // namespace hadal::cuda
