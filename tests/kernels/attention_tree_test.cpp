// Tests the attention of rows of draft trees: what a row attends to follows from its mask, a row has the bits
// that it would have in a chain, and the records of other nodes are never read.
#include <limits>

#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

struct TreeCase {
  int num_heads = 0;
  int root = 0;              // its position; the nodes' records follow it
  std::vector<int> parents;  // of each node; −1: node 0, the root
  PagedCache cache;
  std::vector<float> q;

  TreeCase(int heads, int root_position, std::vector<int> tree, KvLayout layout, uint64_t seed)
      : TreeCase(heads, root_position, std::move(tree), layout, Random(seed)) {}

  int num_nodes() const { return static_cast<int>(parents.size()); }
  // Returns the nodes from the root to `node`.
  std::vector<int> path(int node) const {
    std::vector<int> nodes;
    for (; node >= 0; node = parents[node]) nodes.insert(nodes.begin(), node);
    return nodes;
  }

  // Runs the rows of nodes [begin, end) over this cache.
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads, int begin, int end) {
    std::vector<int32_t> kv_len, seq_idx;
    std::vector<uint64_t> masks;
    for (int node = begin; node < end; ++node) {
      kv_len.push_back(static_cast<int32_t>(root + path(node).size()));
      seq_idx.push_back(0);
      uint64_t mask = 0;
      for (const int ancestor : path(node)) mask |= uint64_t{1} << ancestor;
      masks.push_back(mask);
    }
    return run_rows(kernel, num_threads, cache, begin, kv_len, seq_idx, masks.data());
  }
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads) {
    return run(kernel, num_threads, 0, num_nodes());
  }

  // Runs the row of a node over a cache whose records are those of the node's path, one after the other.
  template <typename Kernel>
  std::vector<float> run_as_chain(Kernel kernel, int node) {
    PagedCache chain = cache;
    const std::vector<int> nodes = path(node);
    for (size_t i = 0; i < nodes.size(); ++i)
      copy_record(cache, root + nodes[i], chain, root + static_cast<int>(i));
    return run_rows(kernel, 2, chain, node, {static_cast<int32_t>(root + nodes.size())}, {0}, nullptr);
  }

  // Computes the row of a node in double.
  std::vector<float> exact(int node) {
    std::vector<int> positions(root);
    std::iota(positions.begin(), positions.end(), 0);
    for (const int ancestor : path(node)) positions.push_back(root + ancestor);
    std::vector<std::vector<float>> keys;
    for (const int position : positions) {
      keys.emplace_back(kKvRowDim);
      reference::read_record(reference::record_address(cache.view(), 0, position), cache.layout,
                             keys.back().data());
    }
    std::vector<float> out;
    for (int head = 0; head < num_heads; ++head) {
      const float* query = q.data() + (node * num_heads + head) * kKvRowDim;
      std::vector<double> scores;
      for (const auto& key : keys) {
        double score = 0.0;
        for (int k = 0; k < kKvRowDim; ++k) score += static_cast<double>(query[k]) * key[k];
        scores.push_back(score * kScale);
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double total = 0.0;
      for (double& score : scores) total += score = std::exp(score - largest);
      std::vector<double> sum(kKvLatentDim);
      for (size_t i = 0; i < keys.size(); ++i) {
        for (int k = 0; k < kKvLatentDim; ++k) sum[k] += scores[i] / total * keys[i][k];
      }
      out.insert(out.end(), sum.begin(), sum.end());
    }
    return out;
  }

  // Makes the records of all nodes that are not on the path of `node` NaN.
  void poison_others(int node) {
    const std::vector<int> nodes = path(node);
    for (int other = 0; other < num_nodes(); ++other) {
      if (std::find(nodes.begin(), nodes.end(), other) != nodes.end()) continue;
      std::memset(const_cast<std::byte*>(reference::record_address(cache.view(), 0, root + other)), 0xff,
                  static_cast<size_t>(cache.layout.row_bytes()));
    }
  }

 private:
  static constexpr float kScale = 0.11F;

  TreeCase(int heads, int root_position, std::vector<int> tree, KvLayout layout, Random random)
      : num_heads(heads),
        root(root_position),
        parents(std::move(tree)),
        cache({root + num_nodes()}, layout, random),
        q(random.normals(int64_t{num_nodes()} * heads * kKvRowDim, 0.8F)) {}

  static void copy_record(PagedCache& from, int source, PagedCache& to, int target) {
    std::copy_n(reference::record_address(from.view(), 0, source), from.layout.row_bytes(),
                const_cast<std::byte*>(reference::record_address(to.view(), 0, target)));
  }

  template <typename Kernel>
  std::vector<float> run_rows(Kernel kernel, int num_threads, PagedCache& from, int first_node,
                              const std::vector<int32_t>& kv_len, const std::vector<int32_t>& seq_idx,
                              const uint64_t* masks) {
    std::vector<float> out(kv_len.size() * num_heads * kKvLatentDim, std::nanf(""));
    const MlaDecodeParams params = {.q = q.data() + int64_t{first_node} * num_heads * kKvRowDim,
                                    .out = out.data(),
                                    .num_tokens = static_cast<int64_t>(kv_len.size()),
                                    .num_heads = num_heads,
                                    .kv = from.view(),
                                    .seq_idx = seq_idx.data(),
                                    .kv_len = kv_len.data(),
                                    .ancestors = masks,
                                    .softmax_scale = kScale};
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
    return out;
  }
};

// Every node has a random one of the nodes before it as its parent.
std::vector<int> random_tree(int num_nodes, uint64_t seed) {
  Random random(seed);
  std::vector<int> parents = {-1};
  while (static_cast<int>(parents.size()) < num_nodes)
    parents.push_back(static_cast<int>(random.below(static_cast<int64_t>(parents.size()))));
  return parents;
}

std::vector<int> chain_of(int num_nodes) {
  std::vector<int> parents(num_nodes);
  std::iota(parents.begin(), parents.end(), -1);
  return parents;
}

// Compares all rows of a tree with double precision, and with the bits of chains.
void expect_right(TreeCase& c) {
  std::vector<float> expected;
  for (int node = 0; node < c.num_nodes(); ++node) {
    const std::vector<float> row = c.exact(node);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  EXPECT_LE(worst_row_error(c.run(reference::mla_decode, 2), expected, kKvLatentDim), 1e-6);
  for_each_target([&] {
    const std::vector<float> out = c.run(simd::mla_decode, 2);
    EXPECT_LE(worst_row_error(out, expected, kKvLatentDim), 1e-5);
    std::vector<float> chains;
    for (int node = 0; node < c.num_nodes(); ++node) {
      const std::vector<float> row = c.run_as_chain(simd::mla_decode, node);
      chains.insert(chains.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bits(out, chains));
  });
}

TEST(TreeAttention, RowsOfAnyTreeHaveTheBitsOfTheirPaths) {
  for (const int num_nodes : {1, 2, 3, 8, 9, 17, 33, 64}) {
    SCOPED_TRACE(num_nodes);
    for (const uint64_t seed : {1, 2}) {
      TreeCase c(3, 70, random_tree(num_nodes, seed + num_nodes), {KvFormat::kBF16, KvScales::kPerToken},
                 seed);
      expect_right(c);
    }
  }
}

TEST(TreeAttention, SupportsEveryCacheFormat) {
  for (const KvLayout& layout : all_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout.format));
    TreeCase c(5, 60, random_tree(12, 3), layout, 7);
    expect_right(c);
  }
}

TEST(TreeAttention, SupportsEveryNumberOfHeads) {
  for (const int heads : {1, 2, 8, 16, 128}) {
    SCOPED_TRACE(heads);
    TreeCase c(heads, 62, random_tree(8, 5), {KvFormat::kBF16, KvScales::kPerToken}, 9);
    expect_right(c);
  }
}

// The tree begins, branches and ends on either side of a page border and of the 128 keys of a work item.
TEST(TreeAttention, TreesMayCrossPages) {
  for (const int root : {0, 1, 55, 63, 64, 65, 119, 127, 128, 129, 191}) {
    SCOPED_TRACE(root);
    TreeCase c(2, root, random_tree(16, 11), {KvFormat::kFp8E4M3, KvScales::kPerToken}, 13);
    expect_right(c);
    TreeCase wide(1, root, random_tree(64, 12), {KvFormat::kF32, KvScales::kPerToken}, 14);
    expect_right(wide);
  }
}

TEST(TreeAttention, AChainIsTheCausalCase) {
  TreeCase c(4, 100, chain_of(64), {KvFormat::kBF16, KvScales::kPerToken}, 15);
  expect_right(c);
}

TEST(TreeAttention, ARowReadsNoRecordOfAnotherPath) {
  for (const KvLayout& layout : all_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout.format));
    TreeCase c(4, 120, random_tree(20, 17), layout, 19);
    for (int node = 0; node < c.num_nodes(); ++node) {
      TreeCase poisoned = c;
      poisoned.poison_others(node);
      EXPECT_TRUE(same_bits(poisoned.run(simd::mla_decode, 2, node, node + 1),
                            c.run(simd::mla_decode, 2, node, node + 1)));
      EXPECT_TRUE(same_bits(poisoned.run(reference::mla_decode, 1, node, node + 1),
                            c.run(reference::mla_decode, 1, node, node + 1)));
    }
  }
}

TEST(TreeAttention, BitsDoNotDependOnThreadsOrBatch) {
  TreeCase c(16, 250, random_tree(24, 21), {KvFormat::kBF16, KvScales::kPerToken}, 23);
  for_each_target([&] {
    const std::vector<float> together = c.run(simd::mla_decode, 1);
    EXPECT_TRUE(same_bits(together, c.run(simd::mla_decode, 2)));
    EXPECT_TRUE(same_bits(together, c.run(simd::mla_decode, 3)));
    std::vector<float> alone;
    for (int node = 0; node < c.num_nodes(); ++node) {
      const std::vector<float> one = c.run(simd::mla_decode, 2, node, node + 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(same_bits(together, alone));
  });
}

// NextN gives the records of its drafts places that do not ascend with the depth (draft_tree_builder.h). The
// keys of a row are then visited in another order, but they are the same keys.
TEST(DraftTree, TheSetBitsOfAMaskAreTheKeysFromTheRootOn) {
  Random random(25);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t mask = static_cast<uint64_t>(random.below(std::numeric_limits<int64_t>::max())) >>
                              static_cast<int>(random.below(60)) |
                          1U;
    std::vector<int64_t> positions;
    const int64_t root = random.below(300);
    for (int64_t position = 0; position < root; ++position) positions.push_back(position);
    for (int bit = 0; bit < 64; ++bit) {
      if ((mask >> bit & 1U) != 0) positions.push_back(root + bit);
    }
    const auto kv_len = static_cast<int64_t>(positions.size());
    EXPECT_EQ(root_position(mask, kv_len), root);
    bool causal = true;
    for (int64_t key = 0; key < kv_len; ++key) {
      EXPECT_EQ(record_position(mask, kv_len, key), positions[key]);
      causal = causal && positions[key] == key;
    }
    EXPECT_EQ(is_causal(mask), causal);
  }
  EXPECT_EQ(record_position(~uint64_t{0}, 100, 99), 99);
  EXPECT_TRUE(is_causal(~uint64_t{0}));
}

TEST(DraftTree, TheAcceptedChildIsTheTokenThatItsParentSampled) {
  //        root: 5 6;  1 → 7 8;  2 → 7
  const std::vector<DraftNode> drafts = {{5, 0}, {6, 0}, {7, 1}, {7, 2}, {8, 1}};
  EXPECT_EQ(accepted_child(drafts, 0, 5), 1);
  EXPECT_EQ(accepted_child(drafts, 0, 6), 2);
  EXPECT_EQ(accepted_child(drafts, 0, 7), 0);
  EXPECT_EQ(accepted_child(drafts, 1, 7), 3);
  EXPECT_EQ(accepted_child(drafts, 1, 8), 5);
  EXPECT_EQ(accepted_child(drafts, 2, 7), 4);
  EXPECT_EQ(accepted_child(drafts, 2, 8), 0);
  EXPECT_EQ(accepted_child(drafts, 5, 8), 0);
  EXPECT_EQ(best_child(drafts, 0), 1);
  EXPECT_EQ(best_child(drafts, 2), 4);
  EXPECT_EQ(best_child(drafts, 3), 0);
}

}  // namespace
}  // namespace hadal::cpu
