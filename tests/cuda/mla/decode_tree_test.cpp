// Tests MLA decode with masks of the newest records, as rows of draft trees have them. What a row attends to
// follows from its mask: it gives the result that it has in a sequence whose records are those of its path,
// one after the other. Records that no row of a sequence sees are NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/params/draft_tree.h"
#include "tests/cuda/mla/decode_schedule_case.h"

namespace hadal::testing {
namespace {

using cuda::DecodeSchedule;

constexpr uint64_t kTreeSeed = 20261130;

// The root's record is at the place of position `root`, and those of the other nodes follow it. A sequence
// has the rows of `group` nodes.
struct TreeShape {
  int root = 0;
  int num_nodes = 1;
  int group = 1;

  auto operator<=>(const TreeShape&) const = default;
  int num_groups() const { return (num_nodes + group - 1) / group; }
  int end_of(int group_idx) const { return std::min(num_nodes, (group_idx + 1) * group); }
  // The rows of padding in the last group repeat its last node.
  int node_of(int row) const { return std::min(row, num_nodes - 1); }
};

// Holds a cache whose first sequences are those of the tree, one for each group of nodes, and whose other
// sequences are the paths of the nodes.
struct TreeCache {
  TreeCache(int layout_idx, const TreeShape& tree)
      : shape(tree),
        parents(random_parents(tree.num_nodes)),
        cache(lengths(), kLayouts[layout_idx].second, kTreeSeed, {.flat = true}) {
    std::vector<std::vector<std::byte>> records = random_records();
    for (int group = 0; group < shape.num_groups(); ++group) {
      uint64_t seen = 0;
      for (int row = group * shape.group; row < shape.end_of(group); ++row) seen |= ancestors(row);
      for (int place = 0; place < shape.end_of(group); ++place) {
        if ((seen >> place & 1) == 0) {
          std::memset(record(group, shape.root + place), 0xff, cache.layout.row_bytes());
        } else {
          put(records[shape.root + place], group, shape.root + place);
        }
      }
      for (int i = 0; i < shape.root; ++i) put(records[i], group, i);
    }
    for (int node = 0; node < shape.num_nodes; ++node) {
      const std::vector<int> nodes = path(node);
      for (int i = 0; i < shape.root; ++i) put(records[i], shape.num_groups() + node, i);
      for (size_t i = 0; i < nodes.size(); ++i) {
        put(records[shape.root + nodes[i]], shape.num_groups() + node, shape.root + static_cast<int>(i));
      }
    }
    cache.device_pool.upload(cache.pool);
  }

  // Returns the nodes from the root to `node`.
  std::vector<int> path(int node) const {
    std::vector<int> nodes;
    for (; node >= 0; node = parents[node]) nodes.insert(nodes.begin(), node);
    return nodes;
  }
  uint64_t ancestors(int node) const {
    uint64_t mask = 0;
    for (const int ancestor : path(node)) mask |= uint64_t{1} << ancestor;
    return mask;
  }

  TreeShape shape;
  std::vector<int> parents;  // of each node; −1: node 0, the root
  DecodeCache cache;

 private:
  // Every node has a random one of the nodes before it as its parent.
  static std::vector<int> random_parents(int num_nodes) {
    std::mt19937_64 random(kTreeSeed + num_nodes);
    std::vector<int> parents = {-1};
    while (static_cast<int>(parents.size()) < num_nodes)
      parents.push_back(static_cast<int>(random() % parents.size()));
    return parents;
  }
  std::vector<int> lengths() const {
    std::vector<int> all;
    for (int group = 0; group < shape.num_groups(); ++group) all.push_back(shape.root + shape.end_of(group));
    for (int node = 0; node < shape.num_nodes; ++node)
      all.push_back(shape.root + static_cast<int>(path(node).size()));
    return all;
  }
  std::vector<std::vector<std::byte>> random_records() const {
    std::mt19937_64 random(kTreeSeed);
    std::normal_distribution<float> normal(0.0F, cache.options.flat_size);
    std::vector<std::vector<std::byte>> records(shape.root + shape.num_nodes);
    std::vector<float> latent(kKvLatentDim), rope(kKvRopeDim);
    for (auto& bytes : records) {
      for (float& v : latent) v = normal(random);
      for (float& v : rope) v = normal(random);
      bytes.resize(cache.layout.row_bytes());
      cpu::reference::write_record(latent.data(), rope.data(), cache.layout, bytes.data());
    }
    return records;
  }
  std::byte* record(int seq, int position) { return cache.pool.data() + cache.offset_of(seq, position); }
  void put(const std::vector<std::byte>& bytes, int seq, int position) {
    std::copy(bytes.begin(), bytes.end(), record(seq, position));
  }
};

// Holds the rows of a tree with their masks, and the results of the paths in double precision.
struct TreeRows {
  TreeRows(const TreeCache& tree, int heads)
      : batch(tree.cache, first_rows(tree.shape.num_groups()), heads, tree.shape.group, kTreeSeed + heads,
              0.1F) {
    const TreeShape& shape = tree.shape;
    const int num_rows = shape.num_groups() * shape.group;
    const int64_t q_values = int64_t{heads} * kKvRowDim;
    std::vector<uint64_t> masks;
    std::vector<int> path_rows;
    std::vector<bf16> q = batch.q, path_q;
    for (int row = 0; row < num_rows; ++row) {
      const int node = shape.node_of(row);
      std::copy_n(q.begin() + node * q_values, q_values, q.begin() + row * q_values);
      masks.push_back(newest_mask(tree.ancestors(node), shape.end_of(row / shape.group)));
      path_rows.push_back(shape.num_groups() + node);
    }
    batch.set_queries(q);
    batch.set_masks(masks);
    DecodeBatch paths(tree.cache, path_rows, heads, 1, kTreeSeed);
    paths.set_queries(q);
    expected = paths.run_double();
  }

  DecodeBatch batch;
  DecodeDoubles expected;

 private:
  static std::vector<int> first_rows(int count) {
    std::vector<int> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }
};

const TreeCache& tree_cache_of(int layout_idx, const TreeShape& shape) {
  static std::map<std::pair<int, TreeShape>, std::unique_ptr<TreeCache>> known;
  auto& cache = known[{layout_idx, shape}];
  if (cache == nullptr) cache = std::make_unique<TreeCache>(layout_idx, shape);
  return *cache;
}
const TreeRows& tree_rows_of(int layout_idx, const TreeShape& shape, int heads) {
  static std::map<std::tuple<int, TreeShape, int>, std::unique_ptr<TreeRows>> known;
  auto& rows = known[{layout_idx, shape, heads}];
  if (rows == nullptr) rows = std::make_unique<TreeRows>(tree_cache_of(layout_idx, shape), heads);
  return *rows;
}

std::string described(int layout_idx, const TreeShape& shape, int heads) {
  return kLayouts[layout_idx].first + ", heads " + std::to_string(heads) + ", root " +
         std::to_string(shape.root) + ", nodes " + std::to_string(shape.num_nodes) + ", rows of a sequence " +
         std::to_string(shape.group) + ", seed " + std::to_string(kTreeSeed);
}

// The plain kernel in double precision computes the same sums in the same order, over other addresses.
TEST(MlaDecodeTreesReference, RowsEqualTheirPaths) {
  for (int layout_idx = 0; layout_idx < static_cast<int>(kLayouts.size()); ++layout_idx) {
    for (const TreeShape& shape : std::vector<TreeShape>{
             {0, 1, 1}, {1, 2, 2}, {57, 7, 3}, {63, 8, 8}, {64, 33, 1}, {127, 64, 8}, {500, 64, 1}}) {
      SCOPED_TRACE(described(layout_idx, shape, 3));
      const auto& [batch, expected] = tree_rows_of(layout_idx, shape, 3);
      const DecodeDoubles doubles = batch.run_double();
      for (size_t i = 0; i < expected.out.size(); ++i) {
        ASSERT_NEAR(doubles.out[i], expected.out[i], 1e-9)
            << where(batch, static_cast<int64_t>(i) / kKvLatentDim);
      }
      for (size_t i = 0; i < expected.lse.size(); ++i) ASSERT_NEAR(doubles.lse[i], expected.lse[i], 1e-9);
      expect_close(batch, batch.run(DecodeRun{.reference = true}), expected, {});
    }
  }
}

// Returns true if the device runs all tiles of a part at once.
bool fits(const DecodeSchedule& schedule, int rows) {
  const cuda::ClusterCapacity capacity = cuda::device_capacity(cuda_device_info(0).num_sms);
  int i = 0;
  while ((1 << i) < schedule.cluster) ++i;
  return (rows + schedule.tile_rows - 1) / schedule.tile_rows <= capacity.clusters[i];
}

class MlaDecodeTrees : public ::testing::TestWithParam<ScheduleCase> {};
INSTANTIATE_TEST_SUITE_P(All, MlaDecodeTrees, ::testing::ValuesIn(all_schedules()), schedule_name);

TEST_P(MlaDecodeTrees, RowsMatchTheirPathsInDoublePrecision) {
  const auto& [layout_idx, schedule] = GetParam();
  struct Case {
    int heads;
    TreeShape shape;
  };
  const std::vector<Case> cases = {{16, {0, 1, 1}},    {16, {63, 64, 1}},  {5, {60, 8, 8}},
                                   {20, {1, 7, 3}},    {128, {57, 33, 1}}, {128, {127, 20, 2}},
                                   {16, {300, 64, 8}}, {64, {126, 3, 1}},  {32, {2000, 12, 4}}};
  for (const auto& [heads, shape] : cases) {
    SCOPED_TRACE(described(layout_idx, shape, heads));
    if (!fits(schedule, heads * shape.group)) continue;
    const auto& [batch, expected] = tree_rows_of(layout_idx, shape, heads);
    const Bounds bounds = bounds_of(batch.cache().layout, schedule.kernel);
    const DecodeResult result = batch.run(DecodeRun{.schedule = schedule});
    expect_close(batch, result, expected, bounds);
    EXPECT_TRUE(same_bits(result, batch.run(DecodeRun{.graphed = true, .schedule = schedule})));
    // Each page is a split, and some rows see no record of their sequence's last page.
    if (schedule.cluster == 1)
      expect_close(batch, batch.run(DecodeRun{.split_pages = 1, .schedule = schedule}), expected, bounds);
    if (HasFailure()) return;
  }
}

// A chain is a tree, so its masks change nothing.
TEST_P(MlaDecodeTrees, CausalMasksGiveTheBitsOfNoMasks) {
  const auto& [layout_idx, schedule] = GetParam();
  const DecodeCache& cache = cache_of(layout_idx, {1000, 0, 130, 9, 63, 64, 65, 640, 129}, {.flat = true});
  for (const auto& [heads, q_len] :
       {std::pair{16, 1}, std::pair{20, 3}, std::pair{128, 2}, std::pair{4, 8}}) {
    if (!fits(schedule, heads * q_len)) continue;
    DecodeBatch batch(cache, all_rows(cache), heads, q_len, kTreeSeed + heads, 0.1F);
    const DecodeRun how{.schedule = schedule};
    const DecodeResult expected = batch.run(how);
    std::vector<uint64_t> masks;
    for (size_t seq = 0; seq < batch.seq_idx.size(); ++seq) {
      for (int query = 0; query < q_len; ++query) masks.push_back(~uint64_t{0} >> (q_len - 1 - query));
    }
    batch.set_masks(masks);
    EXPECT_TRUE(same_bits(batch.run(how), expected)) << "heads " << heads << ", queries " << q_len;
  }
}

// Runs every instantiation on the smallest trees that cross a page's border, for compute-sanitizer.
TEST_P(MlaDecodeTrees, SmallestShapesForSanitizersMatchDoublePrecision) {
  const auto& [layout_idx, schedule] = GetParam();
  const TreeShape shape = {62, 4, 2};
  const int heads = schedule.tile_rows == 64 ? 33 : 5;
  const auto& [batch, expected] = tree_rows_of(layout_idx, shape, heads);
  expect_close(batch, batch.run(DecodeRun{.schedule = schedule}), expected,
               bounds_of(batch.cache().layout, schedule.kernel));
}

// A row that sees nothing of the sequence gives zeros, as a row without keys does.
TEST_P(MlaDecodeTrees, RowsThatSeeNothingAreZeros) {
  const auto& [layout_idx, schedule] = GetParam();
  const DecodeCache& cache = cache_of(layout_idx, {40}, {.flat = true});
  DecodeBatch batch(cache, {0}, 3, 2, kTreeSeed, 0.1F);
  batch.set_masks({0, ~uint64_t{0}});
  const DecodeResult result = batch.run(DecodeRun{.schedule = schedule});
  for (int64_t i = 0; i < 3 * kKvLatentDim; ++i) ASSERT_EQ(result.out[i].bits & 0x7fff, 0) << "value " << i;
  for (int head = 0; head < 3; ++head) EXPECT_EQ(result.lse[head], -std::numeric_limits<float>::infinity());
  DecodeBatch alone(cache, {0}, 3, 1, kTreeSeed, 0.1F);
  alone.set_queries(std::vector<bf16>(batch.q.begin() + 3 * kKvRowDim, batch.q.end()));
  const DecodeDoubles expected = alone.run_double();
  for (int64_t i = 0; i < 3 * kKvLatentDim; ++i) {
    const double allowed = is_fp8(cache.layout) ? 2e-3 : 8e-3 * cache.options.flat_size;
    ASSERT_NEAR(decode_value(cache.layout, result.out[3 * kKvLatentDim + i]), expected.out[i], allowed);
  }
}

}  // namespace
}  // namespace hadal::testing
