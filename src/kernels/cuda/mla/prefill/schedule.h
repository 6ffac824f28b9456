// Orders the work of the prefill kernel's blocks. This header includes no CUDA header.
//
// An item is a tile of queries of one head, and a unit is one item or a pair of items. Blocks get units in
// waves, in reverse order in every other wave. The units of a call are ordered by cost, highest first, then
// by run:
// - items: they are ordered by the number of keys that the tile sees, then by run, then by head. The load is
//   even, and at any time the blocks are spread over all heads.
// - pairs: the longest tile of a (run, head) is paired with the shortest, the second longest with the second
//   shortest, and so on. All units of a run cost the same, so the units of one head can follow each other.
//   Few heads are then in use at a time, and their keys and values stay in the L2.
#pragma once

#include "kernels/cuda/mla/prefill/prefill.h"

namespace hadal::cuda {

inline constexpr int kPrefillQueryTile = 128;
inline constexpr int kPrefillKeyTile = 128;

struct PrefillSchedule {
  const PrefillSegmentRun* runs = nullptr;  // device memory
  int num_runs = 0;
  int num_heads = 0;
  bool pairs = false;
  int num_units = 0;  // units of all runs and heads
};

constexpr int prefill_tiles(const PrefillSegmentRun& run) {
  return (run.q_len + kPrefillQueryTile - 1) / kPrefillQueryTile;
}
// Returns the number of whole tiles of keys before a run's first query.
constexpr int prefill_base(const PrefillSegmentRun& run) {
  const int before = run.q_pos - run.k_pos;
  return (before < 0 ? 0 : before < run.k_len ? before : run.k_len) / kPrefillQueryTile;
}
constexpr int prefill_pairs(const PrefillSegmentRun& run) {
  return (prefill_tiles(run) + 1) / 2;
}

// Chooses between items and pairs by the work of the slowest of `num_blocks` blocks.
PrefillSchedule prefill_schedule(const DevicePrefillParams& params, int num_blocks);

}  // namespace hadal::cuda
