// Decides how the work of decode attention is divided: how rows are tiled, which kernel is used, how many
// parts a batch's pages are divided into, and where the plan and the partial results lie. These decisions are
// pure functions on the host (geometry.cpp), which are also built and tested without CUDA. The decisions that
// need the lengths are made on the device (plan.cu).
//
// The rows of one sequence are its q_len · heads queries (row = query · heads + head). For each
// tile of rows a part has `cluster` blocks, which share the part's pages, so that they read every key once.
// The grid is num_parts × num_tiles × cluster persistent blocks, all resident at once; block b is member b %
// cluster of tile (b / cluster) % num_tiles of part b / cluster / num_tiles. The plan gives each part a run
// of pages over consecutive sequences. If a border between parts lies inside a sequence, the sequence is
// split, and each split stores a partial result in a slot. The swapped kernel's blocks join a sequence's
// slots after all splits have arrived (mla/decode/swapped/merge.cuh). With fixed splits, and after tiles of
// 64 rows, a second kernel joins them (merge.cu).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/indexer/plan.h"
#include "kernels/cuda/mla/mla.h"

namespace hadal::cuda {

inline constexpr int kDecodeMaxQuery = 8;
inline constexpr int kDecodeMaxHeads = 128;
inline constexpr int kDecodeMaxSeqs = 16384;
// With split_pages > 0, the split length of a sequence is doubled until it has at most this many splits. The
// split length thus depends on the sequence's own length alone, and the scratch is bounded.
inline constexpr int kDecodeMaxFixedSplits = 32;

enum class DecodeKernel : uint8_t {
  kSwapped,   // keys on the M side of wgmma, 16 or 32 rows per tile, any format
              // (mla/decode/swapped/kernel.cuh)
  kTiles,     // 64 rows per tile on the M side, 16-bit wgmma (mla/decode/tiles/kernel.cuh); FP8 is widened to
              // float16
  kTilesFp8,  // 64 rows per tile, FP8 wgmma for the latents (mla/decode/fp8_products/kernel.cuh): e5m2, and
              // e4m3 with kPerToken
};

inline constexpr int kDecodeClusterSizes = 5;
// Holds how many clusters of 1, 2, 4, 8 and 16 blocks of the swapped kernel the device runs at once, with one
// block per multiprocessor. The numbers are also right for 64-row tiles, because their blocks are as large
// and form clusters of one or two.
struct ClusterCapacity {
  int clusters[kDecodeClusterSizes] = {};
};
ClusterCapacity full_capacity(int num_sms);  // num_sms / blocks, as if any multiprocessors made a cluster

// Returns true if a kernel supports a cache.
constexpr bool decode_kernel_supports(DecodeKernel kernel, const KvLayout& layout) {
  if (kernel != DecodeKernel::kTilesFp8) return true;
  return layout.format == KvFormat::kFp8E5M2 ||
         (layout.format == KvFormat::kFp8E4M3 && layout.scales == KvScales::kPerToken);
}

struct DecodeSchedule {
  DecodeKernel kernel = DecodeKernel::kSwapped;
  int tile_rows = 16;  // 16 or 32 (kSwapped), 64
  int cluster = 1;     // blocks of a part's tile that share its pages and join their results in shared memory
};
// Returns the fastest schedule, by measurement (docs/kernels/cuda-mla-decode.md). With fixed splits it does
// not depend on num_seqs.
DecodeSchedule decode_schedule(const MlaPlanShape& shape, const ClusterCapacity& capacity);
// Returns all schedules that support a cache.
std::vector<DecodeSchedule> decode_schedules(const KvLayout& layout);
// Implements mla_decode_most_bytes (mla.h) for a given capacity, without the scratch of selections.
MlaDecodeBytes decode_most_bytes(const MlaPlanShape& shape, const ClusterCapacity& capacity);

// Returns the number of keys to which a row of kv_len attends through its page table. With a selection
// (index_topk > 0) it is 0 for a row of more than index_topk keys, because the sparse kernel
// (mla/plan/sparse.h) works on that row.
constexpr int planned_keys(int32_t kv_len, int index_topk) {
  return kv_len <= 0 || (index_topk > 0 && selects_keys(kv_len, index_topk)) ? 0 : kv_len;
}

struct DecodeGeometry {
  int64_t num_seqs = 0;
  DecodeKernel kernel = DecodeKernel::kSwapped;
  int rows = 0;       // rows of a sequence
  int tile_rows = 0;  // 16, 32, 64
  int num_tiles = 0;
  int cluster = 1;
  int num_parts = 0;           // num_parts · num_tiles · cluster blocks are resident at once
  int pages_at_once = 1;       // pages that a block works on at once
  int split_pages = 0;         // as in the plan's shape
  bool fixed_splits = false;   // split lengths do not depend on the batch
  bool merge_inside = true;    // the kernel joins split sequences itself; else mla_merge follows
  bool half_partials = false;  // partial results are scaled float16 (mla/decode/shared/partials.cuh); else
                               // float32
  int64_t max_slots = 0;
  int index_topk = 0;  // as in the plan's shape
  // The plan compares ways to divide the work by these times, in ns: a page in a block while all blocks are
  // active, and while few blocks are; a sequence besides its pages; a merge of splits, and each split in it.
  // They are derived from the measured times in mla/plan/fitted.h.
  int page_ns = 0;
  int lone_page_ns = 0;
  int sequence_ns = 0;
  int merge_ns = 0;
  int split_ns = 0;
};
DecodeGeometry decode_geometry(const MlaPlanShape& shape, const DecodeSchedule& schedule,
                               const ClusterCapacity& capacity);

struct DecodeSequence {
  int32_t num_splits;   // 1: written to `out` directly
  int32_t first_slot;   // slot of its first partial result
  int32_t split_pages;  // pages of every split but the last; 0: one split per part
  int32_t first_part;   // the first part that works on it
};
// Holds a part's pages, from (begin_seq, begin_page) up to, not including, (end_seq, end_page). It also holds
// the split and the length of begin_seq, so that a block can start after one read of the plan.
struct alignas(16) DecodePart {
  int32_t begin_seq, begin_page, end_seq, end_page;
  DecodeSequence split;
  int32_t num_keys;
};
// Describes a split sequence for the merge.
struct alignas(16) DecodeMerge {
  int32_t seq, num_splits, first_slot;
};
// Points to the plan's arrays in device memory.
struct DecodePlanView {
  int32_t* num_merges;  // [1] (padded to 16 bytes); written, like `merges`, only if the merge kernel follows
  DecodePart* parts;    // [num_parts]
  DecodeSequence* sequences;  // [num_seqs]
  int32_t* arrivals;          // [num_seqs, num_tiles, 2]: {blocks arrived since the plan was made, unused}
  DecodeMerge* merges;        // [num_seqs]: the sequences of more than one split, ascending
};
DecodePlanView decode_plan_view(const DecodeGeometry& geometry, const void* plan);
size_t decode_plan_bytes(const DecodeGeometry& geometry);
size_t decode_scratch_bytes(const DecodeGeometry& geometry);
// This is the size of a row of a split's result that the swapped kernel merges itself: 512 float32, the row's
// maximum and its sum.
inline constexpr int kDecodePartialRowBytes = 4 * kKvLatentDim + 8;
// Returns how many rows of 512 float32 a slot of partial_out has: the sequence's rows, or as many as hold
// whole tiles of rows of kDecodePartialRowBytes.
int decode_slot_rows(const DecodeGeometry& geometry);

}  // namespace hadal::cuda
