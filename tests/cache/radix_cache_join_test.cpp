// Tests that parts of a path inside one page are joined when nothing branches off between them, and that this
// changes neither locks, nor which pages are evicted first, nor what clients are told.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "cache/radix_cache.h"
#include "tests/cache/cache_world.h"

namespace hadal {
namespace {

using testing::CacheWorld;
using testing::Pages;
using testing::range;
using testing::Tokens;
using testing::operator+;

// Each prompt has one token more than the one before.
TEST(RadixCacheJoin, APathThatGrowsTokenByTokenHasOneNodeForEachPage) {
  for (const auto policy : {EvictionPolicy::kLru, EvictionPolicy::kLfu, EvictionPolicy::kPriority}) {
    CacheWorld world(policy);
    for (int32_t size = 1; size <= 20 * 64; ++size) {
      Pages pages = world.cache.match(range(0, size)).pages;
      for (const PageId page : pages) world.pool.add_ref(page);
      if (std::ssize(pages) * 64 < size) pages.push_back(world.allocate(1)[0]);
      world.cache.insert(range(0, size), pages);
      world.release(pages);
      ASSERT_LE(world.cache.num_nodes(), (size + 63) / 64);
      ASSERT_EQ(world.num_used(), (size + 63) / 64);
    }
    EXPECT_TRUE(world.has(range(0, 20 * 64)));
    world.cache.check_integrity({});
  }
}

// Of two prompts that part inside a page, one is evicted.
TEST(RadixCacheJoin, APathWhoseBranchIsEvictedIsJoinedAgainAndKeepsOnePage) {
  CacheWorld world;
  const Pages first = world.keep(range(0, 192));
  Pages second = world.allocate(192);
  world.cache.insert(range(0, 100) + range(1000, 92), second, 0, {.client = 7});
  world.release(second);
  EXPECT_EQ(world.cache.num_nodes(), 3);
  const CacheNodeId locked = world.cache.match(range(0, 192)).node;
  world.cache.lock(locked);
  EXPECT_EQ(world.cache.evict(64), 2)
      << "the pages of the second prompt after the first page, which it shares";
  EXPECT_EQ(world.cache.num_nodes(), 2);
  EXPECT_EQ(world.cache.match(range(0, 192)).pages, first);
  EXPECT_EQ(world.cache.match(range(0, 192)).node, locked) << "a lock names the same node as before";
  world.cache.check_integrity({});
  world.cache.unlock(locked);
  EXPECT_EQ(world.cache.evict(64), 3);
  world.cache.check_integrity({});
}

TEST(RadixCacheJoin, APageThatIsJoinedIsEvictedWhenItsFirstPartWouldHaveBeen) {
  CacheWorld world(EvictionPolicy::kLfu);
  world.keep(range(0, 40));
  for (int i = 0; i < 3; ++i) world.cache.match(range(0, 40));
  world.keep(range(0, 150));  // continues inside the page, and beyond it
  world.keep(range(1000, 64));
  world.cache.match(range(1000, 64));
  EXPECT_EQ(world.cache.evict(2), 2);
  EXPECT_TRUE(world.has(range(0, 64))) << "all of the page that was matched three times is kept";
  EXPECT_FALSE(world.has(range(0, 65))) << "pages after it have not been matched";
  EXPECT_EQ(world.cache.evict(1), 1);
  EXPECT_FALSE(world.has(range(1000, 1)));
  EXPECT_TRUE(world.has(range(0, 64)));
}

TEST(RadixCacheJoin, OnlyNodesThatEndWithAPageMayBeLocked) {
  CacheWorld world;
  world.keep(range(0, 40));
  EXPECT_THROW(world.cache.lock(1), Error);
  EXPECT_NO_THROW(world.cache.lock(kRootNode));
}

// The parts of a joined page were sent by different clients.
TEST(RadixCacheJoin, AJoinedPageTellsEachClientWhatItHasSent) {
  CacheWorld world;
  const Pages pages = world.allocate(64);
  const auto insert = [&](int64_t count, uint64_t client) {
    world.cache.insert(range(0, count), pages, 0, {.client = client});
  };
  const auto told = [&](int64_t count, uint64_t client) {
    return world.cache.match(range(0, count), 0, {.client = client}).told_tokens;
  };
  insert(10, 1);
  insert(30, 2);
  insert(20, 3);
  EXPECT_EQ(world.cache.num_nodes(), 1);
  for (const int64_t count : {5, 10, 11, 20, 21, 30}) {
    EXPECT_EQ(told(count, 1), std::min<int64_t>(count, 10)) << count;
    EXPECT_EQ(told(count, 2), count);
    EXPECT_EQ(told(count, 3), std::min<int64_t>(count, 20)) << count;
    EXPECT_EQ(told(count, 4), 0);
  }
  insert(25, 1);
  EXPECT_EQ(told(30, 1), 25);
  world.release(pages);
}

// Random prompts of few clients, none of which is ever evicted or forgotten.
TEST(RadixCacheJoin, AClientIsToldExactlyWhatItHasSent) {
  std::mt19937 random(1);
  PagePool pool(4096);
  RadixCache cache(pool, EvictionPolicy::kLru);
  std::vector<Tokens> history(1);
  std::map<uint64_t, std::vector<Tokens>> sent;
  for (int i = 0; i < 1500; ++i) {
    Tokens tokens = history[random() % history.size()];
    tokens.resize(random() % (tokens.size() + 1));
    for (uint32_t more = random() % 30; more > 0; --more)
      tokens.push_back(static_cast<int32_t>(random() % 2));
    if (tokens.empty() || tokens.size() > 200) continue;
    const CacheOwner owner{.client = random() % 8};
    const PrefixMatch match = cache.match(tokens, 0, owner);
    int64_t own = 0;
    for (const Tokens& other : sent[owner.client]) {
      const auto [end, unused] = std::mismatch(other.begin(), other.end(), tokens.begin(), tokens.end());
      own = std::max<int64_t>(own, end - other.begin());
    }
    ASSERT_EQ(match.told_tokens, std::max(own, match.shared_tokens)) << "prompt " << i;
    Pages pages = match.pages;
    for (const PageId page : pages) pool.add_ref(page);
    while (std::ssize(pages) * 64 < std::ssize(tokens)) pages.push_back(pool.allocate().value());
    cache.insert(tokens, pages, 0, owner);
    for (const PageId page : pages) pool.release(page);
    sent[owner.client].push_back(tokens);
    history.push_back(tokens);
  }
  cache.check_integrity({});
}

}  // namespace
}  // namespace hadal
