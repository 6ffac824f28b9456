// Finds a block's next item on the device, from the runs alone, in the order of mla/prefill/schedule.h.
#pragma once

#include "kernels/cuda/mla/prefill/schedule.h"

namespace hadal::cuda {

struct PrefillItem {
  int q_row = 0;  // row in q of the tile's first query
  int num_queries = 0;
  int first_limit =
      0;  // keys of the run that the first query may see, not limited by k_len; one more for each next query
  int k_row = 0;
  int k_len = 0;
  int num_key_tiles = 0;
  int head = 0;
};

// Returns the unit of this block in wave `wave`. If the result is ≥ num_units, the block has no unit in it.
__device__ __forceinline__ int prefill_unit_index(int wave) {
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  return wave * blocks + ((wave & 1) != 0 ? blocks - 1 - block : block);
}

// Returns a value that is equal in all lanes of the warp, in a form that lets the compiler infer this. The
// compiler then treats branches on the value as uniform, which products in flight across them require.
__device__ __forceinline__ int warp_uniform(int value) {
  return __shfl_sync(0xffffffffU, value, 0);
}

// Describes the levels of a run, and the units of one head on each level. Each item of a head has its own
// level; all pairs of a head have the same level.
struct PrefillLevels {
  int top;    // the highest level + 1
  int count;  // levels, down from the top
  int width;  // units on each level, per head
};
__device__ __forceinline__ PrefillLevels prefill_levels(const PrefillSegmentRun& run, bool pairs) {
  const int tiles = prefill_tiles(run);
  const int base = prefill_base(run);
  if (!pairs) return {base + tiles, tiles, 1};
  return {2 * base + tiles + 1, tiles > 0 ? 1 : 0, prefill_pairs(run)};
}

// Returns item `half` (0 or 1) of a unit; num_queries is 0 if there is no such item. It is called by a whole
// warp.
__device__ __forceinline__ PrefillItem prefill_item(const PrefillSchedule& s, int unit, int half) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int run_index = 0;
  int level = 0;
  int rank = unit;  // index among the units of the run's level
  if (s.num_runs == 1) {
    const PrefillLevels levels = prefill_levels(s.runs[0], s.pairs);
    const int a_level = levels.width * s.num_heads;
    level = levels.top - 1 - unit / a_level;
    rank = unit % a_level;
  } else {
    // Counts the units at level `from` or above.
    const auto count_from = [&](int from) {
      int count = 0;
      for (int r = lane; r < s.num_runs; r += 32) {
        const PrefillLevels levels = prefill_levels(s.runs[r], s.pairs);
        count += max(0, min(levels.count, levels.top - from)) * levels.width;
      }
      return __reduce_add_sync(0xffffffffU, count) * s.num_heads;
    };
    int top = 0;
    for (int r = lane; r < s.num_runs; r += 32) top = max(top, prefill_levels(s.runs[r], s.pairs).top);
    int above = __reduce_max_sync(0xffffffffU, top);  // count_from(above) ≤ unit < count_from(level)
    int before = 0;                                   // count_from(above)
    while (above - level > 1) {
      const int middle = (level + above) / 2;
      const int count = count_from(middle);
      if (count > unit) {
        level = middle;
      } else {
        above = middle;
        before = count;
      }
    }
    rank -= before;
    // This finds the run among the runs that have units on this level.
    for (int first = 0;; first += 32) {
      const int r = first + lane;
      int own = 0;
      if (r < s.num_runs) {
        const PrefillLevels levels = prefill_levels(s.runs[r], s.pairs);
        if (level < levels.top && level >= levels.top - levels.count) own = levels.width * s.num_heads;
      }
      int end = own;  // inclusive sum over the lanes
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffU, end, distance);
        if (lane >= distance) end += other;
      }
      const unsigned past = __ballot_sync(0xffffffffU, end > rank);
      if (past != 0) {
        const int chosen = __ffs(static_cast<int>(past)) - 1;
        rank -= __shfl_sync(0xffffffffU, end - own, chosen);
        run_index = first + chosen;
        break;
      }
      rank -= __shfl_sync(0xffffffffU, end, 31);
    }
  }

  const PrefillSegmentRun run = s.runs[run_index];
  const int tiles = prefill_tiles(run);
  int tile = level - prefill_base(run);
  int head = rank;
  bool exists = half == 0;
  if (s.pairs) {
    const int width = prefill_pairs(run);
    head = rank / width;
    const int shorter = rank % width;
    tile = half == 0 ? tiles - 1 - shorter : shorter;
    exists = half == 0 || tiles - 1 - shorter != shorter;
  }
  const int first_query = tile * kPrefillQueryTile;
  PrefillItem item;
  item.head = warp_uniform(head);
  item.q_row = warp_uniform(run.q_begin + first_query);
  item.num_queries = warp_uniform(exists ? min(kPrefillQueryTile, run.q_len - first_query) : 0);
  item.first_limit = warp_uniform(run.q_pos + first_query + 1 - run.k_pos);
  item.k_row = warp_uniform(run.k_begin);
  item.k_len = warp_uniform(run.k_len);
  const int visible = max(0, min(item.k_len, item.first_limit + item.num_queries - 1));
  item.num_key_tiles = item.num_queries > 0 ? (visible + kPrefillKeyTile - 1) / kPrefillKeyTile : 0;
  return item;
}

}  // namespace hadal::cuda
