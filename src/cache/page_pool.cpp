#include "cache/page_pool.h"

#include "base/check.h"

namespace hadal {

PagePool::PagePool(int64_t num_pages) : pages_(num_pages) {
  HADAL_CHECK_GE(num_pages, 1);
  free_.reserve(num_pages);
  for (int64_t i = num_pages - 1; i >= 0; --i) free_.push_back(static_cast<PageId>(i));
}

std::optional<PageId> PagePool::allocate() {
  if (free_.empty()) return std::nullopt;
  const PageId page = free_.back();
  free_.pop_back();
  pages_[page].refs = 1;
  ++pages_[page].generation;
  return page;
}

void PagePool::add_ref(PageId page) {
  change(page, 1, 0, 0);
}
void PagePool::release(PageId page) {
  change(page, -1, 0, 0);
}
void PagePool::add_cache_ref(PageId page) {
  change(page, 1, 1, 0);
}
void PagePool::release_cache_ref(PageId page) {
  change(page, -1, -1, 0);
}
void PagePool::pin(PageId page) {
  change(page, 0, 0, 1);
}
void PagePool::unpin(PageId page) {
  change(page, 0, 0, -1);
}

void PagePool::change(PageId page, int32_t refs, int32_t cache_refs, int32_t pins) {
  check_id(page);
  Page& entry = pages_[page];
  Page next = entry;
  next.refs += refs;
  next.cache_refs += cache_refs;
  next.pins += pins;
  HADAL_CHECK(
      entry.refs > 0 && next.pins >= 0 && next.pins <= next.cache_refs && next.cache_refs <= next.refs,
      "page {}: {} references, {} of the cache, {} pins; change by {}, {}, {}", page, entry.refs,
      entry.cache_refs, entry.pins, refs, cache_refs, pins);
  num_evictable_ += int64_t{next.evictable()} - int64_t{entry.evictable()};
  entry = next;
  if (entry.refs == 0) free_.push_back(page);
}

int32_t PagePool::ref_count(PageId page) const {
  check_id(page);
  return pages_[page].refs;
}

int32_t PagePool::cache_ref_count(PageId page) const {
  check_id(page);
  return pages_[page].cache_refs;
}

int32_t PagePool::pin_count(PageId page) const {
  check_id(page);
  return pages_[page].pins;
}

uint32_t PagePool::generation(PageId page) const {
  check_id(page);
  return pages_[page].generation;
}

void PagePool::check_integrity() const {
  std::vector<bool> is_free(pages_.size());
  for (const PageId page : free_) {
    check_id(page);
    HADAL_CHECK(!is_free[page], "page {} is free twice", page);
    is_free[page] = true;
  }
  int64_t num_evictable = 0;
  for (size_t i = 0; i < pages_.size(); ++i) {
    const Page& page = pages_[i];
    HADAL_CHECK(0 <= page.pins && page.pins <= page.cache_refs && page.cache_refs <= page.refs,
                "page {}: {} references, {} of the cache, {} pins", i, page.refs, page.cache_refs, page.pins);
    num_evictable += page.evictable() ? 1 : 0;
    HADAL_CHECK(is_free[i] == (pages_[i].refs == 0), "page {}: free {} with {} references", i,
                bool{is_free[i]}, pages_[i].refs);
  }
  HADAL_CHECK_EQ(num_evictable, num_evictable_);
}

void PagePool::check_id(PageId page) const {
  HADAL_CHECK(page >= 0 && page < num_pages(), "page {} of {}", page, num_pages());
}

}  // namespace hadal
