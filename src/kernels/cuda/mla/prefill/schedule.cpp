#include "kernels/cuda/mla/prefill/schedule.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace hadal::cuda {
namespace {

// An item costs as much as this many key tiles in addition to its own, because its first scores and its
// stores overlap with nothing.
constexpr int kItemOverhead = 1;

struct Units {
  int level = 0;  // units are ordered by descending level
  int cost = 0;   // cost of each unit
  int64_t count = 0;
};

// Returns the total cost of the busiest block.
int64_t longest_queue(std::vector<Units>& units, int num_blocks) {
  std::stable_sort(units.begin(), units.end(),
                   [](const Units& a, const Units& b) { return a.level > b.level; });
  std::vector<int64_t> queues(num_blocks);
  int block = 0;
  int step = 1;
  for (const Units& some : units) {
    for (int64_t i = 0; i < some.count; ++i) {
      queues[block] += some.cost;
      if (block + step < 0 || block + step == num_blocks) {
        step = -step;  // the next wave begins with the block that ended this one
      } else {
        block += step;
      }
    }
  }
  return *std::max_element(queues.begin(), queues.end());
}

}  // namespace

PrefillSchedule prefill_schedule(const DevicePrefillParams& p, int num_blocks) {
  PrefillSchedule schedule;
  schedule.runs = p.runs;
  schedule.num_runs = p.num_runs;
  schedule.num_heads = p.num_heads;
  std::vector<Units> items;
  std::vector<Units> pairs;
  int64_t num_tiles = 0;
  int64_t num_pairs = 0;
  int64_t streams = 0;  // pairs (run, head) whose keys are in use at the same time if units are items
  for (int r = 0; r < p.num_runs; ++r) {
    const PrefillSegmentRun& run = p.host_runs[r];
    const int tiles = prefill_tiles(run);
    num_tiles += tiles;
    num_pairs += prefill_pairs(run);
    streams += tiles > 0 ? p.num_heads : 0;
  }
  const int64_t num_items = num_tiles * p.num_heads;
  // With many waves the load is even with items and with pairs, so pairs are used, which keep keys in the L2.
  constexpr int64_t kManyWaves = 40;
  schedule.pairs = num_items > kManyWaves * num_blocks;
  if (!schedule.pairs && num_items > num_blocks) {
    for (int r = 0; r < p.num_runs; ++r) {
      const PrefillSegmentRun& run = p.host_runs[r];
      const int tiles = prefill_tiles(run);
      const int base = prefill_base(run);
      for (int t = 0; t < tiles; ++t) {
        items.push_back({.level = base + t, .cost = base + t + 1 + kItemOverhead, .count = p.num_heads});
      }
      const int pair_cost = 2 * base + tiles + 1 + 2 * kItemOverhead;
      const int64_t even = tiles / 2;
      pairs.push_back({.level = 2 * base + tiles, .cost = pair_cost, .count = even * p.num_heads});
      if (tiles % 2 != 0) {
        pairs.push_back({.level = 2 * base + tiles, .cost = (pair_cost + 1) / 2, .count = p.num_heads});
      }
    }
    // If the keys do not stay in the L2, the kernel is up to a quarter slower (measured).
    constexpr int64_t kResidentBytes = int64_t{32} << 20;
    const int64_t kv_bytes = p.num_keys * p.num_heads * kPrefillKvRow * static_cast<int64_t>(sizeof(bf16));
    const int64_t spread = std::clamp<int64_t>(std::min<int64_t>(streams, num_blocks) - 16, 0, 112);
    const double penalty = kv_bytes > kResidentBytes ? 1.0 + 0.25 * static_cast<double>(spread) / 112.0 : 1.0;
    schedule.pairs = static_cast<double>(longest_queue(pairs, num_blocks)) <
                     static_cast<double>(longest_queue(items, num_blocks)) * penalty;
  }
  schedule.num_units = static_cast<int>((schedule.pairs ? num_pairs : num_tiles) * p.num_heads);
  return schedule;
}

}  // namespace hadal::cuda
