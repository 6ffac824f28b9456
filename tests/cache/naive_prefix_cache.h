// Implements the prefix cache a second time, as simply as possible: as a flat list of segments, each with its
// full token path, which are searched one by one. It keeps no counts: locks are the paths that requests
// named, the caller tells which pages requests use, and everything else is derived when it is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "cache/radix_cache.h"

namespace hadal {

class NaivePrefixCache {
 public:
  using Tokens = std::vector<int32_t>;
  struct Segment {
    Tokens path;  // from position 0 to the segment's end
    int64_t begin = 0;
    std::vector<PageId> pages;  // pages of the blocks that [begin, path.size()) touches
    int32_t priority = 0;
    int64_t num_matches = 0;
    int64_t last_use = 0;
    int64_t size() const { return static_cast<int64_t>(path.size()) - begin; }
  };

  // is_requested tells whether any request refers to a page.
  NaivePrefixCache(EvictionPolicy policy, std::function<bool(PageId)> is_requested);

  // These have the contracts of RadixCache's functions; `node` stays unset.
  PrefixMatch match(std::span<const int32_t> tokens, int32_t priority);
  void insert(std::span<const int32_t> tokens, std::span<const PageId> pages, int32_t priority);
  void lock(const Tokens& path) { locked_.insert(path); }
  void unlock(const Tokens& path) { locked_.erase(locked_.find(path)); }
  int64_t evict(int64_t num_pages);
  int64_t clear();

  int64_t match_length(std::span<const int32_t> tokens) const;
  int64_t evictable_pages() const;
  std::set<PageId> pages() const;  // all pages that segments hold
  int64_t num_tokens() const;
  int64_t num_evicted_tokens() const { return num_evicted_tokens_; }
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  bool is_locked(const Segment& segment) const;
  bool is_leaf(const Segment& segment) const;
  int64_t num_children(const Segment& segment) const;
  int64_t num_free_of(const std::set<PageId>& pages) const;
  void split_at(std::span<const int32_t> path);  // splits the segment that continues past the end of `path`
  // Extends each segment that ends inside a page and has one child by the child's part of that page, which
  // has the child's page and counts as used when the segment was.
  void join_all();
  void use(std::span<const int32_t> path, int32_t priority, bool is_match);
  int64_t next_victim() const;  // -1: no unlocked leaf

  EvictionPolicy policy_;
  std::function<bool(PageId)> is_requested_;
  std::vector<Segment> segments_;
  std::multiset<Tokens> locked_;
  int64_t clock_ = 0;
  int64_t num_evicted_tokens_ = 0;
};

}  // namespace hadal
