// The split-KV plan: one block reads the lengths and cuts their pages into num_parts shares of equal cost.
//
// Cost of a sequence: its pages plus a fixed overhead. The costs are laid end to end; part p begins at cost p
// · share. A border inside of a sequence's overhead is its first page, so no empty split is made. With
// split_pages > 0 borders move up to the next multiple of the sequence's split length, which depends on its
// own length alone.
//
// Where the sequences are about equally long, that would cut each of them at places of its own, and leave
// pieces that cost a merge for nothing. So when every sequence can have k = num_parts / num_seqs parts for
// itself, and that makes no part longer than the balanced share (rounded up to pages, or by 1/16), all are
// cut into splits of one length. With more sequences than parts, each part has equally many whole ones, on
// the same terms.
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
constexpr int kPageCost = 4;  // the unit of cost is a quarter of a page

__host__ __device__ constexpr size_t align16(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

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
  int overhead;
  int pages_at_once;
  int merge_cost;
  int split_pages;
};

// The largest of a value over the block.
__device__ int block_max(int value, int2* warp_values) {
  value = static_cast<int>(__reduce_max_sync(0xffffffffU, static_cast<unsigned>(value)));
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32].x = value;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) value = max(value, warp_values[w].x);
  return value;
}

__device__ int pages_of(const PlanArgs& p, int seq) {
  return (max(p.kv_len[seq], 0) + kPageSize - 1) / kPageSize;
}

__device__ int split_length(const PlanArgs& p, int pages) {
  int length = p.split_pages;
  while (pages > length * kDecodeMaxFixedSplits) length *= 2;
  return length;
}

// Of the longest sequence in splits of so many pages, in hundredths of a page's time: a split, then the
// merge.
__device__ int latency(const PlanArgs& p, int split_pages, int pages) {
  const int rounded =
      split_pages == 1 ? 1 : (split_pages + p.pages_at_once - 1) / p.pages_at_once * p.pages_at_once;
  const float splits = ceilf(__fdividef(static_cast<float>(pages), static_cast<float>(split_pages)) - 1e-3F);
  return rounded * 100 + static_cast<int>(splits) * p.merge_cost;
}

// Where part p begins, at cost `cost`.
__device__ int2 border(const PlanArgs& p, int cost, int total) {
  if (cost >= total) return {p.num_seqs, 0};
  int low = 0;  // the last sequence that begins at or before `cost`
  int high = p.num_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.plan.cost_begin[middle] <= cost) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  int page = max(0, cost - p.plan.cost_begin[low] - p.overhead) / kPageCost;
  if (p.split_pages > 0) {
    const int pages = pages_of(p, low);
    const int length = split_length(p, pages);
    page = (page + length - 1) / length * length;
    if (page >= pages && page > 0) return {low + 1, 0};
  }
  return {low, page};
}

__global__ void __launch_bounds__(kThreads) mla_plan_kernel(PlanArgs p) {
  __shared__ int2 warp_sums[kWarps];
  pdl_wait();
  pdl_launch_dependents();
  const int t = static_cast<int>(threadIdx.x);
  const int each = (p.num_seqs + kThreads - 1) / kThreads;  // consecutive sequences of a thread
  const int begin = min(t * each, p.num_seqs);
  const int end = min(begin + each, p.num_seqs);

  int cost = 0;
  int most_pages = 0;
  for (int s = begin; s < end; ++s) {
    const int pages = pages_of(p, s);
    cost += pages * kPageCost + p.overhead;
    most_pages = max(most_pages, pages);
  }
  most_pages = block_max(most_pages, warp_sums);
  int2 total;
  int running = block_scan({cost, 0}, warp_sums, total).x;
  for (int s = begin; s < end; ++s) {
    p.plan.cost_begin[s] = running;
    for (int i = 0; i < 2 * p.num_tiles; ++i) p.plan.meetings[int64_t{2} * p.num_tiles * s + i] = 0;
    running += pages_of(p, s) * kPageCost + p.overhead;
  }
  if (t == 0) p.plan.cost_begin[p.num_seqs] = total.x;
  const int total_cost = total.x;
  __syncthreads();

  const int share = max((total_cost + p.num_parts - 1) / p.num_parts, kPageCost);
  const int parts_each = p.num_parts / p.num_seqs;
  int even_pages = 0;  // > 0: every sequence in splits of so many pages, parts_each parts for each
  int seqs_each = 0;   // > 0: every part has so many whole sequences
  const int total_pages = (total_cost - p.num_seqs * p.overhead) / kPageCost;
  if (p.split_pages == 0 && parts_each == 0) {
    const int seqs = (p.num_seqs + p.num_parts - 1) / p.num_parts;
    if (int64_t{seqs} * most_pages * 16 * p.num_parts <= int64_t{total_pages} * 17) seqs_each = seqs;
  } else if (p.split_pages == 0) {
    const int pages = max((most_pages + parts_each - 1) / parts_each, 1);
    const int mean_up = max((total_pages + p.num_parts - 1) / p.num_parts, 1);
    if (pages <= mean_up || pages * 16 * p.num_parts <= total_pages * 17) {
      even_pages = pages;
      for (int longer = pages + 1; longer <= pages + 4; ++longer) {
        if (latency(p, longer, most_pages) < latency(p, even_pages, most_pages)) even_pages = longer;
      }
    }
  }
  for (int part = t; part < p.num_parts; part += kThreads) {
    int2 borders[2];
    for (int side = 0; side < 2; ++side) {
      const int number = part + side;
      if (seqs_each > 0) {
        borders[side] = {min(number * seqs_each, p.num_seqs), 0};
      } else if (even_pages > 0) {
        const int seq = number / parts_each;
        const int page = number % parts_each * even_pages;
        if (seq >= p.num_seqs) {
          borders[side] = {p.num_seqs, 0};
        } else {
          borders[side] = page > 0 && page >= pages_of(p, seq) ? int2{seq + 1, 0} : int2{seq, page};
        }
      } else {
        borders[side] = border(p, min(number, total_cost) * share, total_cost);
      }
    }
    p.plan.parts[part] = {borders[0].x, borders[0].y, borders[1].x, borders[1].y, {1, 0, 0, 0}, 0};
  }

  int2 counts = {0, 0};  // slots, split sequences
  for (int s = begin; s < end; ++s) {
    const int pages = pages_of(p, s);
    DecodeSequence sequence{1, 0, 0, 0};
    if (p.split_pages > 0 || even_pages > 0) {
      sequence.split_pages = even_pages > 0 ? even_pages : split_length(p, pages);
      sequence.num_splits = max(1, (pages + sequence.split_pages - 1) / sequence.split_pages);
    } else if (pages > 0 && seqs_each == 0) {
      const int first_cost = p.plan.cost_begin[s] + p.overhead;
      sequence.first_part = (first_cost + kPageCost - 1) / share;  // the last border on its first page
      sequence.num_splits = (first_cost + pages * kPageCost - 1) / share - sequence.first_part + 1;
    }
    p.plan.sequences[s] = sequence;
    if (sequence.num_splits > 1) counts = {counts.x + sequence.num_splits, counts.y + 1};
  }
  int2 before = block_scan(counts, warp_sums, total);
  for (int s = begin; s < end; ++s) {
    const int splits = p.plan.sequences[s].num_splits;
    if (splits == 1) continue;
    p.plan.sequences[s].first_slot = before.x;
    p.plan.merges[before.y] = {s, splits, before.x};
    before = {before.x + splits, before.y + 1};
  }
  if (t == 0) *p.plan.num_merges = total.y;
  __syncthreads();
  for (int part = t; part < p.num_parts; part += kThreads) {
    DecodePart& here = p.plan.parts[part];
    if (here.begin_seq >= p.num_seqs) continue;
    here.split = p.plan.sequences[here.begin_seq];
    here.num_keys = max(p.kv_len[here.begin_seq], 0);
  }
}

}  // namespace

DecodeGeometry decode_geometry(const MlaPlanShape& shape) {
  HADAL_CHECK(shape.num_seqs >= 0 && shape.num_seqs <= (1 << 20), "num_seqs {}", shape.num_seqs);
  HADAL_CHECK(shape.q_len >= 1 && shape.q_len <= kDecodeMaxQuery, "q_len {}: 1 to {}", shape.q_len,
              kDecodeMaxQuery);
  HADAL_CHECK(shape.num_heads >= 1 && shape.num_heads <= kDecodeMaxHeads, "num_heads {}: 1 to {}",
              shape.num_heads, kDecodeMaxHeads);
  HADAL_CHECK(shape.num_sms >= 1, "num_sms {}: at least 1", shape.num_sms);
  HADAL_CHECK(shape.split_pages >= 0, "split_pages {}: 0 (balanced) or more", shape.split_pages);
  DecodeGeometry g;
  g.rows = shape.num_heads * shape.q_len;
  g.tile_rows = g.rows <= 16 ? 16 : g.rows <= 32 ? 32 : 64;
  g.kernel = g.tile_rows == 64 ? DecodeKernel::kTiles : DecodeKernel::kSwapped;
  g.num_tiles = (g.rows + g.tile_rows - 1) / g.tile_rows;
  g.num_parts = std::max(1, shape.num_sms / g.num_tiles);
  g.overhead = g.tile_rows == 64 ? 8 : 2;
  g.pages_at_once = g.tile_rows == 64 ? 2 : 1;
  // Measured: a round of loads of the merge, or its bytes.
  g.merge_cost = static_cast<int>(std::max<int64_t>(4, shape.num_seqs * g.rows * 8 / 100));
  g.fixed_splits = shape.split_pages > 0;
  g.max_slots = shape.split_pages > 0 ? shape.num_seqs * kDecodeMaxFixedSplits : int64_t{2} * g.num_parts;
  return g;
}

size_t mla_plan_bytes(const MlaPlanShape& shape) {
  const DecodeGeometry g = decode_geometry(shape);
  const auto seqs = static_cast<size_t>(shape.num_seqs);
  return 16 + g.num_parts * sizeof(DecodePart) + seqs * sizeof(DecodeSequence) + align16((seqs + 1) * 4) +
         align16(seqs * 8 * g.num_tiles) + seqs * sizeof(DecodeMerge);
}

DecodePlanView decode_plan_view(const MlaPlanShape& shape, const void* plan) {
  const DecodeGeometry g = decode_geometry(shape);
  auto* at = static_cast<std::byte*>(const_cast<void*>(plan));
  const auto take = [&](size_t bytes) {
    std::byte* here = at;
    at += align16(bytes);
    return here;
  };
  const auto seqs = static_cast<size_t>(shape.num_seqs);
  DecodePlanView view{};
  view.num_merges = reinterpret_cast<int32_t*>(take(4));
  view.parts = reinterpret_cast<DecodePart*>(take(g.num_parts * sizeof(DecodePart)));
  view.sequences = reinterpret_cast<DecodeSequence*>(take(seqs * sizeof(DecodeSequence)));
  view.cost_begin = reinterpret_cast<int32_t*>(take((seqs + 1) * 4));
  view.meetings = reinterpret_cast<int32_t*>(take(seqs * 8 * g.num_tiles));
  view.merges = reinterpret_cast<DecodeMerge*>(take(seqs * sizeof(DecodeMerge)));
  return view;
}

size_t mla_decode_scratch_bytes(const MlaPlanShape& shape) {
  const DecodeGeometry g = decode_geometry(shape);
  return static_cast<size_t>(g.max_slots) * g.rows * (kKvLatentDim + 1) * sizeof(float);
}

void mla_decode_plan(const MlaPlanShape& shape, const int32_t* kv_len, void* plan, const Launch& launch) {
  const DecodeGeometry g = decode_geometry(shape);
  if (shape.num_seqs == 0) return;
  const PlanArgs args{.plan = decode_plan_view(shape, plan),
                      .kv_len = kv_len,
                      .num_seqs = static_cast<int>(shape.num_seqs),
                      .num_parts = g.num_parts,
                      .num_tiles = g.num_tiles,
                      .overhead = g.overhead,
                      .pages_at_once = g.pages_at_once,
                      .merge_cost = g.merge_cost,
                      .split_pages = shape.split_pages};
  launch_kernel<mla_plan_kernel>(launch, dim3(1), dim3(kThreads), 0, args);
}

}  // namespace hadal::cuda
