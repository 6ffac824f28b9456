#include "cache/radix_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace hadal {
namespace {

constexpr int64_t block_of(int64_t position) {
  return position / kCachePageSize;
}
constexpr int64_t round_down(int64_t position) {
  return block_of(position) * kCachePageSize;
}
constexpr int64_t num_blocks(int64_t num_tokens) {
  return (num_tokens + kCachePageSize - 1) / kCachePageSize;
}
constexpr int64_t round_up(int64_t position) {
  return num_blocks(position) * kCachePageSize;
}

// Returns the length of the common prefix of `a` and `b`, in tokens.
int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  constexpr size_t kStride = 32;  // 128 bytes: memcmp at full width, then few single tokens to compare
  const size_t size = std::min(a.size(), b.size());
  size_t i = 0;
  while (i + kStride <= size && std::memcmp(&a[i], &b[i], kStride * sizeof(int32_t)) == 0) i += kStride;
  while (i < size && a[i] == b[i]) ++i;
  return static_cast<int64_t>(i);
}

}  // namespace

Result<EvictionPolicy> parse_eviction_policy(std::string_view name, std::string_view field) {
  if (name == "lru") return EvictionPolicy::kLru;
  if (name == "lfu") return EvictionPolicy::kLfu;
  if (name == "priority") return EvictionPolicy::kPriority;
  return invalid_argument("{}: \"{}\" is not an eviction policy; allowed: lru, lfu, priority", field, name);
}

RadixCache::RadixCache(PagePool& pool, EvictionPolicy policy, bool enabled, int64_t lookahead)
    : pool_(pool), policy_(policy), enabled_(enabled), lookahead_(lookahead), nodes_(1) {}

PrefixMatch RadixCache::match(std::span<const int32_t> tokens, int32_t priority, const CacheOwner& owner) {
  PrefixMatch result;
  const Walk found = walk(tokens, owner.salt);
  const int64_t num_usable = found.num_matched - lookahead_;
  if (num_usable <= 0) return result;
  ++clock_;
  result.shared_tokens = round_down(num_usable);
  result.partial_tokens = static_cast<int32_t>(num_usable - result.shared_tokens);
  if (result.partial_tokens > 0) {
    // The node found ends in this block or later and begins before the last matched token, so it touches the
    // block.
    const Node& node = nodes_[found.node];
    result.partial_page = node.pages[block_of(result.shared_tokens) - block_of(node.begin)];
  }
  result.told_tokens = std::min(told_tokens(found, result.shared_tokens, owner.client), num_usable);
  result.node = node_ending_at(found.node, result.shared_tokens);
  // The use is recorded after the split, because the part after the match was not used.
  touch(result.partial_tokens > 0 ? found.node : result.node, priority, /*is_match=*/true);

  int64_t num_missing = block_of(result.shared_tokens);
  result.pages.resize(num_missing);
  for (CacheNodeId id = result.node; num_missing > 0;
       id = nodes_[id].parent) {  // the page of the deepest node is the valid one
    const Node& node = nodes_[id];
    const int64_t first = block_of(node.begin);
    if (first >= num_missing) continue;
    std::copy_n(node.pages.begin(), num_missing - first, result.pages.begin() + first);
    num_missing = first;
  }
  return result;
}

int64_t RadixCache::match_length(std::span<const int32_t> tokens, const CacheSalt& salt) const {
  return std::max<int64_t>(walk(tokens, salt).num_matched - lookahead_, 0);
}

void RadixCache::lock(CacheNodeId node) {
  HADAL_CHECK(in_use(node), "node {} is not in use", node);
  HADAL_CHECK(nodes_[node].end() == round_down(nodes_[node].end()), "lock of node {}, which ends at {}", node,
              nodes_[node].end());
  for (; node != -1; node = nodes_[node].parent) {
    Node& entry = nodes_[node];
    if (entry.num_locks == 0 && node != kRootNode) {
      if (entry.num_children == 0) order_.erase(order_key(node));
      for (const PageId page : entry.pages) pool_.pin(page);
    }
    ++entry.num_locks;
  }
}

void RadixCache::unlock(CacheNodeId node) {
  HADAL_CHECK(in_use(node), "node {} is not in use", node);
  for (; node != -1; node = nodes_[node].parent) {
    Node& entry = nodes_[node];
    HADAL_CHECK_GT(entry.num_locks, 0);
    --entry.num_locks;
    if (entry.num_locks > 0 || node == kRootNode) continue;
    for (const PageId page : entry.pages) pool_.unpin(page);
    if (entry.num_children == 0) order_.insert(order_key(node));
  }
}

CacheNodeId RadixCache::insert(std::span<const int32_t> tokens, std::span<const PageId> pages,
                               int32_t priority, const CacheOwner& owner) {
  const auto size = static_cast<int64_t>(tokens.size());
  HADAL_CHECK_EQ(static_cast<int64_t>(pages.size()), num_blocks(size));
  if (!enabled_ || size == 0) return kRootNode;
  ++clock_;
  const Walk found = walk(tokens, owner.salt);
  CacheNodeId deepest = found.node;
  if (found.num_matched < size) {
    const CacheNodeId parent = node_ending_at(found.node, found.num_matched);
    const TreeIdx tree = parent == kRootNode ? find_or_add_tree(owner.salt) : nodes_[parent].tree;
    deepest = add_child(parent, tree, tokens.subspan(found.num_matched),
                        pages.subspan(block_of(found.num_matched)), priority);
    join_only_child(parent);
  }
  note_writer(deepest, size, owner.client);
  const CacheNodeId whole = node_ending_at(deepest, round_down(size));
  touch(size > round_down(size) ? deepest : whole, priority, /*is_match=*/false);
  return whole;
}

int64_t RadixCache::evict(int64_t num_pages) {
  const int64_t before = pool_.num_free();
  while (pool_.num_free() - before < num_pages && evictable_pages() > 0) {
    // Below an unlocked node no node is locked, so an evictable page implies that there is an unlocked leaf.
    HADAL_CHECK(!order_.empty(), "{} evictable pages without a leaf to evict", evictable_pages());
    const CacheNodeId node = order_.begin()->node;
    num_evicted_tokens_ += static_cast<int64_t>(nodes_[node].tokens.size());
    remove_leaf(node);
  }
  return pool_.num_free() - before;
}

int64_t RadixCache::clear() {
  const int64_t before = pool_.num_free();
  while (!order_.empty()) remove_leaf(order_.begin()->node);
  return pool_.num_free() - before;
}

bool RadixCache::in_use(CacheNodeId node) const {
  return node == kRootNode ||
         (node > 0 && node < static_cast<int64_t>(nodes_.size()) && nodes_[node].parent != -1);
}

RadixCache::OrderKey RadixCache::order_key(CacheNodeId node) const {
  const Node& entry = nodes_[node];
  switch (policy_) {
    case EvictionPolicy::kLru:
      return {0, entry.last_use, node};
    case EvictionPolicy::kLfu:
      return {entry.num_matches, entry.last_use, node};
    case EvictionPolicy::kPriority:
      return {entry.priority, entry.last_use, node};
  }
  HADAL_CHECK(false, "eviction policy {}", static_cast<int>(policy_));
  return {};
}

std::optional<RadixCache::TreeIdx> RadixCache::find_tree(const CacheSalt& salt) const {
  if (salt == CacheSalt{}) return 0;
  const auto found = tree_of_.find(salt);
  return found == tree_of_.end() ? std::nullopt : std::optional(found->second);
}

RadixCache::TreeIdx RadixCache::find_or_add_tree(const CacheSalt& salt) {
  if (const auto known = find_tree(salt)) return *known;
  TreeIdx tree = 0;
  if (!free_trees_.empty()) {
    tree = free_trees_.back();
    free_trees_.pop_back();
  } else {
    tree = static_cast<TreeIdx>(trees_.size());
    HADAL_CHECK_LT(tree, TreeIdx{1} << 31);
    trees_.emplace_back();
  }
  trees_[tree] = {.salt = salt};
  tree_of_.emplace(salt, tree);
  return tree;
}

RadixCache::Walk RadixCache::walk(std::span<const int32_t> tokens, const CacheSalt& salt) const {
  Walk result;
  const auto tree = find_tree(salt);
  if (!tree) return result;
  const auto size = static_cast<int64_t>(tokens.size());
  while (result.num_matched < size) {
    const auto child = children_.find(child_key(result.node, *tree, tokens[result.num_matched]));
    if (child == children_.end()) break;
    const Node& node = nodes_[child->second];
    result.num_matched += common_prefix(node.tokens, tokens.subspan(result.num_matched));
    result.node = child->second;
    if (result.num_matched < node.end()) break;
  }
  return result;
}

// Returns how many of the matched tokens `client` may be told (PrefixMatch::told_tokens).
int64_t RadixCache::told_tokens(const Walk& found, int64_t shared_tokens, uint64_t client) const {
  int64_t told = found.num_matched;
  for (CacheNodeId id = found.node; nodes_[id].end() > shared_tokens; id = nodes_[id].parent) {
    const Node& node = nodes_[id];
    const auto own = std::find_if(node.writers.begin(), node.writers.end(),
                                  [client](const Writer& writer) { return writer.client == client; });
    const int64_t end = own == node.writers.end() ? node.begin : own->end;
    // The client must not be told any token after a gap in the tokens that it has inserted itself.
    if (end < std::min(node.end(), found.num_matched)) told = end;
  }
  return std::max(told, shared_tokens);
}

// Records that `client` has inserted the path to `deepest` up to the position `end`.
void RadixCache::note_writer(CacheNodeId deepest, int64_t end, uint64_t client) {
  for (CacheNodeId id = deepest; id != kRootNode; id = nodes_[id].parent) {
    Node& node = nodes_[id];
    Writer writer{.client = client, .end = std::min(end, node.end())};
    const auto known = std::find_if(node.writers.begin(), node.writers.end(),
                                    [client](const Writer& other) { return other.client == client; });
    if (known != node.writers.end()) {
      writer.end = std::max(writer.end, known->end);
      node.writers.erase(known);
    } else if (node.writers.size() == kMaxWriters) {
      node.writers.erase(node.writers.begin());
    }
    node.writers.push_back(writer);
  }
}

// Records a use of `deepest` and its ancestors at clock_.
void RadixCache::touch(CacheNodeId deepest, int32_t priority, bool is_match) {
  for (CacheNodeId id = deepest; id != kRootNode; id = nodes_[id].parent) {
    Node& node = nodes_[id];
    const bool is_ordered = is_evictable(node);
    if (is_ordered) order_.erase(order_key(id));
    node.last_use = clock_;
    node.priority = std::max(node.priority, priority);
    node.num_matches += is_match ? 1 : 0;
    if (is_ordered) order_.insert(order_key(id));
  }
}

// Returns the node that ends at `position`, which is at most the end of `node`: `node` or one of its
// ancestors. It splits a node if necessary.
CacheNodeId RadixCache::node_ending_at(CacheNodeId node, int64_t position) {
  while (node != kRootNode && nodes_[node].begin >= position) node = nodes_[node].parent;
  return nodes_[node].end() == position ? node : split(node, position);
}

// Splits `node` at `position`, inside it. The id stays with the lower part, so that a lock on it continues to
// cover the whole path. Returns the upper part.
CacheNodeId RadixCache::split(CacheNodeId node, int64_t position) {
  const CacheNodeId id = new_node();
  Node& upper = nodes_[id];
  Node& lower = nodes_[node];
  HADAL_CHECK(lower.begin < position && position < lower.end(), "split of [{}, {}) at {}", lower.begin,
              lower.end(), position);
  const int64_t num_upper = position - lower.begin;
  const int64_t first_block = block_of(lower.begin);
  upper.parent = lower.parent;
  upper.tree = lower.tree;
  upper.begin = lower.begin;
  upper.tokens.assign(lower.tokens.begin(), lower.tokens.begin() + num_upper);
  upper.pages.assign(lower.pages.begin(), lower.pages.begin() + (num_blocks(position) - first_block));
  upper.num_children = 1;
  upper.child_ids = node;
  nodes_[upper.parent].child_ids ^= node ^ id;
  upper.num_locks = lower.num_locks;
  upper.priority = lower.priority;
  upper.num_matches = lower.num_matches;
  upper.last_use = lower.last_use;
  upper.writers = lower.writers;
  for (Writer& writer : upper.writers) writer.end = std::min(writer.end, position);
  std::erase_if(lower.writers, [position](const Writer& writer) { return writer.end <= position; });

  lower.parent = id;
  lower.begin = position;
  lower.tokens.erase(lower.tokens.begin(), lower.tokens.begin() + num_upper);
  lower.pages.erase(lower.pages.begin(), lower.pages.begin() + (block_of(position) - first_block));
  if (position != round_down(position)) {  // both parts touch this block
    pool_.add_cache_ref(lower.pages.front());
    if (lower.num_locks > 0) pool_.pin(lower.pages.front());
  }
  children_[child_key(upper.parent, upper.tree, upper.tokens.front())] = id;
  children_[child_key(id, lower.tree, lower.tokens.front())] = node;
  return id;
}

// Joins `node`, if it ends inside a page and has one child, with the part of the child on that page. The page
// of the child contains the rows of `node` too, so the joined part keeps one page, not two. The use of `node`
// counts for all of it, because the page was kept until then anyway. The id is that of the child, whose end
// may be locked.
void RadixCache::join_only_child(CacheNodeId node) {
  const int64_t position = nodes_[node].end();
  if (nodes_[node].num_children != 1 || position == round_down(position)) return;
  CacheNodeId child = nodes_[node].child_ids;
  if (nodes_[child].end() > round_up(position)) child = split(child, round_up(position));
  Node& lower = nodes_[child];
  HADAL_CHECK_EQ(lower.num_locks, nodes_[node].num_locks);  // no lock ends inside a page
  if (is_evictable(lower)) order_.erase(order_key(child));
  children_.erase(child_key(node, lower.tree, lower.tokens.front()));
  Node upper = std::exchange(nodes_[node], Node{});
  --num_nodes_;
  free_nodes_.push_back(node);

  if (lower.num_locks > 0) pool_.unpin(upper.pages.back());
  pool_.release_cache_ref(upper.pages.back());
  upper.pages.pop_back();
  upper.pages.insert(upper.pages.end(), lower.pages.begin(), lower.pages.end());
  upper.tokens.insert(upper.tokens.end(), lower.tokens.begin(), lower.tokens.end());
  for (Writer& writer : upper.writers) {
    const auto same = std::find_if(lower.writers.begin(), lower.writers.end(),
                                   [&](const Writer& other) { return other.client == writer.client; });
    // Whoever has not inserted all of the upper part is told nothing of the lower one.
    if (writer.end == position && same != lower.writers.end()) writer.end = same->end;
  }
  upper.num_children = lower.num_children;
  upper.child_ids = lower.child_ids;
  lower = std::move(upper);
  nodes_[lower.parent].child_ids ^= node ^ child;
  children_[child_key(lower.parent, lower.tree, lower.tokens.front())] = child;
  if (is_evictable(lower)) order_.insert(order_key(child));
}

// Adds a leaf that begins where `parent` ends. `pages` are those of the blocks that it touches.
CacheNodeId RadixCache::add_child(CacheNodeId parent, TreeIdx tree, std::span<const int32_t> tokens,
                                  std::span<const PageId> pages, int32_t priority) {
  for (const PageId page : pages) pool_.add_cache_ref(page);
  const CacheNodeId id = new_node();
  Node& above = nodes_[parent];
  if (parent != kRootNode && is_evictable(above)) order_.erase(order_key(parent));
  ++above.num_children;
  above.child_ids ^= id;
  if (parent == kRootNode) ++trees_[tree].num_children;
  Node& node = nodes_[id];
  node.parent = parent;
  node.tree = tree;
  node.begin = above.end();
  node.tokens.assign(tokens.begin(), tokens.end());
  node.pages.assign(pages.begin(), pages.end());
  node.priority = priority;
  node.last_use = clock_;
  num_tokens_ += static_cast<int64_t>(tokens.size());
  children_[child_key(parent, tree, tokens.front())] = id;
  order_.insert(order_key(id));
  return id;
}

void RadixCache::remove_leaf(CacheNodeId node) {
  order_.erase(order_key(node));
  const Node removed = std::exchange(nodes_[node], Node{});
  for (const PageId page : removed.pages) pool_.release_cache_ref(page);
  children_.erase(child_key(removed.parent, removed.tree, removed.tokens.front()));
  num_tokens_ -= static_cast<int64_t>(removed.tokens.size());
  --num_nodes_;
  free_nodes_.push_back(node);
  Node& parent = nodes_[removed.parent];
  --parent.num_children;
  parent.child_ids ^= node;
  if (removed.parent != kRootNode) {
    if (is_evictable(parent)) order_.insert(order_key(removed.parent));
  } else if (Tree& tree = trees_[removed.tree]; --tree.num_children == 0 && removed.tree != 0) {
    tree_of_.erase(tree.salt);
    free_trees_.push_back(removed.tree);
  }
  join_only_child(removed.parent);
}

CacheNodeId RadixCache::new_node() {
  ++num_nodes_;
  if (!free_nodes_.empty()) {
    const CacheNodeId id = free_nodes_.back();
    free_nodes_.pop_back();
    return id;
  }
  HADAL_CHECK_LT(nodes_.size(), static_cast<size_t>(std::numeric_limits<CacheNodeId>::max()));
  nodes_.emplace_back();
  return static_cast<CacheNodeId>(nodes_.size() - 1);
}

}  // namespace hadal
