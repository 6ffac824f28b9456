#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace hadal {
namespace {

TEST(PagePool, HandsOutEveryPageOnceThenNone) {
  PagePool pool(3);
  std::vector<PageId> pages;
  for (int i = 0; i < 3; ++i) pages.push_back(pool.allocate().value());
  std::sort(pages.begin(), pages.end());
  EXPECT_EQ(pages, (std::vector<PageId>{0, 1, 2}));
  EXPECT_FALSE(pool.allocate().has_value());
  pool.check_integrity();
}

TEST(PagePool, GenerationTellsAReusedPageFromItsFormerSelf) {
  PagePool pool(1);
  const PageId page = pool.allocate().value();
  const uint32_t generation = pool.generation(page);
  pool.release(page);
  EXPECT_EQ(pool.allocate().value(), page);
  EXPECT_NE(pool.generation(page), generation);
}

TEST(PagePool, MisuseIsABrokenInvariant) {
  PagePool pool(2);
  EXPECT_THROW(pool.release(0), Error);
  EXPECT_THROW(pool.add_ref(1), Error);
  EXPECT_THROW(pool.release(2), Error);
  EXPECT_THROW(pool.ref_count(-1), Error);
}

TEST(PagePool, OnlyTheCachesUnpinnedPagesAreEvictable) {
  PagePool pool(2);
  const PageId page = pool.allocate().value();
  EXPECT_EQ(pool.num_evictable(), 0);
  pool.add_cache_ref(page);
  EXPECT_EQ(pool.num_evictable(), 0);  // not while a request refers to it too
  pool.release(page);
  EXPECT_EQ(pool.num_evictable(), 1);
  pool.pin(page);
  EXPECT_EQ(pool.num_evictable(), 0);
  EXPECT_THROW(pool.release_cache_ref(page), Error);
  pool.unpin(page);
  pool.add_ref(page);
  EXPECT_EQ(pool.num_evictable(), 0);
  pool.check_integrity();
  pool.release(page);
  pool.release_cache_ref(page);
  EXPECT_EQ(pool.num_evictable(), 0);
  EXPECT_EQ(pool.num_free(), 2);
  pool.check_integrity();
}

TEST(PagePool, ReleaseNeverDropsTheCachesReference) {
  PagePool pool(1);
  const PageId page = pool.allocate().value();
  EXPECT_THROW(pool.release_cache_ref(page), Error);
  EXPECT_THROW(pool.pin(page), Error);
  pool.add_cache_ref(page);
  pool.release(page);
  EXPECT_THROW(pool.release(page), Error);
  EXPECT_THROW(pool.unpin(page), Error);
  EXPECT_EQ(pool.ref_count(page), 1);
}

TEST(PagePool, RandomOperationsAgreeWithANaiveModel) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  PagePool pool(17);
  std::vector<int> refs(17);
  for (int step = 0; step < 100000; ++step) {
    const auto page = static_cast<PageId>(random() % 17);
    switch (random() % 3) {
      case 0: {
        const auto got = pool.allocate();
        const bool any_free = std::count(refs.begin(), refs.end(), 0) > 0;
        ASSERT_EQ(got.has_value(), any_free);
        if (got) {
          ASSERT_EQ(refs[*got], 0);
          refs[*got] = 1;
        }
        break;
      }
      case 1:
        if (refs[page] > 0) {
          pool.add_ref(page);
          ++refs[page];
        }
        break;
      default:
        if (refs[page] > 0) {
          pool.release(page);
          --refs[page];
        }
    }
    ASSERT_EQ(pool.ref_count(page), refs[page]);
    ASSERT_EQ(pool.num_free(), std::count(refs.begin(), refs.end(), 0));
    if (step % 1000 == 0) pool.check_integrity();
  }
  pool.check_integrity();
}

}  // namespace
}  // namespace hadal
