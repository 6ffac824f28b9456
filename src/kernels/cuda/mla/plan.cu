// The split-KV plan: one block reads the lengths and cuts their pages into num_parts shares of equal cost.
//
// A part is `cluster` blocks that share its pages, so lengths are counted in strides of so many pages, and a
// split begins at a whole stride. Cost of a sequence: its strides plus what it costs beside them. Three ways
// to cut:
// - Balanced: the costs are laid end to end; part p begins at cost p · share. A border inside of what a
//   sequence costs beside its pages is its first page, so no empty split is made.
// - Even: every sequence in splits of one length, with num_parts / num_seqs parts for itself, of which it may
//   leave some without work. A batch of one short sequence is not split at all.
// - Whole: with more sequences than parts, each part has equally many whole ones.
// The one whose longest part ends first is taken, joining splits included; times are the geometry's. With
// split_pages > 0 the costs are laid end to end, and borders move up to the next multiple of the sequence's
// split length, which depends on its own length alone.
//
// Lengths, running costs and slots stay in shared memory; the plan is written once.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/mla/decode.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kStrideCost = 16;  // the unit of cost is a sixteenth of a stride's time

// Exclusive prefix sums of two counts over the block, and their totals.
__device__ int2 block_scan(int2 value, int2* warp_sums, int2& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int2 sum = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int x = __shfl_up_sync(0xffffffffU, sum.x, distance);
    const int y = __shfl_up_sync(0xffffffffU, sum.y, distance);
    if (lane >= distance) sum = {sum.x + x, sum.y + y};
  }
  __syncthreads();
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  int2 before = {0, 0};
  total = {0, 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = total;
    total = {total.x + warp_sums[w].x, total.y + warp_sums[w].y};
  }
  return {before.x + sum.x - value.x, before.y + sum.y - value.y};
}

struct PlanArgs {
  DecodePlanView plan;
  const int32_t* kv_len;
  int num_seqs;
  int num_parts;
  int num_tiles;
  int cluster;
  int pages_at_once;
  int split_pages;
  int overhead;  // of a sequence, in units of cost
  int page_ns;
  int lone_page_ns;
  int merge_ns;
  int split_ns;
};

// In shared memory, [num_seqs] each.
struct Sequences {
  int* num_keys;
  int* cost_begin;
  int* first_slot;
};

// The smallest, or the largest, of a value over the block.
template <bool kLargest>
__device__ unsigned block_extreme(unsigned value, unsigned* warp_values) {
  value = kLargest ? __reduce_max_sync(0xffffffffU, value) : __reduce_min_sync(0xffffffffU, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = value;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) value = kLargest ? max(value, warp_values[w]) : min(value, warp_values[w]);
  return value;
}

__device__ __forceinline__ int pages_of(int num_keys) {
  return (num_keys + kPageSize - 1) / kPageSize;
}
__device__ __forceinline__ int strides_of(const PlanArgs& p, int num_keys) {
  return (pages_of(num_keys) + p.cluster - 1) / p.cluster;
}

__device__ int fixed_split_length(const PlanArgs& p, int pages) {
  int length = p.split_pages;
  while (pages > length * kDecodeMaxFixedSplits) length *= 2;
  return length;
}

// Of a sequence cut into splits of so many strides, while `parts` parts are at work.
__device__ float even_time(const PlanArgs& p, int split_strides, int num_splits, int parts) {
  const int once = p.pages_at_once;
  const int rounded = split_strides == 1 ? 1 : (split_strides + once - 1) / once * once;
  const float share_of_all = __fdividef(static_cast<float>(parts), static_cast<float>(p.num_parts));
  const float page = fmaxf(static_cast<float>(p.lone_page_ns), static_cast<float>(p.page_ns) * share_of_all);
  const float merge = num_splits > 1 ? static_cast<float>(p.merge_ns + num_splits * p.split_ns) : 0.0F;
  return static_cast<float>(rounded) * page + merge;
}

// Where the part that begins at cost `cost` begins.
__device__ int2 border(const PlanArgs& p, const Sequences& seqs, int cost, int total) {
  if (cost >= total) return {p.num_seqs, 0};
  int low = 0;  // the last sequence that begins at or before `cost`
  int high = p.num_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (seqs.cost_begin[middle] <= cost) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  int page = max(0, cost - seqs.cost_begin[low] - p.overhead) / kStrideCost * p.cluster;
  if (p.split_pages > 0) {
    const int pages = pages_of(seqs.num_keys[low]);
    const int length = fixed_split_length(p, pages);
    page = (page + length - 1) / length * length;
    if (page >= pages && page > 0) return {low + 1, 0};
  }
  return {low, page};
}

// How the batch is cut. Of even_strides and seqs_each at most one is above 0; neither: balanced, or fixed.
struct Cut {
  int share;         // cost of a part
  int parts_each;    // num_parts / num_seqs
  int even_strides;  // every sequence in splits of so many strides
  int seqs_each;     // every part has so many whole sequences
};

__device__ Cut choose_cut(const PlanArgs& p, int total_cost, int most_strides, unsigned* warp_values) {
  Cut cut{max((total_cost + p.num_parts - 1) / p.num_parts, kStrideCost), p.num_parts / p.num_seqs, 0, 0};
  if (p.split_pages > 0) return cut;
  const auto ns_of_cost = [&](int cost) {
    return static_cast<float>(cost) * (1.0F / kStrideCost) * static_cast<float>(p.page_ns);
  };
  const int longest = most_strides * kStrideCost + p.overhead;
  const int most_splits = 1 + (longest + cut.share - 1) / cut.share;
  // Each of its pieces costs what a sequence does besides its pages.
  const float balanced =
      ns_of_cost(cut.share + p.overhead) + static_cast<float>(p.merge_ns + most_splits * p.split_ns);
  if (cut.parts_each == 0) {
    const int seqs = (p.num_seqs + p.num_parts - 1) / p.num_parts;
    if (static_cast<float>(seqs) * ns_of_cost(longest) <= balanced) cut.seqs_each = seqs;
    return cut;
  }
  // Thread t tries t + 1 splits a sequence (and so on); the low bits of what is compared name the number.
  unsigned best = 0xffffffffU;
  for (int wanted = static_cast<int>(threadIdx.x) + 1; wanted <= cut.parts_each; wanted += kThreads) {
    const int strides = max((most_strides + wanted - 1) / wanted, 1);
    const int splits = max((most_strides + strides - 1) / strides, 1);
    const float time = even_time(p, strides, splits, splits * p.num_seqs) + ns_of_cost(p.overhead);
    const auto tens = static_cast<unsigned>(fminf(time * 0.1F, 4.0e6F));
    best = min(best, tens << 10 | static_cast<unsigned>(min(wanted, 1023)));
  }
  best = block_extreme<false>(best, warp_values);
  if (static_cast<float>(best >> 10) * 10.0F <= balanced) {
    const int wanted = static_cast<int>(best & 1023U);
    cut.even_strides = max((most_strides + wanted - 1) / wanted, 1);
  }
  return cut;
}

__global__ void __launch_bounds__(kThreads) mla_plan_kernel(PlanArgs p) {
  extern __shared__ int arrays[];
  __shared__ int2 warp_sums[kWarps];
  __shared__ unsigned warp_values[kWarps];
  const Sequences seqs{arrays, arrays + p.num_seqs, arrays + 2 * p.num_seqs};
  pdl_wait();
  pdl_launch_dependents();
  const int t = static_cast<int>(threadIdx.x);
  const int each = (p.num_seqs + kThreads - 1) / kThreads;  // consecutive sequences of a thread
  const int begin = min(t * each, p.num_seqs);
  const int end = min(begin + each, p.num_seqs);

  for (int s = t; s < p.num_seqs; s += kThreads) seqs.num_keys[s] = max(p.kv_len[s], 0);
  for (int i = t; i < 2 * p.num_tiles * p.num_seqs; i += kThreads) p.plan.meetings[i] = 0;
  __syncthreads();
  int cost = 0;
  int most_strides = 0;
  for (int s = begin; s < end; ++s) {
    const int strides = strides_of(p, seqs.num_keys[s]);
    cost += strides * kStrideCost + p.overhead;
    most_strides = max(most_strides, strides);
  }
  most_strides = static_cast<int>(block_extreme<true>(static_cast<unsigned>(most_strides), warp_values));
  int2 total;
  int running = block_scan({cost, 0}, warp_sums, total).x;
  for (int s = begin; s < end; ++s) {
    seqs.cost_begin[s] = running;
    running += strides_of(p, seqs.num_keys[s]) * kStrideCost + p.overhead;
  }
  const int total_cost = total.x;
  const Cut cut = choose_cut(p, total_cost, most_strides, warp_values);

  const auto split_of = [&](int s) {
    const int pages = pages_of(seqs.num_keys[s]);
    DecodeSequence sequence{1, 0, 0, 0};
    if (p.split_pages > 0 || cut.even_strides > 0) {
      sequence.split_pages =
          cut.even_strides > 0 ? cut.even_strides * p.cluster : fixed_split_length(p, pages);
      sequence.num_splits = max(1, (pages + sequence.split_pages - 1) / sequence.split_pages);
    } else if (pages > 0 && cut.seqs_each == 0) {
      const int first_cost = seqs.cost_begin[s] + p.overhead;
      const int last_cost = first_cost + strides_of(p, seqs.num_keys[s]) * kStrideCost - 1;
      // The last border on its first page.
      sequence.first_part = (first_cost + kStrideCost - 1) / cut.share;
      sequence.num_splits = last_cost / cut.share - sequence.first_part + 1;
    }
    return sequence;
  };
  int2 counts = {0, 0};  // slots, split sequences
  for (int s = begin; s < end; ++s) {
    const int splits = split_of(s).num_splits;
    if (splits > 1) counts = {counts.x + splits, counts.y + 1};
  }
  int2 before = block_scan(counts, warp_sums, total);
  for (int s = begin; s < end; ++s) {
    DecodeSequence sequence = split_of(s);
    if (sequence.num_splits > 1) {
      sequence.first_slot = before.x;
      p.plan.merges[before.y] = {s, sequence.num_splits, before.x};
      before = {before.x + sequence.num_splits, before.y + 1};
    }
    seqs.first_slot[s] = sequence.first_slot;
    p.plan.sequences[s] = sequence;
  }
  if (t == 0) *p.plan.num_merges = total.y;
  __syncthreads();

  for (int part = t; part < p.num_parts; part += kThreads) {
    int2 borders[2];
    for (int side = 0; side < 2; ++side) {
      const int number = part + side;
      int2& here = borders[side];
      if (cut.seqs_each > 0) {
        here = {min(number * cut.seqs_each, p.num_seqs), 0};
      } else if (cut.even_strides > 0) {
        const int seq = number / cut.parts_each;
        const int page = number % cut.parts_each * cut.even_strides * p.cluster;
        here = {seq, page};
        if (seq >= p.num_seqs) {
          here = {p.num_seqs, 0};
        } else if (page > 0 && page >= pages_of(seqs.num_keys[seq])) {
          here = {seq + 1, 0};
        }
      } else {
        here = border(p, seqs, min(number, total_cost) * cut.share, total_cost);
      }
    }
    DecodePart whole{borders[0].x, borders[0].y, borders[1].x, borders[1].y, {1, 0, 0, 0}, 0};
    if (whole.begin_seq < p.num_seqs) {
      whole.split = split_of(whole.begin_seq);
      whole.split.first_slot = seqs.first_slot[whole.begin_seq];
      whole.num_keys = seqs.num_keys[whole.begin_seq];
    }
    p.plan.parts[part] = whole;
  }
}

}  // namespace

void mla_decode_plan(const DecodeGeometry& g, const int32_t* kv_len, void* plan, const Launch& launch) {
  if (g.num_seqs == 0) return;
  const PlanArgs args{.plan = decode_plan_view(g, plan),
                      .kv_len = kv_len,
                      .num_seqs = static_cast<int>(g.num_seqs),
                      .num_parts = g.num_parts,
                      .num_tiles = g.num_tiles,
                      .cluster = g.cluster,
                      .pages_at_once = g.pages_at_once,
                      .split_pages = g.split_pages,
                      .overhead = std::max(1, g.sequence_ns * kStrideCost / g.page_ns),
                      .page_ns = g.page_ns,
                      .lone_page_ns = g.lone_page_ns,
                      .merge_ns = g.merge_ns,
                      .split_ns = g.split_ns};
  const size_t shared_bytes = static_cast<size_t>(g.num_seqs) * 3 * sizeof(int);
  // Beside static shared memory, which counts against the 48 KB that every kernel may have.
  if (shared_bytes > 40 * 1024) allow_shared_memory<mla_plan_kernel>(shared_bytes);
  launch_kernel<mla_plan_kernel>(launch, dim3(1), dim3(kThreads), shared_bytes, args);
}

}  // namespace hadal::cuda
