// Makes the split-KV plan: one block reads the lengths and cuts their pages into num_parts shares of equal
// cost.
//
// The `cluster` blocks of a part share its pages, so lengths are counted in strides of `cluster` pages, and
// splits begin at whole strides, balanced ones at whole steps. A step is one stride, or two strides if blocks
// work on two pages at once. A sequence costs its steps plus an overhead. There are three ways to cut:
// - Balanced: the costs are laid end to end; part p begins at cost p · share. A border that falls into the
//   overhead of a sequence moves to its first page, so no split is empty.
// - Even: every sequence is cut into splits of one length and has num_parts / num_seqs parts for itself, some
//   of which may get no pages. A single short sequence is not split.
// - Whole: with more sequences than parts, each part has the same number of whole sequences.
//
// The plan uses the way whose longest part is predicted to end first, including the time for joining splits;
// the geometry holds the times. With split_pages > 0 the costs are laid end to end, and borders move up to
// the next multiple of the sequence's split length, which depends on its own length alone.
//
// With balanced cuts a part ends at most one split sequence and begins at most one more. So a sequence's
// slots begin at 2 · first part, and only costs are summed over the batch. The kernel's time is one block's
// chain of dependent instructions: reading lengths, one scan, one comparison of ways to cut, and one search
// per part. To shorten it, divisions are done by multiplication, and the list for the merge kernel is made
// only if that kernel follows.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/mla/decode/decode.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStepCost = 16;  // cost of a step; the unit of cost is a sixteenth of a step's time

// Divides numbers below 2^31 by a divisor that is known on the host.
struct Divisor {
  int value = 1;
  uint32_t factor = 0;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(int divisor) : value(divisor) {
    shift = std::bit_width(static_cast<uint32_t>(divisor - 1));
    factor = static_cast<uint32_t>((uint64_t{1} << (31 + shift)) / static_cast<uint32_t>(divisor) + 1);
    shift -= 1;
  }
  __device__ __forceinline__ int quotient(int a) const {
    const uint32_t high = __umulhi(static_cast<uint32_t>(a), factor);
    return static_cast<int>(shift < 0 ? high << 1 | (static_cast<uint32_t>(a) * factor) >> 31
                                      : high >> shift);
  }
};

// Returns a / b for 0 ≤ a < 2^31 and quotients below 2^20.
__device__ __forceinline__ int quotient(int a, int b, float inverse_of_b) {
  const int q = __float2int_rd(__int2float_rn(a) * inverse_of_b);
  const int rest = a - q * b;
  return rest < 0 ? q - 1 : rest >= b ? q + 1 : q;
}
__device__ __forceinline__ int quotient_up(int a, int b) {
  return quotient(a + b - 1, b, __fdividef(1.0F, __int2float_rn(b)));
}

struct PlanArgs {
  DecodePlanView plan;
  const int32_t* kv_len;
  int index_topk;
  int num_seqs;
  Divisor num_parts;
  Divisor parts_each;  // num_parts / num_seqs; at least 1
  int seqs_each;       // num_seqs / num_parts, rounded up
  int num_arrivals;
  int cluster_log2;
  int once_log2;  // log2 of the number of pages on which a block works at once
  int split_pages;
  int overhead;      // cost of a sequence besides its pages, in units of cost
  bool list_merges;  // for the merge kernel
  float page_ns;
  float lone_page_ns;
  float merge_ns;
  float split_ns;
};

// Points to the batch's arrays in shared memory.
struct Batch {
  int* num_keys;    // [num_seqs]
  int* cost_begin;  // [num_seqs]
  int2* borders;    // [num_parts + 1]: where parts begin, (sequence, page)
};

__device__ __forceinline__ int pages_of(int num_keys) {
  return (num_keys + kPageSize - 1) / kPageSize;
}
// Returns pages in units of 2^log2, rounded up.
__device__ __forceinline__ int rounded_up(int pages, int log2) {
  return (pages + (1 << log2) - 1) >> log2;
}
__device__ __forceinline__ int cost_of(const PlanArgs& p, int num_keys) {
  return rounded_up(pages_of(num_keys), p.cluster_log2 + p.once_log2) * kStepCost + p.overhead;
}

__device__ int fixed_split_length(const PlanArgs& p, int pages) {
  int length = p.split_pages;
  while (pages > length * kDecodeMaxFixedSplits) length *= 2;
  return length;
}

// Returns the inclusive sum over the warp, in order of threads.
__device__ __forceinline__ int warp_scan(int value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

// Returns the time of a sequence that is cut into splits of `split_strides` strides, while `parts` parts are
// active.
__device__ float even_time(const PlanArgs& p, int split_strides, int num_splits, int parts) {
  const int rounded = split_strides == 1 ? 1 : rounded_up(split_strides, p.once_log2) << p.once_log2;
  const float share_of_all = __fdividef(static_cast<float>(parts), static_cast<float>(p.num_parts.value));
  const float page = fmaxf(p.lone_page_ns, p.page_ns * share_of_all);
  const float merge = num_splits > 1 ? p.merge_ns + static_cast<float>(num_splits) * p.split_ns : 0.0F;
  return static_cast<float>(rounded) * page + merge;
}

// Describes how the batch is cut. At most one of even_strides and seqs_each is above 0; if both are 0, the
// cut is balanced or has fixed splits.
struct Cut {
  int share;  // cost of a part
  float inverse_share;
  int even_strides;  // every sequence in splits of this many strides
  int even_pages;    // the same in pages
  float inverse_even_pages;
  int seqs_each;  // every part has this many whole sequences
};

__device__ Cut choose_cut(const PlanArgs& p, int total_cost, int most_pages, unsigned* warp_values) {
  Cut cut{};
  cut.share = max(p.num_parts.quotient(total_cost + p.num_parts.value - 1), kStepCost);
  cut.inverse_share = __fdividef(1.0F, static_cast<float>(cut.share));
  if (p.split_pages > 0) return cut;
  const auto ns_of_cost = [&](int cost) {
    return static_cast<float>(cost) * (1.0F / kStepCost) * p.page_ns * static_cast<float>(1 << p.once_log2);
  };
  const int longest = rounded_up(most_pages, p.cluster_log2 + p.once_log2) * kStepCost + p.overhead;
  const int most_splits = 1 + quotient(longest + cut.share - 1, cut.share, cut.inverse_share);
  // A part may begin inside a sequence, and then has the overhead of that sequence in addition to its share.
  const float balanced =
      ns_of_cost(cut.share + p.overhead) + p.merge_ns + static_cast<float>(most_splits) * p.split_ns;
  if (p.num_seqs > p.num_parts.value) {
    if (static_cast<float>(p.seqs_each) * ns_of_cost(longest) <= balanced) cut.seqs_each = p.seqs_each;
    return cut;
  }
  // Thread t tries t + 1, t + 1 + kThreads, … splits per sequence. The low ten bits of the compared value
  // hold the number of splits.
  const int most_strides = rounded_up(most_pages, p.cluster_log2);
  unsigned best = 0xffffffffU;
  for (int wanted = static_cast<int>(threadIdx.x) + 1; wanted <= p.parts_each.value; wanted += kThreads) {
    const int strides = max(quotient_up(most_strides, wanted), 1);
    const int splits = max(quotient_up(most_strides, strides), 1);
    const float time = even_time(p, strides, splits, splits * p.num_seqs) + ns_of_cost(p.overhead);
    const auto tens = static_cast<unsigned>(fminf(time * 0.1F, 4.0e6F));
    best = min(best, tens << 10 | static_cast<unsigned>(min(wanted, 1023)));
  }
  best = __reduce_min_sync(0xffffffffU, best);
  if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = best;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) best = min(best, warp_values[w]);
  if (static_cast<float>(best >> 10) * 10.0F <= balanced) {
    cut.even_strides = max(quotient_up(most_strides, static_cast<int>(best & 1023U)), 1);
    cut.even_pages = cut.even_strides << p.cluster_log2;
    cut.inverse_even_pages = __fdividef(1.0F, static_cast<float>(cut.even_pages));
  }
  return cut;
}

__device__ DecodeSequence split_of(const PlanArgs& p, const Batch& batch, const Cut& cut, int s) {
  const int pages = pages_of(batch.num_keys[s]);
  if (cut.seqs_each > 0 || pages == 0) return {1, 0, cut.even_pages, 0};
  if (cut.even_strides > 0) {
    const int splits = quotient(pages + cut.even_pages - 1, cut.even_pages, cut.inverse_even_pages);
    return {splits, s * p.parts_each.value, cut.even_pages, 0};
  }
  if (p.split_pages > 0) {
    const int length = fixed_split_length(p, pages);
    return {(pages + length - 1) / length, s * kDecodeMaxFixedSplits, length, 0};
  }
  const int first_cost = batch.cost_begin[s] + p.overhead;
  const int last_cost = batch.cost_begin[s] + cost_of(p, batch.num_keys[s]) - 1;
  // The first part is the last part that begins at or before the sequence's first step.
  const int first_part = quotient(first_cost + kStepCost - 1, cut.share, cut.inverse_share);
  const int last_part = quotient(last_cost, cut.share, cut.inverse_share);
  return {last_part - first_part + 1, 2 * first_part, 0, first_part};
}

// Returns the border (sequence, page) at which part `part` begins. For part num_parts, and for parts without
// pages at the end, it is the end of all pages.
__device__ int2 border(const PlanArgs& p, const Batch& batch, const Cut& cut, int total_cost, int part) {
  const int2 end = {p.num_seqs, 0};
  if (cut.seqs_each > 0) return {min(part * cut.seqs_each, p.num_seqs), 0};
  if (cut.even_strides > 0) {
    const int seq = p.parts_each.quotient(part);
    if (seq >= p.num_seqs) return end;
    const int page = (part - seq * p.parts_each.value) * cut.even_pages;
    return page > 0 && page >= pages_of(batch.num_keys[seq]) ? int2{seq + 1, 0} : int2{seq, page};
  }
  const int cost = min(part, total_cost) * cut.share;
  if (cost >= total_cost) return end;
  int low = 0;  // the last sequence that begins at or before `cost`
  int high = p.num_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (batch.cost_begin[middle] <= cost) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int step = max(0, cost - batch.cost_begin[low] - p.overhead) / kStepCost;
  int page = step << (p.cluster_log2 + p.once_log2);
  if (p.split_pages > 0) {
    const int pages = pages_of(batch.num_keys[low]);
    const int length = fixed_split_length(p, pages);
    page = (page + length - 1) / length * length;
    if (page >= pages && page > 0) return {low + 1, 0};
  }
  return {low, page};
}

__global__ void __launch_bounds__(kThreads) mla_plan_kernel(const __grid_constant__ PlanArgs p) {
  extern __shared__ __align__(8) int arrays[];
  __shared__ int2 warp_sums[kWarps];
  __shared__ unsigned warp_values[kWarps];
  const int num_parts = p.num_parts.value;
  auto* borders = reinterpret_cast<int2*>(arrays);
  const Batch batch{arrays + 2 * (num_parts + 1), arrays + 2 * (num_parts + 1) + p.num_seqs, borders};
  pdl_wait();
  pdl_launch_dependents();
  const int t = static_cast<int>(threadIdx.x);
  const int each = (p.num_seqs + kThreads - 1) / kThreads;  // consecutive sequences of a thread
  const int begin = min(t * each, p.num_seqs);
  const int end = min(begin + each, p.num_seqs);

#pragma unroll 4
  for (int s = t; s < p.num_seqs; s += kThreads) batch.num_keys[s] = planned_keys(p.kv_len[s], p.index_topk);
  for (int i = t; i < p.num_arrivals; i += kThreads) p.plan.arrivals[i] = 0;
  if (each > 1) __syncthreads();  // not needed if each thread reads only the length that it wrote
  int cost = 0;
  int most_keys = 0;
  for (int s = begin; s < end; ++s) {
    cost += cost_of(p, batch.num_keys[s]);
    most_keys = max(most_keys, batch.num_keys[s]);
  }
  most_keys = __reduce_max_sync(0xffffffffU, most_keys);
  const int sum = warp_scan(cost);
  if (t % 32 == 31) warp_sums[t / 32] = {sum, most_keys};
  __syncthreads();
  int running = sum - cost;
  int total_cost = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int2 other = warp_sums[w];
    if (w < t / 32) running += other.x;
    total_cost += other.x;
    most_keys = max(most_keys, other.y);
  }
  for (int s = begin; s < end; ++s) {
    batch.cost_begin[s] = running;
    running += cost_of(p, batch.num_keys[s]);
  }
  const Cut cut = choose_cut(p, total_cost, pages_of(most_keys), warp_values);
  __syncthreads();

  for (int part = t; part <= num_parts; part += kThreads)
    borders[part] = border(p, batch, cut, total_cost, part);
  int merges = 0;
  for (int s = begin; s < end; ++s) {
    const DecodeSequence split = split_of(p, batch, cut, s);
    p.plan.sequences[s] = split;
    if (split.num_splits > 1) ++merges;
  }
  int merges_before = 0;
  if (p.list_merges) {
    const int sum = warp_scan(merges);
    if (t % 32 == 31) warp_sums[t / 32] = {sum, 0};
    merges_before = sum - merges;
  }
  __syncthreads();
  for (int part = t; part < num_parts; part += kThreads) {
    const int2 from = borders[part];
    const int2 to = borders[part + 1];
    DecodePart whole{from.x, from.y, to.x, to.y, {1, 0, 0, 0}, 0};
    if (from.x < p.num_seqs) {
      whole.split = split_of(p, batch, cut, from.x);
      whole.num_keys = batch.num_keys[from.x];
    }
    p.plan.parts[part] = whole;
  }
  if (!p.list_merges) return;
  int all_merges = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int other = warp_sums[w].x;
    if (w < t / 32) merges_before += other;
    all_merges += other;
  }
  if (t == 0) *p.plan.num_merges = all_merges;
  if (merges == 0) return;
  for (int s = begin; s < end; ++s) {
    const DecodeSequence split = split_of(p, batch, cut, s);
    if (split.num_splits > 1) p.plan.merges[merges_before++] = {s, split.num_splits, split.first_slot};
  }
}

}  // namespace

void mla_decode_plan(const DecodeGeometry& g, const int32_t* kv_len, void* plan, const Launch& launch) {
  if (g.num_seqs == 0) return;
  const auto num_seqs = static_cast<int>(g.num_seqs);
  const auto log2_of = [](int value) { return std::countr_zero(static_cast<unsigned>(value)); };
  HADAL_CHECK(std::has_single_bit(static_cast<unsigned>(g.pages_at_once)),
              "pages_at_once is {}; must be a power of two", g.pages_at_once);
  const PlanArgs args{.plan = decode_plan_view(g, plan),
                      .kv_len = kv_len,
                      .index_topk = g.index_topk,
                      .num_seqs = num_seqs,
                      .num_parts = Divisor(g.num_parts),
                      .parts_each = Divisor(std::max(g.num_parts / num_seqs, 1)),
                      .seqs_each = (num_seqs + g.num_parts - 1) / g.num_parts,
                      .num_arrivals = 2 * g.num_tiles * num_seqs,
                      .cluster_log2 = log2_of(g.cluster),
                      .once_log2 = log2_of(g.pages_at_once),
                      .split_pages = g.split_pages,
                      .overhead = std::max(1, g.sequence_ns * kStepCost / (g.page_ns * g.pages_at_once)),
                      .list_merges = !g.merge_inside,
                      .page_ns = static_cast<float>(g.page_ns),
                      .lone_page_ns = static_cast<float>(g.lone_page_ns),
                      .merge_ns = static_cast<float>(g.merge_ns),
                      .split_ns = static_cast<float>(g.split_ns)};
  const size_t shared_bytes = (static_cast<size_t>(num_seqs) * 2 + (g.num_parts + 1) * 2) * sizeof(int);
  // Without an opt-in a kernel may use 48 KB of shared memory, which include its static shared memory.
  if (shared_bytes > 40 * 1024) allow_shared_memory<mla_plan_kernel>(shared_bytes);
  launch_kernel<mla_plan_kernel>(launch, dim3(1), dim3(kThreads), shared_bytes, args);
}

}  // namespace hadal::cuda
