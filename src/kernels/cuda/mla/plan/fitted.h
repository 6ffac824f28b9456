// Holds the measured times by which the plan compares ways to divide the work of decode attention, in a table
// for each family of kernels. They affect the speed of a call, and its last bits, because schedules add in
// different orders. Results are right with any values.
//
// The card is one NVIDIA H200 (132 multiprocessors). The units are nanoseconds, and bytes per nanosecond of
// the whole device. The times are fitted to the output of these commands (FORMAT: bf16, f16, e4m3, e4m3/128,
// e5m2):
//
//   cuda_mla_schedules_bench FORMAT --splits                 calls back to back
//   cuda_mla_schedules_bench FORMAT --cuts --row 128,1,0,16  ragged lengths, for DecodeTimes::sequence
//   cuda_mla_step_bench FORMAT --splits                      among a layer's other kernels, for ..._crowded
//                                                            and ..._in_step
//
// Both benches mark with ! a schedule that is at least 5 % faster than the schedule chosen by these times.
#pragma once

#include "kernels/cuda/mla/plan/geometry.h"

namespace hadal::cuda::fitted {

// Holds the bandwidth in bytes per ns at which pages are loaded while all blocks load.
struct StreamRates {
  double memory;
  double cache;  // of the L2, if several tiles read a page
};
inline constexpr StreamRates kSwappedRates = {4450, 5500};
inline constexpr StreamRates kTilesRates = {4550, 6000};
inline constexpr StreamRates kTilesFp8Rates = {2800, 6000};

// Holds the times in ns of a kernel whose blocks form no clusters and have one tile of rows.
struct DecodeTimes {
  double page;          // a page in a block while few blocks are active: its arithmetic, or its load at the
                        // bandwidth of one multiprocessor
  double ends;          // before a block's first page and after its last
  double ends_crowded;  // the same if the previous kernel occupies all multiprocessors: a block begins, and
                        // loads its first pages, only after a block of that kernel has ended
  double first_page;    // the additional time of the first page of a call
  int sequence;      // a sequence besides its pages, as the plan weighs it: see sequence_ns in geometry.cpp
  double piece;      // the same, for the choice of a schedule, when all blocks have equally many pieces
  int merge;         // joining the splits of a sequence
  double split_row;  // reading one row of a split in a merge
};

// These are the times of the swapped kernel, by rows of a tile.
//                                                  page  ends  crowded  first  sequence  piece  merge  row
inline constexpr DecodeTimes kSwapped16Rows16Bit = {1520, 3500, 6000, 0, 14000, 5000, 1200, 1.0};
inline constexpr DecodeTimes kSwapped16RowsE4M3 = {1400, 3500, 6000, 0, 14000, 5000, 1200, 1.0};
inline constexpr DecodeTimes kSwapped16RowsE5M2 = {1150, 3500, 6000, 0, 8500, 5000, 1200, 1.0};
inline constexpr DecodeTimes kSwapped32Rows16Bit = {2230, 7000, 9500, 0, 18000, 10000, 3700, 1.0};
inline constexpr DecodeTimes kSwapped32RowsE4M3 = {2270, 7000, 9500, 0, 18000, 10000, 3700, 1.0};
inline constexpr DecodeTimes kSwapped32RowsE5M2 = {1900, 7000, 9500, 0, 12500, 10000, 3700, 1.0};
// These are the times of tiles of 64 rows with 16-bit products. FP8 records are widened; first_page is the
// time of widening the first page, before any product can run.
inline constexpr DecodeTimes kTiles16Bit = {1600, 4000, 7500, 0, 7000, 5500, 3500, 0.6};
inline constexpr DecodeTimes kTilesE4M3 = {4300, 4000, 7500, 3000, 7000, 5500, 3500, 0.6};
inline constexpr DecodeTimes kTilesE5M2 = {2600, 4000, 7500, 3000, 7000, 5500, 3500, 0.6};
// These are the times of tiles of 64 rows with FP8 products.
inline constexpr DecodeTimes kTilesFp8E4M3 = {1500, 8000, 10500, 0, 18000, 10000, 3500, 0.8};
inline constexpr DecodeTimes kTilesFp8E5M2 = {1350, 8000, 10500, 0, 18000, 10000, 3500, 0.8};

inline const DecodeTimes& times_of(const DecodeSchedule& schedule, const KvLayout& layout) {
  const auto by_format = [&](const DecodeTimes& of_16_bits, const DecodeTimes& e4m3,
                             const DecodeTimes& e5m2) -> const DecodeTimes& {
    return layout.format == KvFormat::kFp8E5M2   ? e5m2
           : layout.format == KvFormat::kFp8E4M3 ? e4m3
                                                 : of_16_bits;
  };
  switch (schedule.kernel) {
    case DecodeKernel::kTiles:
      return by_format(kTiles16Bit, kTilesE4M3, kTilesE5M2);
    case DecodeKernel::kTilesFp8:
      return layout.format == KvFormat::kFp8E5M2 ? kTilesFp8E5M2 : kTilesFp8E4M3;
    default:
      return schedule.tile_rows == 16
                 ? by_format(kSwapped16Rows16Bit, kSwapped16RowsE4M3, kSwapped16RowsE5M2)
                 : by_format(kSwapped32Rows16Bit, kSwapped32RowsE4M3, kSwapped32RowsE5M2);
  }
}

// Holds what is added to DecodeTimes if blocks of the swapped kernel form clusters, in ns.
struct ClusterTimes {
  double ends = 1200;
  double ends_crowded = 200;   // from four blocks on; for two blocks, `ends` is added also when crowded
  double ends_in_step = 2000;  // because a cluster begins only when there is room for all its blocks
  int sequence = -2000;
  int merge = 400;              // for splits in clusters that begin together
  int merge_block = 20;         // from four blocks on, for each block that waits for the others
  int merge_most_blocks = 128;  // merge_block counts for at most this many blocks
  double split_row = 1.6;       // this replaces DecodeTimes::split_row
};
inline constexpr ClusterTimes kClusters;

// Holds the additional time of several tiles of rows, which read the same pages, over one, in ns.
struct SeveralTilesTimes {
  double swapped_ends = 1500;
  double swapped_ends_in_clusters = 1000;
  // In a step the pages are not in the L2 yet.
  double swapped_in_step_16_bit = 1500;
  double swapped_in_step_fp8 = 6000;
  int tiles_fp8_sequence = -8000;
};
inline constexpr SeveralTilesTimes kSeveralTiles;

// In a merge, reading a split costs kSplit ns, and in addition the larger of its rows' time (split_row) and
// its bytes' time at kSplitBytesPerNs.
inline constexpr double kSplit = 20;
inline constexpr double kSplitBytesPerNs = 8000;

// With this many sequences or more, calls back to back are memory-bound. Tiles of 64 rows then read a 16-bit
// cache faster than the swapped kernel does, however few of their rows are filled.
inline constexpr int kManySeqs = 32;

}  // namespace hadal::cuda::fitted
