// Chooses the kernel, the height of the tiles and the size of the clusters of decode attention. The functions
// are pure functions of the plan's shape and of how many clusters the device runs at once, and are tested
// without a device. They compare predicted times, which are derived from the measured times in
// mla/plan/fitted.h.
#include "kernels/cuda/mla/plan/geometry.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/cuda/mla/plan/fitted.h"
#include "kernels/cuda/padding.h"

namespace hadal::cuda {
namespace {

int tiles_of(int rows, int tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

int log2_of(int cluster) {
  int i = 0;
  while ((1 << i) < cluster) ++i;
  return i;
}

bool is_fp8(const KvLayout& layout) {
  return layout.format == KvFormat::kFp8E4M3 || layout.format == KvFormat::kFp8E5M2;
}

const fitted::StreamRates& rates_of(DecodeKernel kernel) {
  return kernel == DecodeKernel::kSwapped ? fitted::kSwappedRates
         : kernel == DecodeKernel::kTiles ? fitted::kTilesRates
                                          : fitted::kTilesFp8Rates;
}

// Returns the time before a block's first page and after its last.
double ends_ns(const DecodeGeometry& g, const fitted::DecodeTimes& times, bool crowded) {
  double ns = crowded ? times.ends_crowded : times.ends;
  if (g.kernel != DecodeKernel::kSwapped) return ns;
  if (g.cluster > 1) ns += crowded && g.cluster > 2 ? fitted::kClusters.ends_crowded : fitted::kClusters.ends;
  if (g.num_tiles > 1) {
    ns += g.cluster > 1 ? fitted::kSeveralTiles.swapped_ends_in_clusters : fitted::kSeveralTiles.swapped_ends;
  }
  return ns;
}

// Returns the time of a sequence besides its pages, as the plan weighs it: loading queries and storing
// outputs. (The pieces of a block do not overlap, because the join of a piece uses the ring's tiles.) The
// time of a page assumes that the block shares the memory bandwidth with all others. Blocks with short pieces
// load fewer pages and so leave more bandwidth to the others, but their own dependent reads take longer. So
// the time here is up to twice the time of a piece when all blocks have equally many pieces.
int sequence_ns(const DecodeGeometry& g, const fitted::DecodeTimes& times) {
  int ns = times.sequence;
  if (g.cluster > 1) ns += fitted::kClusters.sequence;
  if (g.kernel == DecodeKernel::kTilesFp8 && g.num_tiles > 1) ns += fitted::kSeveralTiles.tiles_fp8_sequence;
  return ns;
}

// Returns the time of a merge: the blocks synchronise, and then each block reads its share of the rows of all
// splits. (split_ns adds the time of each split.)
int merge_ns(const DecodeGeometry& g, const fitted::DecodeTimes& times) {
  if (g.cluster == 1) return times.merge;
  const int64_t blocks_each = g.num_parts / std::max<int64_t>(1, g.num_seqs) * g.cluster;
  const auto waiting = static_cast<int>(fitted::kClusters.merge_block *
                                        std::min<int64_t>(blocks_each, fitted::kClusters.merge_most_blocks));
  return times.merge + fitted::kClusters.merge + (g.cluster > 2 ? waiting : 0);
}

// Returns the time of each split in a merge. It is limited by latency with few rows, and by memory bandwidth
// with many rows.
int split_ns(const DecodeGeometry& g, const fitted::DecodeTimes& times) {
  const double row_ns = g.cluster == 1 ? times.split_row : fitted::kClusters.split_row;
  const int row_bytes = g.half_partials ? 2048 : 4096;  // written and read
  const double joined_bytes = static_cast<double>(g.num_seqs) * g.rows * row_bytes;
  return static_cast<int>(fitted::kSplit +
                          std::max(row_ns * g.rows, joined_bytes / fitted::kSplitBytesPerNs));
}

size_t align16(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

// Returns the predicted time in ns of a call whose sequences all have this many pages: the plan's own
// estimate (plan.cu), plus the time before a block's first page and after its last. in_step means that other
// kernels run before and after the call and occupy all multiprocessors.
double predicted_ns(const DecodeGeometry& g, const KvLayout& layout, int64_t pages, bool in_step) {
  const fitted::DecodeTimes& times = fitted::times_of({g.kernel, g.tile_rows, g.cluster}, layout);
  const auto seqs = static_cast<double>(g.num_seqs);
  const auto strides = static_cast<double>((pages + g.cluster - 1) / g.cluster);
  const double mean_strides = std::ceil(seqs * strides / g.num_parts);
  // The balanced cut divides the batch into equal shares, and each sequence lies in two or three of them.
  double best = ends_ns(g, times, true) + mean_strides * g.page_ns + g.merge_ns +
                (2.0 + strides / mean_strides) * g.split_ns + times.piece * std::ceil(seqs / g.num_parts);
  if (g.num_seqs > g.num_parts) {
    const double each = std::ceil(seqs / g.num_parts);
    best = std::min(best, ends_ns(g, times, true) + each * (strides * g.page_ns + times.piece) - times.piece);
  }
  for (int splits = 1; splits <= g.num_parts / g.num_seqs; ++splits) {
    const double share = std::ceil(strides / splits);
    const double page = std::max<double>(g.lone_page_ns, g.page_ns * seqs * splits / g.num_parts);
    const double merge = splits > 1 ? g.merge_ns + splits * g.split_ns : 0.0;
    const bool crowded = in_step || 2.0 * seqs * splits > g.num_parts;
    best = std::min(best, ends_ns(g, times, crowded) + share * page + merge);
  }
  best += times.first_page;
  if (!in_step || g.kernel != DecodeKernel::kSwapped) return best;
  double more = 0.0;
  if (g.cluster > 1) more += fitted::kClusters.ends_in_step;
  if (g.num_tiles > 1) {
    more += is_fp8(layout) ? fitted::kSeveralTiles.swapped_in_step_fp8
                           : fitted::kSeveralTiles.swapped_in_step_16_bit;
  }
  return best + more;
}

}  // namespace

ClusterCapacity full_capacity(int num_sms) {
  ClusterCapacity capacity;
  for (int i = 0; i < kDecodeClusterSizes; ++i) capacity.clusters[i] = num_sms >> i;
  return capacity;
}

DecodeSchedule decode_schedule(const MlaPlanShape& shape, const ClusterCapacity& capacity) {
  const int rows = shape.num_heads * shape.q_len;
  const DecodeKernel tall = decode_kernel_supports(DecodeKernel::kTilesFp8, shape.layout)
                                ? DecodeKernel::kTilesFp8
                                : DecodeKernel::kTiles;
  // The results of fixed splits must not depend on the number of sequences, so the choice of kernel ignores
  // that number.
  if (shape.split_pages > 0) {
    if (rows > 32) return {tall, 64, 1};
    return {DecodeKernel::kSwapped, rows <= 16 ? 16 : 32, 1};
  }
  MlaPlanShape typical = shape;
  // A batch is padded to a graph's size. The padding must not change the kernel, because different kernels
  // give different bits.
  typical.num_seqs = padded_tokens(shape.num_seqs);
  // Decode of many sequences is memory-bound, and 64-row tiles read faster, however few of their rows are
  // filled. This does not hold in a step, where the merge kernel after 64-row tiles costs as much as they
  // save.
  if (rows <= 16 && !is_fp8(shape.layout) && !shape.in_step && typical.num_seqs >= fitted::kManySeqs)
    return {DecodeKernel::kTiles, 64, 1};
  const int64_t keys = shape.most_keys > 0 ? shape.most_keys : kMlaUsualKeys;
  DecodeSchedule best{rows <= 16 ? DecodeKernel::kSwapped : tall, rows <= 16 ? 16 : 64, 1};
  double best_ns = std::numeric_limits<double>::infinity();
  for (const DecodeSchedule& schedule : decode_schedules(shape.layout)) {
    if (schedule.tile_rows > 16 && rows <= 16) continue;
    if (tiles_of(rows, schedule.tile_rows) > capacity.clusters[log2_of(schedule.cluster)]) continue;
    const DecodeGeometry geometry = decode_geometry(typical, schedule, capacity);
    const auto ns_of = [&](int64_t length) {
      return predicted_ns(geometry, shape.layout, (length + kPageSize - 1) / kPageSize, shape.in_step);
    };
    const double ns = ns_of(keys) + (shape.in_step ? ns_of((keys + 3) / 4) : 0.0);
    if (ns < best_ns) best_ns = ns, best = schedule;
  }
  return best;
}

std::vector<DecodeSchedule> decode_schedules(const KvLayout& layout) {
  std::vector<DecodeSchedule> schedules;
  for (int tile_rows : {16, 32}) {
    for (int cluster : {1, 2, 4, 8, 16}) {
      schedules.push_back({DecodeKernel::kSwapped, tile_rows, cluster});
    }
  }
  for (DecodeKernel kernel : {DecodeKernel::kTiles, DecodeKernel::kTilesFp8}) {
    if (decode_kernel_supports(kernel, layout)) schedules.push_back({kernel, 64, 1});
  }
  return schedules;
}

DecodeGeometry decode_geometry(const MlaPlanShape& shape, const DecodeSchedule& schedule,
                               const ClusterCapacity& capacity) {
  HADAL_CHECK(shape.num_seqs >= 0 && shape.num_seqs <= kDecodeMaxSeqs, "num_seqs is {}; must be 0 to {}",
              shape.num_seqs, kDecodeMaxSeqs);
  HADAL_CHECK(shape.q_len >= 1 && shape.q_len <= kDecodeMaxQuery, "q_len is {}; must be 1 to {}", shape.q_len,
              kDecodeMaxQuery);
  HADAL_CHECK(shape.num_heads >= 1 && shape.num_heads <= kDecodeMaxHeads, "num_heads is {}; must be 1 to {}",
              shape.num_heads, kDecodeMaxHeads);
  HADAL_CHECK(shape.num_sms >= 1, "num_sms is {}; must be at least 1", shape.num_sms);
  HADAL_CHECK(shape.split_pages >= 0, "split_pages is {}; must be 0 (balanced) or more", shape.split_pages);
  const bool swapped = schedule.kernel == DecodeKernel::kSwapped;
  HADAL_CHECK(swapped ? schedule.tile_rows == 16 || schedule.tile_rows == 32 : schedule.tile_rows == 64,
              "tile_rows is {}; must be 16 or 32 with keys on the M side, otherwise 64", schedule.tile_rows);
  HADAL_CHECK(decode_kernel_supports(schedule.kernel, shape.layout),
              "KV format {} with scales {}: FP8 products support e5m2, and e4m3 with one scale per token",
              static_cast<int>(shape.layout.format), static_cast<int>(shape.layout.scales));
  const int cluster = schedule.cluster;
  HADAL_CHECK(cluster >= 1 && cluster <= 16 && (cluster & (cluster - 1)) == 0 && (swapped || cluster == 1),
              "cluster is {}; must be 1, or 2, 4, 8 or 16 with keys on the M side", cluster);
  HADAL_CHECK(cluster == 1 || shape.split_pages == 0,
              "fixed splits need single blocks; the cluster has {} blocks", cluster);

  DecodeGeometry g;
  g.num_seqs = shape.num_seqs;
  g.kernel = schedule.kernel;
  g.rows = shape.num_heads * shape.q_len;
  g.tile_rows = schedule.tile_rows;
  g.num_tiles = tiles_of(g.rows, g.tile_rows);
  g.cluster = cluster;
  // With an even number of 64-row tiles, two tiles of a part form a cluster.
  const int together = !swapped && g.num_tiles % 2 == 0 ? 2 : 1;
  const int held = together * std::min(capacity.clusters[log2_of(cluster * together)],
                                       shape.num_sms / (cluster * together));
  g.num_parts = std::max(1, held / g.num_tiles);
  g.split_pages = shape.split_pages;
  g.fixed_splits = shape.split_pages > 0;
  // Fixed splits must be merged in the same order in any batch. The kernels of 64-row tiles have no registers
  // left for a merge.
  g.merge_inside = swapped && !g.fixed_splits;
  // A float16 output is as precise as scaled float16, and so needs more precise partial results (float32).
  g.half_partials = schedule.kernel == DecodeKernel::kTiles && shape.layout.format != KvFormat::kF16;
  g.pages_at_once = swapped ? 1 : 2;
  g.index_topk = shape.index_topk;
  g.max_slots = g.fixed_splits ? shape.num_seqs * kDecodeMaxFixedSplits : int64_t{2} * g.num_parts;

  const fitted::DecodeTimes& times = fitted::times_of(schedule, shape.layout);
  const fitted::StreamRates& rates = rates_of(g.kernel);
  const double all_pages_bytes =
      static_cast<double>(shape.layout.page_bytes()) * (static_cast<double>(g.num_parts) * cluster);
  g.page_ns = static_cast<int>(
      std::max({times.page, all_pages_bytes / rates.memory, all_pages_bytes * g.num_tiles / rates.cache}));
  g.lone_page_ns = static_cast<int>(times.page);
  g.sequence_ns = sequence_ns(g, times);
  g.merge_ns = merge_ns(g, times);
  g.split_ns = split_ns(g, times);
  return g;
}

namespace {

struct PlanArrays {
  DecodePlanView view{};
  size_t bytes = 0;
};

PlanArrays plan_arrays(const DecodeGeometry& g, const void* plan) {
  PlanArrays arrays;
  const auto take = [&](size_t bytes) {
    std::byte* here =
        plan == nullptr ? nullptr : static_cast<std::byte*>(const_cast<void*>(plan)) + arrays.bytes;
    arrays.bytes += align16(bytes);
    return here;
  };
  const auto seqs = static_cast<size_t>(g.num_seqs);
  DecodePlanView& view = arrays.view;
  view.num_merges = reinterpret_cast<int32_t*>(take(4));
  view.parts = reinterpret_cast<DecodePart*>(take(g.num_parts * sizeof(DecodePart)));
  view.sequences = reinterpret_cast<DecodeSequence*>(take(seqs * sizeof(DecodeSequence)));
  view.arrivals = reinterpret_cast<int32_t*>(take(seqs * 8 * g.num_tiles));
  view.merges = reinterpret_cast<DecodeMerge*>(take(seqs * sizeof(DecodeMerge)));
  return arrays;
}

}  // namespace

size_t decode_plan_bytes(const DecodeGeometry& geometry) {
  return plan_arrays(geometry, nullptr).bytes;
}

MlaDecodeBytes decode_most_bytes(const MlaPlanShape& shape, const ClusterCapacity& capacity) {
  MlaDecodeBytes most;
  for (const DecodeSchedule& schedule : decode_schedules(shape.layout)) {
    const DecodeGeometry g = decode_geometry(shape, schedule, capacity);
    most.plan = std::max(most.plan, decode_plan_bytes(g));
    most.scratch = std::max(most.scratch, decode_scratch_bytes(g));
  }
  return most;
}

DecodePlanView decode_plan_view(const DecodeGeometry& geometry, const void* plan) {
  return plan_arrays(geometry, plan).view;
}

int decode_slot_rows(const DecodeGeometry& g) {
  if (g.kernel != DecodeKernel::kSwapped) return g.rows;
  constexpr int kRowBytes = kKvLatentDim * 4;
  const int tiles_bytes = g.num_tiles * g.tile_rows * kDecodePartialRowBytes;
  return std::max(g.rows, (tiles_bytes + kRowBytes - 1) / kRowBytes);
}

size_t decode_scratch_bytes(const DecodeGeometry& g) {
  const size_t values = static_cast<size_t>(decode_slot_rows(g)) * kKvLatentDim;
  return static_cast<size_t>(g.max_slots) * (values + g.rows) * sizeof(float);
}

}  // namespace hadal::cuda
