// Which (run, head, query tile) a block of the prefill kernel works on, found on the device from the runs
// alone.
//
// Items are ordered by groups of heads, whose keys and values stay in the L2 together; in a group by the
// tile's reach (how many keys it sees) in steps of a tile, longest first, so that a wave's stragglers are
// short; then by run, then by head. Blocks take items in waves, every other wave backwards: each block gets
// long and short ones.
#pragma once

#include "kernels/cuda/mla/prefill.h"

namespace hadal::cuda {

struct PrefillSchedule {
  const PrefillSegmentRun* runs = nullptr;
  int num_runs = 0;
  int num_heads = 0;
  int heads_per_group = 0;
  int num_query_tiles = 0;  // over all runs
  int num_items = 0;        // num_query_tiles · num_heads
};

struct PrefillItem {
  int q_row = 0;  // row of q of the tile's first query
  int num_queries = 0;
  int first_limit =
      0;  // keys that the first query would see were there enough; each next query sees one more
  int k_row = 0;
  int k_len = 0;
  int num_key_tiles = 0;
  int head = 0;
};

// Item of this block in wave `wave`; ≥ num_items: none.
__device__ __forceinline__ int prefill_item_index(int wave) {
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  return wave * blocks + ((wave & 1) != 0 ? blocks - 1 - block : block);
}

template <int kQueryTile>
__device__ __forceinline__ int prefill_tiles(const PrefillSegmentRun& run) {
  return (run.q_len + kQueryTile - 1) / kQueryTile;
}
// Reach of the first tile of a run, in tiles of keys that lie before it.
template <int kQueryTile>
__device__ __forceinline__ int prefill_base_level(const PrefillSegmentRun& run) {
  return max(0, min(run.q_pos - run.k_pos, run.k_len)) / kQueryTile;
}

// A value that all lanes of the warp agree on, in a form that lets the compiler know: branches on it are not
// divergent, which products in flight across them require.
__device__ __forceinline__ int warp_uniform(int value) {
  return __shfl_sync(0xffffffffU, value, 0);
}

// By a whole warp.
template <int kQueryTile, int kKeyTile>
__device__ __forceinline__ PrefillItem prefill_item(const PrefillSchedule& s, int index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group_items = s.num_query_tiles * s.heads_per_group;
  const int group = index / group_items;
  const int heads = min(s.heads_per_group, s.num_heads - group * s.heads_per_group);
  int rank = (index - group * group_items) / heads;  // of the tile, longest first
  PrefillItem item;
  item.head = group * s.heads_per_group + (index - group * group_items) % heads;

  int run_index = 0;
  int tile = s.num_query_tiles - 1 - rank;
  if (s.num_runs > 1) {
    // Tiles at level `from` or above.
    const auto count_from = [&](int from) {
      int count = 0;
      for (int r = lane; r < s.num_runs; r += 32) {
        const int tiles = prefill_tiles<kQueryTile>(s.runs[r]);
        count += max(0, min(tiles, prefill_base_level<kQueryTile>(s.runs[r]) + tiles - from));
      }
      return __reduce_add_sync(0xffffffffU, count);
    };
    int top = 0;
    for (int r = lane; r < s.num_runs; r += 32) {
      top = max(top, prefill_base_level<kQueryTile>(s.runs[r]) + prefill_tiles<kQueryTile>(s.runs[r]));
    }
    int level = 0;                                    // count_from(level) > rank
    int above = __reduce_max_sync(0xffffffffU, top);  // count_from(above) ≤ rank
    int before = 0;                                   // count_from(above)
    while (above - level > 1) {
      const int middle = (level + above) / 2;
      const int count = count_from(middle);
      if (count > rank) {
        level = middle;
      } else {
        above = middle;
        before = count;
      }
    }
    rank -= before;  // among the runs with a tile at `level`
    for (int first = 0;; first += 32) {
      const int r = first + lane;
      int own = -1;
      if (r < s.num_runs) {
        own = level - prefill_base_level<kQueryTile>(s.runs[r]);
        if (own >= prefill_tiles<kQueryTile>(s.runs[r])) own = -1;
      }
      const unsigned has = __ballot_sync(0xffffffffU, own >= 0);
      if (rank < __popc(has)) {
        const unsigned below = has & ((1U << lane) - 1U);
        const int chosen =
            __ffs(static_cast<int>(__ballot_sync(0xffffffffU, own >= 0 && __popc(below) == rank))) - 1;
        run_index = first + chosen;
        tile = __shfl_sync(0xffffffffU, own, chosen);
        break;
      }
      rank -= __popc(has);
    }
  }

  const PrefillSegmentRun run = s.runs[run_index];
  const int first_query = tile * kQueryTile;
  item.q_row = warp_uniform(run.q_begin + first_query);
  item.num_queries = warp_uniform(min(kQueryTile, run.q_len - first_query));
  item.first_limit = warp_uniform(run.q_pos + first_query + 1 - run.k_pos);
  item.k_row = warp_uniform(run.k_begin);
  item.k_len = warp_uniform(run.k_len);
  const int visible = max(0, min(item.k_len, item.first_limit + item.num_queries - 1));
  item.num_key_tiles = (visible + kKeyTile - 1) / kKeyTile;
  return item;
}

}  // namespace hadal::cuda
