// Holds a small prefix cache and what tests of it do to it.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "cache/radix_cache.h"

namespace hadal::testing {

using Tokens = std::vector<int32_t>;
using Pages = std::vector<PageId>;

inline Tokens range(int32_t first, int64_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// CacheWorld is a cache over 64 pages, without an engine.
struct CacheWorld {
  explicit CacheWorld(EvictionPolicy policy = EvictionPolicy::kLru, bool enabled = true)
      : cache(pool, policy, enabled) {}

  // Allocates pages for this number of tokens, with one reference of a request to each.
  Pages allocate(int64_t num_tokens) {
    Pages pages((num_tokens + 63) / 64);
    for (PageId& page : pages) page = pool.allocate().value();
    return pages;
  }
  void release(const Pages& pages) {
    for (const PageId page : pages) pool.release(page);
  }
  // Leaves the cache as a request does that has computed all of `tokens` and ended. Returns its pages.
  Pages keep(const Tokens& tokens, int32_t priority = 0) {
    Pages pages = allocate(std::ssize(tokens));
    cache.insert(tokens, pages, priority);
    release(pages);
    return pages;
  }
  bool has(const Tokens& tokens) const { return cache.match_length(tokens) == std::ssize(tokens); }
  int64_t num_used() const { return pool.num_pages() - pool.num_free(); }

  PagePool pool{64};
  RadixCache cache;
};

}  // namespace hadal::testing
