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
  check_id(page);
  HADAL_CHECK_GT(pages_[page].refs, 0);
  ++pages_[page].refs;
}

void PagePool::release(PageId page) {
  check_id(page);
  HADAL_CHECK_GT(pages_[page].refs, 0);
  if (--pages_[page].refs == 0) free_.push_back(page);
}

int32_t PagePool::ref_count(PageId page) const {
  check_id(page);
  return pages_[page].refs;
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
  for (size_t i = 0; i < pages_.size(); ++i) {
    HADAL_CHECK(is_free[i] == (pages_[i].refs == 0), "page {}: free {} with {} references", i,
                bool{is_free[i]}, pages_[i].refs);
  }
}

void PagePool::check_id(PageId page) const {
  HADAL_CHECK(page >= 0 && page < num_pages(), "page {} of {}", page, num_pages());
}

}  // namespace hadal
