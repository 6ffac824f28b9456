// Compares the trees of drafts that the device grows and verifies with the builder on the host and with the
// rules of kernels/params/draft_tree.h.
#include "kernels/cuda/speculation/trees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "engine/speculation/draft_tree_builder.h"
#include "tests/cuda/speculation/tree_step.h"

namespace hadal::testing {
namespace {

// Gives the guesses after a path, best first, as a function of the path's tokens. With few levels many drafts
// have the same confidence. Some lists end early, and some have a NaN.
std::vector<DraftGuess> guesses_after(const std::vector<int32_t>& path, int64_t topk, uint64_t seed,
                                      int levels) {
  std::seed_seq seeds(path.begin(), path.end());
  std::vector<uint32_t> mixed(1);
  seeds.generate(mixed.begin(), mixed.end());
  std::mt19937_64 random(mixed[0] + 7919 * seed);
  std::vector<DraftGuess> guesses(topk);
  std::vector<float> shares(topk);
  for (float& share : shares) share = -static_cast<float>(random() % levels) / 4;
  std::sort(shares.rbegin(), shares.rend());
  const auto count = static_cast<int64_t>(random() % 5 == 0 ? random() % (topk + 1) : topk);
  for (int64_t i = 0; i < count; ++i) guesses[i] = {static_cast<int32_t>(random() % 90), shares[i]};
  if (random() % 9 == 0 && count > 0) guesses[random() % count].log_share = std::nanf("");
  return guesses;
}
std::vector<DraftChoice> choices_of(const std::vector<DraftGuess>& guesses) {
  std::vector<DraftChoice> choices;
  for (const DraftGuess& guess : guesses) {
    if (guess.token < 0) break;
    choices.push_back({.token = guess.token, .log_share = guess.log_share});
  }
  return choices;
}

std::vector<int32_t> path_tokens(const DraftTreeBuilder& builder, int32_t draft) {
  std::vector<int32_t> path;
  for (; draft >= 0; draft = builder.draft(draft).parent)
    path.insert(path.begin(), builder.draft(draft).token);
  return path;
}

// Grows the trees of a step on the device and on the host, and compares every row. Returns the nodes.
std::vector<std::vector<DraftNode>> grow_and_compare(TreeStep& step, uint64_t seed, int levels) {
  const cuda::Trees& trees = step.trees;
  const int64_t topk = trees.shape.topk;
  const int64_t rows = trees.nextn_rows();
  const int count = trees.chains.num_items;
  std::vector<DraftTreeBuilder> builders(count);
  std::vector<DraftGuess> first((count + 1) * topk);
  for (int i = 0; i < count; ++i) {
    const int64_t num_drafts = step.verifies(i) ? std::max(step.num_rows[i] - 1, 0) : 0;
    builders[i].begin(trees.shape, num_drafts);
    if (step.items[i].slot < 0) continue;
    const std::vector<DraftGuess> after = guesses_after({i}, topk, seed, levels);
    std::copy(after.begin(), after.end(), first.begin() + step.items[i].slot * topk);
    if (num_drafts > 0) builders[i].add_children(-1, choices_of(after));
  }
  step.first_drafts.upload(first);
  std::vector<std::map<int32_t, int>> row_of(count);  // of drafts, in the latest pass
  for (int depth = 1; depth < trees.num_depths(); ++depth) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    BatchRows batch(step.num_nextn);
    cuda::grow_trees(trees, depth, batch.rows, test_launch());
    test_stream().synchronize();
    const HostRows got(batch);
    const auto hidden_rows = step.hidden_rows.download();
    const auto samples = step.sample_rows.download();
    std::vector<DraftGuess> next(step.num_nextn * topk);
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE("item " + std::to_string(i));
      DraftTreeBuilder& builder = builders[i];
      const std::span<const int32_t> span = builder.expand();
      const std::vector<int32_t> expanded(span.begin(), span.end());
      std::map<int32_t, int> rows_now;
      const int64_t length = step.positions[i];
      const int64_t tree = step.items[i].tree;
      EXPECT_TRUE(tree >= 0 || expanded.empty());
      for (int64_t r = 0; r < (tree >= 0 ? rows : 0); ++r) {
        const int64_t row = tree * rows + r;
        if (r >= std::ssize(expanded)) {
          got.expect_padding(row);
          EXPECT_EQ(samples[row].slot, -1);
          EXPECT_EQ(hidden_rows[row], 0);
          continue;
        }
        const DraftTreeBuilder::Draft draft = builder.draft(expanded[r]);
        got.expect_node(step, i, row, length - 1, length - 2 + depth, draft.record, draft.ancestors,
                        draft.token);
        EXPECT_EQ(draft.depth, depth);
        EXPECT_EQ(hidden_rows[row], depth == 1 ? step.items[i].slot
                                               : static_cast<int>(tree * rows) + row_of[i].at(draft.parent));
        EXPECT_EQ(samples[row].slot, step.items[i].slot);
        EXPECT_EQ(samples[row].logit_row, row);
        EXPECT_EQ(samples[row].position, length + depth);
        EXPECT_EQ(samples[row].mask_row, -1);
        rows_now[expanded[r]] = static_cast<int>(r);
        std::vector<int32_t> path = path_tokens(builder, expanded[r]);
        path.insert(path.begin(), i);
        const std::vector<DraftGuess> after = guesses_after(path, topk, seed, levels);
        std::copy(after.begin(), after.end(), next.begin() + row * topk);
      }
      for (size_t r = 0; r < expanded.size(); ++r) {
        const auto from =
            next.begin() + static_cast<std::ptrdiff_t>((tree * rows + static_cast<int64_t>(r)) * topk);
        builder.add_children(expanded[r], choices_of(std::vector<DraftGuess>(from, from + topk)));
      }
      row_of[i] = rows_now;
    }
    step.guesses.upload(next);
  }
  BatchRows batch(step.num_step_rows);
  cuda::verify_trees(trees, batch.rows, test_launch());
  test_stream().synchronize();
  const HostRows got(batch);
  const auto nodes = step.nodes.download();
  const auto num_rows = step.device_num_rows.download();
  std::vector<std::vector<DraftNode>> all(count);
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE("item " + std::to_string(i));
    if (!step.verifies(i)) {
      EXPECT_EQ(num_rows[i], step.num_rows[i]);
      continue;
    }
    const std::vector<DraftNode> expected = builders[i].nodes();
    EXPECT_EQ(num_rows[i], step.num_rows[i] == 0 ? 0 : 1 + std::ssize(expected));
    const int64_t n = step.positions[i] - 1;
    std::vector<uint64_t> masks = {extended_mask(0, 0)};
    for (int node = 0; node < step.items[i].max_rows; ++node) {
      SCOPED_TRACE("node " + std::to_string(node));
      const int64_t row = step.items[i].first_row + node;
      if (node >= num_rows[i]) {
        got.expect_padding(row);
        continue;
      }
      if (node == 0) {
        got.expect_node(step, i, row, n, n, 0, masks[0], step.last[step.items[i].slot]);
        continue;
      }
      const DraftNode& draft = nodes[i * trees.chains.max_width + node - 1];
      EXPECT_EQ(draft.token, expected[node - 1].token);
      EXPECT_EQ(draft.parent, expected[node - 1].parent);
      masks.push_back(extended_mask(masks[expected[node - 1].parent], node));
      got.expect_node(step, i, row, n, n + std::popcount(masks[node]) - 1, node, masks[node],
                      expected[node - 1].token);
    }
    all[i] = expected;
  }
  step.num_rows = num_rows;
  return all;
}

TEST(DeviceTrees, AreThoseOfTheBuilder) {
  for (const DraftShape& shape : {DraftShape{1, 3}, DraftShape{2, 2}, DraftShape{3, 4}, DraftShape{5, 8},
                                  DraftShape{4, 64}, DraftShape{9, 2}}) {
    for (const int width : {2, 3, 8, 33, 64}) {
      if (width > shape.most_nodes()) continue;
      for (const int levels : {1, 3, 1000}) {
        for (uint64_t seed = 0; seed < 3; ++seed) {
          SCOPED_TRACE(::testing::Message()
                       << "steps " << shape.num_steps << " topk " << shape.topk << " width " << width
                       << " seed " << seed << " levels " << levels);
          TreeStep step(shape, width, 13, seed);
          grow_and_compare(step, seed, levels);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Follows random paths: most tokens are those of a child, and some rows have NaN (token −1).
TEST(DeviceTrees, ThePathFollowsTheSampledTokens) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    TreeStep step({4, 3}, 12, 20, seed);
    const std::vector<std::vector<DraftNode>> nodes = grow_and_compare(step, seed, 1000);
    if (::testing::Test::HasFailure()) return;
    const int count = step.trees.chains.num_items;
    const int width = step.trees.chains.width;
    std::vector<cuda::SampleResult> results(width * count);
    std::vector<std::vector<int32_t>> paths(count);  // nodes whose rows are sampled
    std::vector<int32_t> at(count, 0);
    for (int depth = 0; depth <= step.trees.num_depths(); ++depth) {
      step.results.upload(results);
      cuda::choose_nodes(step.trees, depth, false, test_launch());
      test_stream().synchronize();
      const auto samples = step.sample_rows.download();
      const auto accepted = step.accepted.download();
      for (int i = 0; i < count; ++i) {
        SCOPED_TRACE("item " + std::to_string(i) + ", depth " + std::to_string(depth));
        const bool sampled = step.num_rows[i] > 0 && at[i] >= 0;
        EXPECT_EQ(accepted[depth * count + i], sampled ? at[i] : -1);
        EXPECT_EQ(samples[i].slot, sampled ? step.items[i].slot : -1);
        if (!sampled) {
          at[i] = -1;
          continue;
        }
        EXPECT_EQ(samples[i].logit_row, step.items[i].first_logit + at[i]);
        EXPECT_EQ(samples[i].position, step.positions[i] + depth);
        paths[i].push_back(at[i]);
        std::vector<int32_t> children;
        for (size_t j = 0; j < nodes[i].size(); ++j) {
          if (nodes[i][j].parent == at[i]) children.push_back(static_cast<int32_t>(j) + 1);
        }
        int32_t token = static_cast<int32_t>(step.random() % 90);
        if (!children.empty() && step.random() % 5 != 0)
          token = nodes[i][children[step.random() % children.size()] - 1].token;
        if (step.random() % 16 == 0) token = -1;
        results[depth * count + i].token = token;
        at[i] = -1;
        for (const int32_t child : children) {
          if (token >= 0 && at[i] < 0 && nodes[i][child - 1].token == token) at[i] = child;
        }
      }
    }
    step.results.upload(results);

    // The records and hidden states of the path move to their own places, and all others stay.
    for (const int64_t row_bytes : {1152, 656, 584}) {
      constexpr int kLayers = 3;
      const int64_t pool_bytes = count * kTreePages * kPageSize * row_bytes;
      std::vector<std::vector<uint8_t>> pools(kLayers, std::vector<uint8_t>(pool_bytes));
      for (auto& pool : pools) {
        for (uint8_t& byte : pool) byte = static_cast<uint8_t>(step.random());
      }
      std::vector<uint16_t> hidden(step.num_step_rows * kTreeHidden);
      for (uint16_t& value : hidden) value = static_cast<uint16_t>(step.random());
      std::vector<DeviceArray<uint8_t>> device_pools;
      std::vector<std::byte*> addresses;
      for (const auto& pool : pools) {
        device_pools.emplace_back(pool);
        addresses.push_back(reinterpret_cast<std::byte*>(device_pools.back().data()));
      }
      const DeviceArray<std::byte*> device_addresses(addresses);
      DeviceArray<uint16_t> device_hidden(hidden);
      cuda::move_accepted(step.trees,
                          {.pools = device_addresses.data(),
                           .num_layers = kLayers,
                           .row_bytes = row_bytes,
                           .target_hidden = device_hidden.data()},
                          test_launch());
      test_stream().synchronize();
      for (int i = 0; i < count; ++i) {
        if (!step.verifies(i)) continue;
        const int64_t n = step.positions[i] - 1;
        for (size_t depth = 1; depth < paths[i].size(); ++depth) {
          if (results[depth * count + i].token < 0) break;
          for (auto& pool : pools) {
            std::copy_n(pool.begin() + step.record_slot(i, n + paths[i][depth]) * row_bytes, row_bytes,
                        pool.begin() + step.record_slot(i, n + static_cast<int64_t>(depth)) * row_bytes);
          }
          std::copy_n(hidden.begin() + (step.items[i].first_row + paths[i][depth]) * kTreeHidden, kTreeHidden,
                      hidden.begin() + (step.items[i].first_row + static_cast<int64_t>(depth)) * kTreeHidden);
        }
      }
      for (int layer = 0; layer < kLayers; ++layer)
        EXPECT_TRUE(device_pools[layer].download() == pools[layer]) << "layer " << layer;
      EXPECT_EQ(device_hidden.download(), hidden);
    }

    // NextN follows the path's tokens at their own positions.
    BatchRows batch(step.num_step_rows);
    const DeviceArray<int32_t> guess_rows(count);
    cuda::follow_trees(step.trees, batch.rows, guess_rows.data(), test_launch());
    test_stream().synchronize();
    const HostRows got(batch);
    const auto lengths = step.lengths.download();
    const auto samples = step.sample_rows.download();
    const auto rows_of_guesses = guess_rows.download();
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE("item " + std::to_string(i));
      if (step.items[i].slot < 0) continue;
      int length = 0;
      while (length < static_cast<int>(paths[i].size()) && results[length * count + i].token >= 0) ++length;
      EXPECT_EQ(lengths[step.items[i].slot], length == 0 ? 0 : step.positions[i] + length);
      EXPECT_EQ(samples[i].slot, length == 0 ? -1 : step.items[i].slot);
      EXPECT_EQ(rows_of_guesses[i], step.items[i].first_row + std::max(length - 1, 0));
      if (!step.verifies(i)) continue;
      for (int r = 0; r < step.items[i].max_rows; ++r) {
        const int64_t row = step.items[i].first_row + r;
        if (r >= length) {
          got.expect_padding(row);
          continue;
        }
        const int64_t position = step.positions[i] - 1 + r;
        EXPECT_EQ(got.ids[row], results[r * count + i].token);
        EXPECT_EQ(got.positions[row], position);
        EXPECT_EQ(got.slots[row], step.record_slot(i, position));
        EXPECT_EQ(got.kv_len[row], position + 1);
      }
    }
  }
}

TEST(DeviceTrees, FirstDraftsAndTheirStateAreKeptBySlot) {
  TreeStep step({2, 3}, 4, 6, 1);
  std::vector<cuda::SampleRow> rows(std::max(step.num_nextn, 6));
  for (int i = 0; i < 6; ++i) rows[i].slot = i % 3 == 1 ? -1 : 6 - i;
  step.sample_rows.upload(rows);
  std::vector<DraftGuess> guesses(step.guesses.size());
  for (size_t i = 0; i < guesses.size(); ++i)
    guesses[i] = {static_cast<int32_t>(i), -0.5F * static_cast<float>(i)};
  step.guesses.upload(guesses);
  std::vector<uint16_t> next(6 * kTreeHidden);
  std::iota(next.begin(), next.end(), 100);
  const DeviceArray<uint16_t> device_next(next);
  cuda::keep_first_drafts(step.trees, device_next.data(), test_launch());
  test_stream().synchronize();
  const auto kept = step.first_drafts.download();
  const auto hidden = step.hidden.download();
  for (int slot = 1; slot <= 6; ++slot) {
    const int i = 6 - slot;
    for (int j = 0; j < 3; ++j) {
      if (i % 3 == 1) {
        EXPECT_EQ(kept[slot * 3 + j].token, -1) << "another slot's drafts were written";
        EXPECT_TRUE(std::isnan(kept[slot * 3 + j].log_share));
      } else {
        EXPECT_EQ(kept[slot * 3 + j].token, i * 3 + j);
        EXPECT_EQ(kept[slot * 3 + j].log_share, -0.5F * static_cast<float>(i * 3 + j));
      }
    }
    for (int64_t j = 0; j < kTreeHidden; ++j)
      EXPECT_EQ(hidden[slot * kTreeHidden + j], i % 3 == 1 ? 0xffff : next[i * kTreeHidden + j]);
  }
}

}  // namespace
}  // namespace hadal::testing
