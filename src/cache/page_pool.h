// The pool of KV pages: host-side ids only, the bytes live with the model. Engine thread only.
//
// Who owns a page: the pool while its count is 0 (it is on the free list), otherwise every holder of a
// reference together. The generation goes up each time a page is handed out, so that a stale id can be told
// from a live one.
//
// The prefix cache (at most one for each pool) has references of its own kind, and pins for those that must
// not go away. Counting both here keeps num_evictable() exact, whoever takes or drops a reference.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"

namespace hadal {

using PageId = int32_t;

class PagePool {
 public:
  // num_pages ≥ 1.
  explicit PagePool(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // A page with one reference, or nullopt when none is free.
  std::optional<PageId> allocate();
  void add_ref(PageId page);
  // Drops one reference; the last one gives the page back.
  void release(PageId page);

  // The cache's references. Part of ref_count(); release() never drops one of them.
  void add_cache_ref(PageId page);
  void release_cache_ref(PageId page);
  // One pin for each cache reference that may not be dropped now.
  void pin(PageId page);
  void unpin(PageId page);

  // Pages that the cache alone refers to, without a pin: those that would be free if the cache forgot all
  // that it may.
  int64_t num_evictable() const { return num_evictable_; }

  int32_t ref_count(PageId page) const;
  int32_t cache_ref_count(PageId page) const;
  int32_t pin_count(PageId page) const;
  uint32_t generation(PageId page) const;

  // Proves that every page is either free exactly once with count 0, or not free with count > 0, and that
  // the counts within the count agree. Throws otherwise.
  void check_integrity() const;

 private:
  struct Page {
    int32_t refs = 0;        // the cache's included
    int32_t cache_refs = 0;  // [0, refs]
    int32_t pins = 0;        // [0, cache_refs]
    uint32_t generation = 0;
    bool evictable() const { return refs > 0 && refs == cache_refs && pins == 0; }
  };
  void check_id(PageId page) const;
  // Adds to the three counts, none of which may leave its range; a page without references becomes free.
  void change(PageId page, int32_t refs, int32_t cache_refs, int32_t pins);

  std::vector<Page> pages_;
  int64_t num_evictable_ = 0;
  std::vector<PageId> free_;  // a stack: the page given back last is warmest in the caches
};

}  // namespace hadal
