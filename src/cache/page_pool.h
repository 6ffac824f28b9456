// The pool of KV pages: host-side ids only, the bytes live with the model. Engine thread only.
//
// Who owns a page: the pool while its count is 0 (it is on the free list), otherwise every holder of a
// reference together. The generation goes up each time a page is handed out, so that a stale id can be told
// from a live one.
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

  int32_t ref_count(PageId page) const;
  uint32_t generation(PageId page) const;

  // Proves that every page is either free exactly once with count 0, or not free with count > 0. Throws
  // otherwise.
  void check_integrity() const;

 private:
  struct Page {
    int32_t refs = 0;
    uint32_t generation = 0;
  };
  void check_id(PageId page) const;

  std::vector<Page> pages_;
  std::vector<PageId> free_;  // a stack: the page given back last is warmest in the caches
};

}  // namespace hadal
