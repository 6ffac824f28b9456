// PagePool manages KV pages by host-side ids; the bytes belong to the model. Only the engine thread uses it.
//
// A page whose count is 0 belongs to the pool: it is on the free list. Any other page belongs to all holders
// of a reference together. The generation increases each time a page is allocated, so that a stale id can be
// told from a live one.
//
// The prefix cache (at most one per pool) has its own kind of reference, and pins for pages that must not be
// evicted. The pool counts both, so num_evictable() is exact whether the cache or a request adds or drops a
// reference.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"

namespace hadal {

using PageId = int32_t;

class PagePool {
 public:
  // num_pages must be at least 1.
  explicit PagePool(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // Returns a page with one reference, or nullopt when none is free.
  std::optional<PageId> allocate();
  void add_ref(PageId page);
  // Drops one reference; dropping the last one frees the page.
  void release(PageId page);

  // Adds a reference of the cache. ref_count() includes it, and release() never drops it.
  void add_cache_ref(PageId page);
  void release_cache_ref(PageId page);
  // Adds one pin for each cache reference that must not be dropped now.
  void pin(PageId page);
  void unpin(PageId page);

  // Counts the pages to which only the cache refers and which have no pin. They would be free if the cache
  // dropped every reference that it may drop.
  int64_t num_evictable() const { return num_evictable_; }

  int32_t ref_count(PageId page) const;
  int32_t cache_ref_count(PageId page) const;
  int32_t pin_count(PageId page) const;
  uint32_t generation(PageId page) const;

  // Proves that every page is either free exactly once with count 0, or not free with count > 0, and that the
  // partial counts agree with the total. It throws otherwise.
  void check_integrity() const;

 private:
  struct Page {
    int32_t refs = 0;        // includes the cache's
    int32_t cache_refs = 0;  // [0, refs]
    int32_t pins = 0;        // [0, cache_refs]
    uint32_t generation = 0;
    bool evictable() const { return refs > 0 && refs == cache_refs && pins == 0; }
  };
  void check_id(PageId page) const;
  // Adds to the three counts, each of which must stay in its range; a page without references becomes free.
  void change(PageId page, int32_t refs, int32_t cache_refs, int32_t pins);

  std::vector<Page> pages_;
  int64_t num_evictable_ = 0;
  std::vector<PageId> free_;  // a stack: the page freed last is warmest in the processor's caches
};

}  // namespace hadal
