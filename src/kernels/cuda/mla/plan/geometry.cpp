// How decode attention is cut for a device: which kernel, tiles of which height, clusters of how many blocks.
// Pure functions of the plan's shape and of how many clusters the device holds, tested without a device.
//
// Times below are of one H200. They only weigh one way of cutting against another.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/cuda/mla/decode/decode.h"
#include "kernels/cuda/padding.h"

namespace hadal::cuda {
namespace {

constexpr double kMemoryBytesPerNs = 4450.0;  // of the whole device
constexpr double kTallBytesPerNs = 4550.0;    // as fast as 64-row tiles ask for it
constexpr double kFp8BytesPerNs = 2800.0;     // and those of FP8 products
constexpr double kCacheBytesPerNs = 5500.0;   // from the L2, where several tiles read a page
constexpr double kTallCacheBytesPerNs = 6000.0;
constexpr int kClusterMergeNs = 1600;  // of splits in clusters that begin together
constexpr int kManySeqs = 32;          // for tall tiles of few rows

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

// Of a page in a block while few are at work, in ns: its arithmetic, or how fast one multiprocessor is fed.
double lone_page_ns(const DecodeSchedule& schedule, const KvLayout& layout) {
  const bool e5m2 = layout.format == KvFormat::kFp8E5M2;
  if (schedule.kernel == DecodeKernel::kTilesFp8) return e5m2 ? 1350 : 1500;
  if (!is_fp8(layout)) return schedule.tile_rows == 16 ? 1520 : schedule.tile_rows == 32 ? 2230 : 1600;
  if (schedule.tile_rows == 64) return e5m2 ? 2600 : 4300;
  if (schedule.tile_rows == 32) return e5m2 ? 1900 : 2270;
  return e5m2 ? 1150 : 1400;
}

// What precedes a block's first page and follows its last. `crowded`: there is no room beside the kernel
// before, so that a block begins, and asks for its first pages, when one of that kernel has ended.
double beside_pages_ns(const DecodeGeometry& g, bool crowded) {
  if (g.kernel == DecodeKernel::kTiles) return crowded ? 7500 : 4000;
  if (g.kernel == DecodeKernel::kTilesFp8) return crowded ? 10500 : 8000;
  return (crowded ? 6000 : 3500) + (g.cluster > 1 ? (crowded && g.cluster > 2 ? 200 : 1200) : 0) +
         (g.num_tiles > 1 ? (g.cluster > 1 ? 1000 : 1500) : 0) + (g.tile_rows == 32 ? 3500 : 0);
}

// What a sequence costs a block beside its pages, as the cut weighs it: queries in, outputs out (the pieces
// of a block do not overlap, for the ring is where they are joined). A page is weighed as one of a block that
// shares the memory with all others; short pieces leave the others more of it, and wait longer themselves, so
// this is up to twice of what a piece takes where all blocks have as many.
int sequence_ns(const DecodeSchedule& schedule, const KvLayout& layout, bool several_tiles) {
  if (schedule.kernel == DecodeKernel::kTiles) return 7000;
  if (schedule.kernel == DecodeKernel::kTilesFp8) return several_tiles ? 10000 : 18000;
  return (layout.format == KvFormat::kFp8E5M2 ? 8500 : 14000) + (schedule.tile_rows == 32 ? 4000 : 0) -
         (schedule.cluster > 1 ? 2000 : 0);
}

// The same where all blocks have as many, for the choice of a schedule.
double piece_ns(const DecodeGeometry& g) {
  if (g.kernel == DecodeKernel::kTiles) return 5500.0;
  return g.kernel == DecodeKernel::kSwapped && g.tile_rows == 16 ? 5000.0 : 10000.0;
}

size_t align16(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

// Of a call whose sequences are all of so many pages, in ns: the plan's own reckoning (plan.cu), and what
// precedes a block's first page and follows its last.
// in_step: other kernels run before and after, which leave no room.
double predicted_ns(const DecodeGeometry& g, const KvLayout& layout, int64_t pages, bool in_step) {
  const auto seqs = static_cast<double>(g.num_seqs);
  const auto strides = static_cast<double>((pages + g.cluster - 1) / g.cluster);
  const double mean_strides = std::ceil(seqs * strides / g.num_parts);
  // Cut into equal shares, each sequence in two or three of them.
  double best = beside_pages_ns(g, true) + mean_strides * g.page_ns + g.merge_ns +
                (2.0 + strides / mean_strides) * g.split_ns + piece_ns(g) * std::ceil(seqs / g.num_parts);
  if (g.num_seqs > g.num_parts) {
    const double each = std::ceil(seqs / g.num_parts);
    best =
        std::min(best, beside_pages_ns(g, true) + each * (strides * g.page_ns + piece_ns(g)) - piece_ns(g));
  }
  for (int splits = 1; splits <= g.num_parts / g.num_seqs; ++splits) {
    const double share = std::ceil(strides / splits);
    const double page = std::max<double>(g.lone_page_ns, g.page_ns * seqs * splits / g.num_parts);
    const double merge = splits > 1 ? g.merge_ns + splits * g.split_ns : 0.0;
    const bool crowded = in_step || 2.0 * seqs * splits > g.num_parts;
    best = std::min(best, beside_pages_ns(g, crowded) + share * page + merge);
  }
  if (g.kernel == DecodeKernel::kTiles && is_fp8(layout)) best += 3000;  // a first page to widen
  if (!in_step || g.kernel != DecodeKernel::kSwapped) return best;
  // Clusters begin when all their blocks have found room; what several tiles read is not in the L2 yet.
  return best + (g.cluster > 1 ? 2000 : 0) + (g.num_tiles > 1 ? (is_fp8(layout) ? 6000 : 1500) : 0);
}

}  // namespace

ClusterCapacity full_capacity(int num_sms) {
  ClusterCapacity capacity;
  for (int i = 0; i < kDecodeClusterSizes; ++i) capacity.clusters[i] = num_sms >> i;
  return capacity;
}

DecodeSchedule decode_schedule(const MlaPlanShape& shape, const ClusterCapacity& capacity) {
  const int rows = shape.num_heads * shape.q_len;
  const DecodeKernel tall = decode_kernel_takes(DecodeKernel::kTilesFp8, shape.layout)
                                ? DecodeKernel::kTilesFp8
                                : DecodeKernel::kTiles;
  // What fixed splits give must not depend on the number of sequences, so neither may the kernel.
  if (shape.split_pages > 0) {
    if (rows > 32) return {tall, 64, 1};
    return {DecodeKernel::kSwapped, rows <= 16 ? 16 : 32, 1};
  }
  MlaPlanShape typical = shape;
  // A batch is padded to a graph's size; what pads it must not change the kernel, and so the bits.
  typical.num_seqs = padded_tokens(shape.num_seqs);
  // Many sequences wait for memory, and tall tiles ask for it faster, however few rows they are filled with.
  // Not in a step, where the kernel that joins their splits costs what they gain.
  if (rows <= 16 && !is_fp8(shape.layout) && !shape.in_step && typical.num_seqs >= kManySeqs)
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
    if (decode_kernel_takes(kernel, layout)) schedules.push_back({kernel, 64, 1});
  }
  return schedules;
}

DecodeGeometry decode_geometry(const MlaPlanShape& shape, const DecodeSchedule& schedule,
                               const ClusterCapacity& capacity) {
  HADAL_CHECK(shape.num_seqs >= 0 && shape.num_seqs <= kDecodeMaxSeqs, "num_seqs {}: 0 to {}", shape.num_seqs,
              kDecodeMaxSeqs);
  HADAL_CHECK(shape.q_len >= 1 && shape.q_len <= kDecodeMaxQuery, "q_len {}: 1 to {}", shape.q_len,
              kDecodeMaxQuery);
  HADAL_CHECK(shape.num_heads >= 1 && shape.num_heads <= kDecodeMaxHeads, "num_heads {}: 1 to {}",
              shape.num_heads, kDecodeMaxHeads);
  HADAL_CHECK(shape.num_sms >= 1, "num_sms {}: at least 1", shape.num_sms);
  HADAL_CHECK(shape.split_pages >= 0, "split_pages {}: 0 (balanced) or more", shape.split_pages);
  const bool swapped = schedule.kernel == DecodeKernel::kSwapped;
  HADAL_CHECK(swapped ? schedule.tile_rows == 16 || schedule.tile_rows == 32 : schedule.tile_rows == 64,
              "tile_rows {}: 16 or 32 with keys on the M side, else 64", schedule.tile_rows);
  HADAL_CHECK(decode_kernel_takes(schedule.kernel, shape.layout),
              "KV format {} with scales {}: FP8 products are for e5m2, and e4m3 with a scale a token",
              static_cast<int>(shape.layout.format), static_cast<int>(shape.layout.scales));
  const int cluster = schedule.cluster;
  HADAL_CHECK(cluster >= 1 && cluster <= 16 && (cluster & (cluster - 1)) == 0 && (swapped || cluster == 1),
              "cluster {}: 1, 2, 4, 8 or 16, and 1 but with keys on the M side", cluster);
  HADAL_CHECK(cluster == 1 || shape.split_pages == 0, "fixed splits are for single blocks, not for {}",
              cluster);

  DecodeGeometry g;
  g.num_seqs = shape.num_seqs;
  g.kernel = schedule.kernel;
  g.rows = shape.num_heads * shape.q_len;
  g.tile_rows = schedule.tile_rows;
  g.num_tiles = tiles_of(g.rows, g.tile_rows);
  g.cluster = cluster;
  // Tall tiles of one part are launched in pairs where there are enough for it.
  const int together = !swapped && g.num_tiles % 2 == 0 ? 2 : 1;
  const int held = together * std::min(capacity.clusters[log2_of(cluster * together)],
                                       shape.num_sms / (cluster * together));
  g.num_parts = std::max(1, held / g.num_tiles);
  g.split_pages = shape.split_pages;
  g.fixed_splits = shape.split_pages > 0;
  // Fixed splits are merged in one order whatever the batch. Tall tiles have no registers left for a merge.
  g.merge_inside = swapped && !g.fixed_splits;
  g.pages_at_once = swapped ? 1 : 2;
  g.max_slots = g.fixed_splits ? shape.num_seqs * kDecodeMaxFixedSplits : int64_t{2} * g.num_parts;

  const double blocks = static_cast<double>(g.num_parts) * cluster;
  const auto page_bytes = static_cast<double>(shape.layout.page_bytes());
  const double lone = lone_page_ns(schedule, shape.layout);
  const double tall_rate = g.kernel == DecodeKernel::kTilesFp8 ? kFp8BytesPerNs : kTallBytesPerNs;
  g.page_ns = static_cast<int>(
      std::max({lone, page_bytes * blocks / (swapped ? kMemoryBytesPerNs : tall_rate),
                page_bytes * blocks * g.num_tiles / (swapped ? kCacheBytesPerNs : kTallCacheBytesPerNs)}));
  g.lone_page_ns = static_cast<int>(lone);
  g.sequence_ns = sequence_ns(schedule, shape.layout, g.num_tiles > 1);
  // A merge: the blocks wait for each other, then read each split's share of rows, written and read once.
  const int64_t blocks_each = g.num_parts / std::max<int64_t>(1, shape.num_seqs) * cluster;
  const auto waiting = static_cast<int>(20 * std::min<int64_t>(blocks_each, 128));
  g.merge_ns = !swapped ? 3500 : cluster == 1 ? 1200 : kClusterMergeNs + (cluster > 2 ? waiting : 0);
  if (g.tile_rows == 32) g.merge_ns += 2500;
  // Few rows are waited for; many take the memory's time, so many bytes a row and split.
  const bool halves = g.kernel == DecodeKernel::kTiles;
  const double row_ns = swapped ? (cluster == 1 ? 1.0 : 1.6) : halves ? 0.6 : 0.8;
  const double joined_bytes = static_cast<double>(shape.num_seqs) * g.rows * (halves ? 2048 : 4096);
  g.split_ns = static_cast<int>(20 + std::max(row_ns * g.rows, joined_bytes / 8000));
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
  view.meetings = reinterpret_cast<int32_t*>(take(seqs * 8 * g.num_tiles));
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
