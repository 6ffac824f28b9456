// RadixCache is the prefix cache: a radix tree over token ids whose nodes hold KV pages. It works on the host
// alone and uses ids, not pointers. Only the engine thread uses it.
//
// A node covers the half-open interval [begin, end) of absolute positions of every sequence that passes
// through it and holds one page for each 64-token block that the interval touches. Such a page is valid for
// the whole path: its rows before `begin` contain the same records as the parent's page of that block (it is
// either the same page, or a copy that the inserting request made before it continued writing). So the page
// of block b on a path is that of the deepest node that touches b.
//
// A node that ends inside a page is a leaf or has several children: with one child left, it is joined with
// the part of the child on that page. So a path has at most one node for each of its pages and each of its
// branches, however many requests have extended it token by token. Each further node of a page therefore
// belongs to a branch, which holds a page of its own.
//
// The table shows who owns the pages of one request by position (R: a request's own references, T: the
// tree's, L: the lock that keeps the tree from evicting):
//
// clang-format off: a table
//                           [0, shared)   [shared, matched)   [matched, computed)   [computed, ...)
//   before match            T or -        T or -              -                     -
//   after match, lock       T, L, +R      T: copy's source    -                     -
//   while it runs           T, L, R       R: its own copy     R                     R: not yet valid
//   after insert            T, L, R       T*, R               T*, R                 R
//   after lock of insert's  T, L, R for [0, whole); T*, R for [whole, computed)     R
//   after release, unlock   T             T*                  T*                    free
//   after evict, clear      free from the end on, where there is no lock and no R
//   * or, if the tree had these tokens already, freed with the request: the tree keeps its own pages.
// clang-format on
//
// `shared` is the largest multiple of 64 up to `matched`: whole pages are shared, and a partly matched page
// is copied by the step that first writes to it. A copy runs before the writes of its step, and steps run in
// order. So the source of a copy needs no lock: between match and copy it may be evicted, and may even be
// allocated as the target. `whole` is the largest multiple of 64 up to the number of inserted tokens. The
// page after it is T and R without L while the request continues to write rows of it that the tree does not
// claim. Evicting that page frees nothing before the release, so it counts as evictable only from then on.
//
// Salts: sequences of different salts share nothing, as if they began with different tokens. Each salt that
// has nodes is a tree of its own below the one root, which has no tokens, so that locks and eviction need not
// distinguish salts.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cache/page_pool.h"

namespace hadal {

inline constexpr int64_t kCachePageSize = 64;  // in tokens; equals kPageSize of kernels/params/kv_layout.h

enum class EvictionPolicy {
  kLru,       // evicts what was matched or inserted least recently
  kLfu,       // evicts what was matched least often, then as kLru
  kPriority,  // evicts the lowest priority, then as kLru; a node has the highest priority of its users
};
// `name` is "lru", "lfu" or "priority"; anything else is kInvalidArgument, which names `field`.
Result<EvictionPolicy> parse_eviction_policy(std::string_view name, std::string_view field);

using CacheNodeId = int32_t;
inline constexpr CacheNodeId kRootNode = 0;

// A client that chooses its salt must not be able to make it equal to another client's, so a salt is 128 bits
// of a cryptographic hash (server/admission/cache_salt.h). Zero stands for no salt.
struct CacheSalt {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const CacheSalt&) const = default;
};

// CacheOwner says on whose behalf the cache is used.
struct CacheOwner {
  CacheSalt salt;
  uint64_t client = 0;
};

struct PrefixMatch {
  CacheNodeId node = kRootNode;  // ends at shared_tokens; lock it while its pages are in use
  int64_t shared_tokens = 0;     // a multiple of 64
  std::vector<PageId> pages;     // [shared_tokens / 64], whole pages; the tree has references to them
  PageId partial_page = -1;      // its first rows hold partial_tokens further matching records; -1: none
  int32_t partial_tokens = 0;    // [0, 64)
  // The number of tokens that the client may be told: shared_tokens, and those tokens of the partial page
  // that the client has inserted itself. If every client were told the exact number, a client could guess
  // another client's prompt token by token. Whole pages may be told, because all 64 tokens of a page must be
  // guessed at once.
  int64_t told_tokens = 0;
  int64_t num_tokens() const { return shared_tokens + partial_tokens; }
};

class RadixCache {
 public:
  // `pool` must outlive the cache. A disabled cache never matches and never stores anything
  // (--disable-radix-cache). The records of a token also depend on the `lookahead` tokens after it, so the
  // last `lookahead` tokens of a cached prefix are not used. If the tree branches at the end of a page, all
  // branches use the page, although its last `lookahead` records were made for only one of them.
  RadixCache(PagePool& pool, EvictionPolicy policy, bool enabled = true, int64_t lookahead = 0);
  RadixCache(const RadixCache&) = delete;
  RadixCache& operator=(const RadixCache&) = delete;

  // Finds the longest cached prefix of `tokens` that may be used. This counts as a use of the nodes on the
  // path by a request of `priority`.
  PrefixMatch match(std::span<const int32_t> tokens, int32_t priority = 0, const CacheOwner& owner = {});
  // Returns only the length of that prefix; this does not count as a use and changes nothing.
  int64_t match_length(std::span<const int32_t> tokens, const CacheSalt& salt = {}) const;

  // Locks the node and its ancestors against eviction. Locks are counted, and unlock removes one. The root
  // may be locked, but need not be. Only nodes that match or insert has returned may be locked: they end at
  // the end of a page, so they keep their id as long as they exist.
  void lock(CacheNodeId node);
  void unlock(CacheNodeId node);

  // Inserts `tokens`, so that match finds them. Their records are in `pages` ([ceil(n / 64)], the last may be
  // partly used). The tree adds references of its own to the pages of the new tokens, and the caller keeps
  // its references. Returns the node whose path covers the whole pages of `tokens`; a caller that continues
  // running must lock it.
  CacheNodeId insert(std::span<const int32_t> tokens, std::span<const PageId> pages, int32_t priority = 0,
                     const CacheOwner& owner = {});

  // Evicts unlocked leaves, in order of the policy, until the pool has gained at least `num_pages` free pages
  // or nothing evictable is left. Returns the pages gained. A leaf whose pages have other holders is evicted
  // in its turn too, although evicting it frees nothing.
  int64_t evict(int64_t num_pages);

  // Counts the pages that evict could free, which are held only by unlocked nodes of the tree. The count is
  // exact and takes O(1).
  int64_t evictable_pages() const { return pool_.num_evictable(); }
  int64_t num_nodes() const { return num_nodes_; }                    // without the root
  int64_t num_tokens() const { return num_tokens_; }                  // sum of the nodes' lengths
  int64_t num_salts() const { return std::ssize(tree_of_); }          // salts that have nodes
  int64_t num_evicted_tokens() const { return num_evicted_tokens_; }  // evicted by evict() since the start

  // Removes everything that is not locked, and returns the pages gained.
  int64_t clear();

  // Proves that tree, lock counts, eviction order and page references agree with each other and with the
  // pool, whose references beyond the tree's must be exactly `request_refs` (page → count). It throws
  // otherwise.
  void check_integrity(const std::unordered_map<PageId, int32_t>& request_refs) const;

 private:
  using TreeIdx = uint32_t;
  // Writer is a client that inserted a node's tokens up to the absolute position `end`.
  struct Writer {
    uint64_t client = 0;
    int64_t end = 0;
  };
  static constexpr size_t kMaxWriters = 8;  // per node; the client that inserted longest ago is forgotten
  struct Node {
    CacheNodeId parent = -1;  // -1: the root, or not in use
    TreeIdx tree = 0;
    int64_t begin = 0;  // absolute position of tokens[0]
    std::vector<int32_t> tokens;
    std::vector<PageId> pages;  // pages of blocks begin / 64 …
    int32_t num_children = 0;
    CacheNodeId child_ids = 0;  // the children's ids combined by exclusive or: the id of an only child
    int32_t num_locks = 0;      // locks of this node and of all below it
    int32_t priority = 0;
    int64_t num_matches = 0;
    int64_t last_use = 0;         // clock_ of the latest match or insert
    std::vector<Writer> writers;  // in the order of their latest inserts
    int64_t end() const { return begin + static_cast<int64_t>(tokens.size()); }
  };
  // Walk holds the deepest node of which at least the first token matches, and the total number of matching
  // tokens.
  struct Walk {
    CacheNodeId node = kRootNode;
    int64_t num_matched = 0;
  };
  // Node ids and tokens are small consecutive numbers; without mixing, most of them would share a few
  // buckets.
  struct KeyHash {
    size_t operator()(uint64_t key) const {
      key = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15ULL;
      return key ^ (key >> 29);
    }
  };
  struct SaltHash {
    size_t operator()(const CacheSalt& salt) const { return salt.low; }
  };
  struct Tree {
    CacheSalt salt;
    int64_t num_children = 0;  // nodes directly below the root
  };
  struct OrderKey {  // the smallest key is evicted first
    int64_t rank;    // the policy's order
    int64_t last_use;
    CacheNodeId node;
    auto operator<=>(const OrderKey&) const = default;
  };

  // Node ids are not negative, so a parent's number with the top bit set can stand for a tree.
  static uint64_t child_key(CacheNodeId parent, TreeIdx tree, int32_t first_token) {
    const uint32_t above = parent == kRootNode ? uint32_t{1} << 31 | tree : static_cast<uint32_t>(parent);
    return uint64_t{above} << 32 | static_cast<uint32_t>(first_token);
  }
  bool in_use(CacheNodeId node) const;
  bool is_evictable(const Node& node) const { return node.num_children == 0 && node.num_locks == 0; }
  OrderKey order_key(CacheNodeId node) const;
  std::optional<TreeIdx> find_tree(const CacheSalt& salt) const;
  TreeIdx find_or_add_tree(const CacheSalt& salt);
  Walk walk(std::span<const int32_t> tokens, const CacheSalt& salt) const;
  int64_t told_tokens(const Walk& found, int64_t shared_tokens, uint64_t client) const;
  void note_writer(CacheNodeId deepest, int64_t end, uint64_t client);
  void touch(CacheNodeId deepest, int32_t priority, bool is_match);
  CacheNodeId node_ending_at(CacheNodeId node, int64_t position);
  CacheNodeId split(CacheNodeId node, int64_t position);
  void join_only_child(CacheNodeId node);
  CacheNodeId add_child(CacheNodeId parent, TreeIdx tree, std::span<const int32_t> tokens,
                        std::span<const PageId> pages, int32_t priority);
  void remove_leaf(CacheNodeId node);
  CacheNodeId new_node();
  void check_nodes() const;
  void check_trees() const;

  PagePool& pool_;
  const EvictionPolicy policy_;
  const bool enabled_;
  const int64_t lookahead_;
  std::vector<Node> nodes_;  // [0]: the root, which has no tokens
  std::vector<CacheNodeId> free_nodes_;
  std::vector<Tree> trees_{1};  // [0]: without a salt
  std::vector<TreeIdx> free_trees_;
  std::unordered_map<CacheSalt, TreeIdx, SaltHash> tree_of_;  // salted trees that have nodes
  // There is one table for all nodes: a node with 100,000 children costs no more than one with two.
  std::unordered_map<uint64_t, CacheNodeId, KeyHash> children_;
  std::set<OrderKey> order_;  // orders the unlocked leaves
  int64_t clock_ = 0;
  int64_t num_nodes_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_evicted_tokens_ = 0;
};

}  // namespace hadal
