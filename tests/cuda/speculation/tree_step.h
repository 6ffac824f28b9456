// Holds a step with trees of drafts for tests: random items, the arrays of cuda::Trees, and rows of batches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/speculation/trees.h"
#include "kernels/params/kv_layout.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {

using cuda::ChainItem;
using cuda::DraftGuess;

inline constexpr int64_t kTreeHidden = 6;
inline constexpr int64_t kTreePages = 8;  // of a sequence

// Holds the arrays of a step with `count` items of up to `width` nodes. Item i has slot count − i and
// verifies unless i % 5 == 3; its length and its number of rows are random.
struct TreeStep {
  TreeStep(const DraftShape& shape, int width, int count, uint64_t seed) : random(seed) {
    trees.shape = shape;
    cuda::Chains& c = trees.chains;
    c.num_items = count;
    c.width = width;
    c.max_width = width + 3;
    int32_t row = 2;  // rows of other work
    int32_t logit = 1;
    for (int i = 0; i < count; ++i) {
      ChainItem item{
          .slot = i % 7 == 6 ? -1 : count - i, .seq_idx = i, .first_row = row, .first_logit = logit};
      const auto rows = static_cast<int32_t>(i % 5 == 3 ? 1 : 1 + random() % width);
      item.verifies = i % 5 == 3 ? 0 : 1;
      item.max_rows = rows;
      if (item.verifies != 0 && rows > 1) item.tree = trees.num_trees++;
      num_rows.push_back(item.slot < 0 ? 0 : random() % 8 == 0 && item.verifies != 0 ? 0 : rows);
      positions.push_back(1 + static_cast<int64_t>(random() % 200));
      row += rows;
      logit += rows;
      items.push_back(item);
    }
    num_step_rows = row + 1;
    num_nextn = static_cast<int>(trees.num_trees * trees.nextn_rows());
    std::vector<int32_t> pages(count * kTreePages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
    table = pages;
    for (int slot = 0; slot <= count; ++slot) last.push_back(1000 + slot);

    device_items = DeviceArray<ChainItem>(items);
    device_num_rows = DeviceArray<int32_t>(num_rows);
    device_positions = DeviceArray<int64_t>(positions);
    device_table = DeviceArray<int32_t>(table);
    device_last = DeviceArray<int32_t>(last);
    sample_rows = DeviceArray<cuda::SampleRow>(std::max(num_nextn, count));
    hidden_rows = DeviceArray<int32_t>(std::max(num_nextn, count));
    first_drafts = DeviceArray<DraftGuess>((count + 1) * shape.topk);
    guesses = DeviceArray<DraftGuess>(std::max<size_t>(num_nextn, count) * shape.topk);
    best = DeviceArray<cuda::TreeDraft>(count * kMaxDraftNodes);
    num_best = DeviceArray<int32_t>(count);
    num_made = DeviceArray<int32_t>(count);
    nodes = DeviceArray<DraftNode>(count * c.max_width);
    accepted = DeviceArray<int32_t>(count * width);
    results = DeviceArray<cuda::SampleResult>(count * width);
    lengths = DeviceArray<int32_t>(count + 1);
    hidden = DeviceArray<uint16_t>((count + 1) * kTreeHidden);
    c.items = device_items.data();
    c.num_rows = device_num_rows.data();
    c.positions = device_positions.data();
    c.page_table = device_table.data();
    c.page_table_stride = kTreePages;
    c.last_token = device_last.data();
    c.sample_rows = sample_rows.data();
    c.hidden_rows = hidden_rows.data();
    c.results = results.data();
    c.lengths = lengths.data();
    c.hidden = hidden.data();
    c.hidden_size = kTreeHidden;
    trees.first_drafts = first_drafts.data();
    trees.guesses = guesses.data();
    trees.best = best.data();
    trees.num_best = num_best.data();
    trees.num_made = num_made.data();
    trees.nodes = nodes.data();
    trees.accepted = accepted.data();
  }

  int64_t record_slot(int item, int64_t position) const {
    return int64_t{table[item * kTreePages + position / kPageSize]} * kPageSize + position % kPageSize;
  }
  bool verifies(int i) const { return items[i].slot >= 0 && items[i].verifies != 0; }

  std::mt19937_64 random;
  cuda::Trees trees;
  std::vector<ChainItem> items;
  std::vector<int32_t> num_rows, table, last;
  std::vector<int64_t> positions;
  int num_step_rows = 0;
  int num_nextn = 0;
  DeviceArray<ChainItem> device_items;
  DeviceArray<int32_t> device_num_rows, device_table, device_last, hidden_rows, num_best, num_made, accepted,
      lengths;
  DeviceArray<int64_t> device_positions;
  DeviceArray<cuda::SampleRow> sample_rows;
  DeviceArray<DraftGuess> first_drafts, guesses;
  DeviceArray<cuda::TreeDraft> best;
  DeviceArray<DraftNode> nodes;
  DeviceArray<cuda::SampleResult> results;
  DeviceArray<uint16_t> hidden;
};

// Holds the rows of a batch on the device.
struct BatchRows {
  explicit BatchRows(int count)
      : ids(count), positions(count), kv_len(count), seq_idx(count), slots(count), masks(count) {
    rows = {.token_ids = ids.data(),
            .positions = positions.data(),
            .slots = slots.data(),
            .seq_idx = seq_idx.data(),
            .kv_len = kv_len.data(),
            .newest_seen = masks.data()};
  }
  DeviceArray<int32_t> ids, positions, kv_len, seq_idx;
  DeviceArray<int64_t> slots;
  DeviceArray<uint64_t> masks;
  cuda::ChainRows rows;
};
// Holds them on the host.
struct HostRows {
  explicit HostRows(const BatchRows& on_device)
      : ids(on_device.ids.download()),
        positions(on_device.positions.download()),
        kv_len(on_device.kv_len.download()),
        seq_idx(on_device.seq_idx.download()),
        slots(on_device.slots.download()),
        masks(on_device.masks.download()) {}
  std::vector<int32_t> ids, positions, kv_len, seq_idx;
  std::vector<int64_t> slots;
  std::vector<uint64_t> masks;

  // Expects the row of a node whose root is at position n of item i, and whose path has the mask `ancestors`.
  void expect_node(const TreeStep& step, int i, int64_t row, int64_t n, int64_t position, int place,
                   uint64_t ancestors, int32_t token) const {
    EXPECT_EQ(ids[row], token);
    EXPECT_EQ(positions[row], position);
    EXPECT_EQ(slots[row], step.record_slot(i, n + place));
    EXPECT_EQ(seq_idx[row], step.items[i].seq_idx);
    // The row sees all places before the root's, and those of its mask.
    const int64_t end = kv_len[row];
    ASSERT_GE(end, n + place + 1);
    for (int64_t at = std::max<int64_t>(0, end - kMaxDraftNodes); at < end; ++at) {
      const bool seen = (masks[row] >> (at - end + kMaxDraftNodes) & 1) != 0;
      const bool expected = at < n || (at - n < kMaxDraftNodes && (ancestors >> (at - n) & 1) != 0);
      EXPECT_EQ(seen, expected) << "place " << at << ", root " << n;
    }
    EXPECT_EQ(ancestors >> 1 >> (end - n - 1), 0U) << "the mask ends before a record of the path";
  }
  void expect_padding(int64_t row) const {
    EXPECT_EQ(ids[row], 0);
    EXPECT_EQ(slots[row], -1);
    EXPECT_EQ(kv_len[row], 0);
  }
};

}  // namespace hadal::testing
