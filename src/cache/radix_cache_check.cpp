// RadixCache::check_integrity derives from scratch everything that the operations keep up to date.
#include <algorithm>

#include "base/check.h"
#include "cache/radix_cache.h"

namespace hadal {

void RadixCache::check_integrity(const std::unordered_map<PageId, int32_t>& request_refs) const {
  check_nodes();

  std::vector<int32_t> holders(pool_.num_pages());
  std::vector<int32_t> locked_holders(pool_.num_pages());
  for (const Node& node : nodes_) {
    for (const PageId page : node.pages) {
      HADAL_CHECK(page >= 0 && page < pool_.num_pages(), "page {} of {}", page, pool_.num_pages());
      ++holders[page];
      locked_holders[page] += node.num_locks > 0 ? 1 : 0;
    }
  }
  for (const auto& [page, count] : request_refs) {
    HADAL_CHECK(page >= 0 && page < pool_.num_pages() && count >= 0, "page {}: {} references from requests",
                page, count);
  }
  int64_t num_evictable = 0;
  for (PageId page = 0; page < pool_.num_pages(); ++page) {
    const auto found = request_refs.find(page);
    const int32_t of_requests = found == request_refs.end() ? 0 : found->second;
    HADAL_CHECK(
        pool_.cache_ref_count(page) == holders[page] && pool_.pin_count(page) == locked_holders[page] &&
            pool_.ref_count(page) == holders[page] + of_requests,
        "page {}: the pool counts {} references, {} of the cache, {} pins; {} nodes hold it, {} of them "
        "locked, requests hold {}",
        page, pool_.ref_count(page), pool_.cache_ref_count(page), pool_.pin_count(page), holders[page],
        locked_holders[page], of_requests);
    num_evictable += holders[page] > 0 && locked_holders[page] == 0 && of_requests == 0 ? 1 : 0;
  }
  HADAL_CHECK_EQ(evictable_pages(), num_evictable);
  pool_.check_integrity();
}

// Checks the shape of the tree, lock counts, order of eviction and table of children.
void RadixCache::check_nodes() const {
  const auto size = static_cast<CacheNodeId>(nodes_.size());
  std::vector<int32_t> num_children(size);
  std::vector<CacheNodeId> child_ids(size);
  std::vector<int64_t> locks_below(size);
  std::vector<bool> is_free(size);
  for (const CacheNodeId id : free_nodes_) {
    HADAL_CHECK(id > 0 && id < size && !is_free[id], "node {} is free twice or does not exist", id);
    is_free[id] = true;
  }
  HADAL_CHECK(nodes_[kRootNode].parent == -1 && nodes_[kRootNode].tokens.empty() &&
              nodes_[kRootNode].pages.empty());

  int64_t num_nodes = 0;
  int64_t num_tokens = 0;
  size_t num_ordered = 0;
  for (CacheNodeId id = 1; id < size; ++id) {
    const Node& node = nodes_[id];
    if (is_free[id]) {
      HADAL_CHECK(node.parent == -1 && node.pages.empty() && node.num_locks == 0,
                  "node {} is free and in use", id);
      continue;
    }
    HADAL_CHECK(node.parent >= 0 && node.parent < size && in_use(node.parent), "node {}: parent {}", id,
                node.parent);
    const Node& parent = nodes_[node.parent];
    HADAL_CHECK(node.begin == parent.end() && !node.tokens.empty(),
                "node {}: [{}, {}) below a parent that ends at {}", id, node.begin, node.end(), parent.end());
    const int64_t num_blocks =
        (node.end() + kCachePageSize - 1) / kCachePageSize - node.begin / kCachePageSize;
    HADAL_CHECK(static_cast<int64_t>(node.pages.size()) == num_blocks, "node {}: {} pages for [{}, {})", id,
                node.pages.size(), node.begin, node.end());
    const auto child = children_.find(child_key(node.parent, node.tree, node.tokens.front()));
    HADAL_CHECK(child != children_.end() && child->second == id, "node {} is not listed below {}", id,
                node.parent);
    // A use of a node is a use of its ancestors as well.
    HADAL_CHECK(
        node.parent == kRootNode || (parent.last_use >= node.last_use && parent.priority >= node.priority &&
                                     parent.num_matches >= node.num_matches),
        "node {} was used without its parent {}", id, node.parent);
    HADAL_CHECK(node.last_use <= clock_, "node {}: last use {} at {}", id, node.last_use, clock_);
    HADAL_CHECK_GE(node.num_locks, 0);
    HADAL_CHECK(node.parent == kRootNode || parent.tree == node.tree, "node {} of tree {} below tree {}", id,
                node.tree, parent.tree);
    HADAL_CHECK_LE(node.writers.size(), kMaxWriters);
    for (const Writer& writer : node.writers)
      HADAL_CHECK(writer.end > node.begin && writer.end <= node.end(),
                  "node {}: written up to {} of [{}, {})", id, writer.end, node.begin, node.end());
    // This bounds the depth of a path by its pages and branches.
    HADAL_CHECK(node.end() % kCachePageSize == 0 || node.num_children != 1,
                "node {} ends at {}, inside a page, and has one child", id, node.end());
    ++num_children[node.parent];
    child_ids[node.parent] ^= id;
    locks_below[node.parent] += node.num_locks;
    ++num_nodes;
    num_tokens += static_cast<int64_t>(node.tokens.size());
    if (is_evictable(node)) {
      ++num_ordered;
      HADAL_CHECK(order_.contains(order_key(id)), "node {} is an unlocked leaf but not in the eviction order",
                  id);
    }
  }
  for (CacheNodeId id = 0; id < size; ++id) {
    HADAL_CHECK(nodes_[id].num_children == num_children[id], "node {}: {} children, counted {}", id,
                num_children[id], nodes_[id].num_children);
    HADAL_CHECK(nodes_[id].child_ids == child_ids[id], "node {}: wrong ids of its children", id);
    HADAL_CHECK(nodes_[id].num_locks >= locks_below[id], "node {}: {} locks, its children {}", id,
                nodes_[id].num_locks, locks_below[id]);
  }
  HADAL_CHECK_EQ(order_.size(), num_ordered);
  HADAL_CHECK_EQ(children_.size(), static_cast<size_t>(num_nodes));
  HADAL_CHECK_EQ(num_nodes, num_nodes_);
  HADAL_CHECK_EQ(num_tokens, num_tokens_);
  check_trees();
}

// Every salt that has nodes, and no other, has a tree.
void RadixCache::check_trees() const {
  std::vector<int64_t> num_children(trees_.size());
  for (const Node& node : nodes_) {
    if (node.parent != kRootNode) continue;
    HADAL_CHECK_LT(node.tree, trees_.size());
    ++num_children[node.tree];
  }
  size_t num_salted = 0;
  for (size_t tree = 0; tree < trees_.size(); ++tree) {
    HADAL_CHECK(trees_[tree].num_children == num_children[tree], "tree {}: {} children, counted {}", tree,
                num_children[tree], trees_[tree].num_children);
    if (tree == 0 || num_children[tree] == 0) continue;
    ++num_salted;
    const auto found = tree_of_.find(trees_[tree].salt);
    HADAL_CHECK(found != tree_of_.end() && found->second == tree, "tree {} is not listed", tree);
  }
  HADAL_CHECK_EQ(tree_of_.size(), num_salted);
  HADAL_CHECK_EQ(num_salted + free_trees_.size() + 1, trees_.size());
}

}  // namespace hadal
