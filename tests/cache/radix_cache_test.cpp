#include "cache/radix_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/cache/cache_world.h"

namespace hadal {
namespace {

using testing::CacheWorld;
using testing::Pages;
using testing::range;
using testing::Tokens;
using testing::operator+;

TEST(EvictionPolicyNames, ThreeAreAllowedAndAnErrorNamesTheField) {
  EXPECT_EQ(parse_eviction_policy("lru", "f").value(), EvictionPolicy::kLru);
  EXPECT_EQ(parse_eviction_policy("lfu", "f").value(), EvictionPolicy::kLfu);
  EXPECT_EQ(parse_eviction_policy("priority", "f").value(), EvictionPolicy::kPriority);
  const auto wrong = parse_eviction_policy("LRU", "--radix-eviction-policy");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.status().message,
            "--radix-eviction-policy: \"LRU\" is not an eviction policy; allowed: lru, lfu, priority");
}

TEST(RadixCache, WholePagesAreShared) {
  CacheWorld world;
  const Pages pages = world.keep(range(0, 128));
  const PrefixMatch match = world.cache.match(range(0, 128) + range(1000, 50));
  EXPECT_EQ(match.shared_tokens, 128);
  EXPECT_EQ(match.pages, pages);
  EXPECT_EQ(match.partial_tokens, 0);
  EXPECT_EQ(match.partial_page, -1);
  EXPECT_NE(match.node, kRootNode);
}

TEST(RadixCache, PartlyMatchedPageIsReportedForCopy) {
  CacheWorld world;
  const Pages pages = world.keep(range(0, 150));
  const PrefixMatch match = world.cache.match(range(0, 100) + range(1000, 50));
  EXPECT_EQ(match.shared_tokens, 64);
  EXPECT_EQ(match.pages, Pages{pages[0]});
  EXPECT_EQ(match.partial_page, pages[1]);
  EXPECT_EQ(match.partial_tokens, 36);
  EXPECT_EQ(match.num_tokens(), 100);
}

TEST(RadixCache, AMatchBelowOnePageIsCopiedWhole) {
  CacheWorld world;
  const Pages pages = world.keep(range(0, 150));
  const PrefixMatch match = world.cache.match(range(0, 63));
  EXPECT_EQ(match.node, kRootNode);
  EXPECT_TRUE(match.pages.empty());
  EXPECT_EQ(match.partial_page, pages[0]);
  EXPECT_EQ(match.partial_tokens, 63);
}

TEST(RadixCache, NothingMatchesAnEmptyOrUnknownSequence) {
  CacheWorld world;
  world.keep(range(0, 150));
  for (const Tokens& tokens : {Tokens{}, range(1, 100)}) {
    const PrefixMatch match = world.cache.match(tokens);
    EXPECT_EQ(match.node, kRootNode);
    EXPECT_EQ(match.num_tokens(), 0);
    EXPECT_EQ(match.partial_page, -1);
  }
}

TEST(RadixCache, BranchesInsideAPageHaveTheirOwnCopyOfIt) {
  CacheWorld world;
  const Pages first = world.keep(range(0, 192));
  const Tokens branch = range(0, 100) + range(1000, 92);
  Pages second = world.allocate(192);
  world.pool.release(second[0]);
  second[0] = first[0];  // shared; second[1] is the copy that the request continued writing in
  world.pool.add_ref(first[0]);
  world.cache.insert(branch, second);
  world.release(second);
  EXPECT_EQ(world.cache.match(range(0, 192)).pages, first);
  EXPECT_EQ(world.cache.match(branch).pages, second);
  EXPECT_EQ(world.num_used(), 5);
  EXPECT_EQ(world.cache.num_tokens(), 192 + 92);
  world.cache.check_integrity({});
}

TEST(RadixCache, KeepsItsOwnPagesOfTokensItAlreadyHad) {
  CacheWorld world;
  const Pages pages = world.keep(range(0, 128));
  world.keep(range(0, 128));
  EXPECT_EQ(world.cache.match(range(0, 128)).pages, pages);
  EXPECT_EQ(world.num_used(), 2);
}

// A turn ends at 100 tokens; the next turn continues with a copy of the second page.
TEST(RadixCache, ASequenceThatContinuesInsideAPageKeepsOnePageForIt) {
  CacheWorld world;
  const Pages first = world.keep(range(0, 100));
  Pages second = first;
  second[1] = world.allocate(64)[0];
  world.pool.add_ref(second[0]);
  world.cache.insert(range(0, 128), second);
  world.release(second);
  EXPECT_EQ(world.num_used(), 2);
  EXPECT_EQ(world.cache.match(range(0, 128)).pages, second);
  EXPECT_EQ(world.cache.match(range(0, 100)).partial_page, second[1]);
  world.cache.check_integrity({});
}

TEST(RadixCache, InsertReturnsTheNodeOfTheWholePages) {
  CacheWorld world;
  const Pages pages = world.allocate(150);
  const CacheNodeId node = world.cache.insert(range(0, 150), pages);
  EXPECT_EQ(node, world.cache.match(range(0, 128)).node);
  EXPECT_EQ(world.cache.insert(range(0, 63), Pages{pages[0]}), kRootNode);
  world.cache.lock(node);
  world.release(pages);
  EXPECT_EQ(world.cache.evictable_pages(), 1);  // the page after the whole pages
  EXPECT_EQ(world.cache.evict(64), 1);
  EXPECT_TRUE(world.has(range(0, 128)));
}

TEST(RadixCache, EvictionNeverFreesLockedPages) {
  CacheWorld world;
  const Pages pages = world.keep(range(0, 256));
  world.keep(range(1000, 64));
  const PrefixMatch match = world.cache.match(range(0, 128));
  world.cache.lock(match.node);
  world.cache.lock(match.node);
  EXPECT_EQ(world.cache.evictable_pages(), 3);
  EXPECT_EQ(world.cache.evict(64), 3);
  EXPECT_TRUE(world.has(range(0, 128)));
  EXPECT_EQ(world.pool.ref_count(pages[1]), 1);
  world.cache.unlock(match.node);
  EXPECT_EQ(world.cache.evict(64), 0);  // one lock is left
  world.cache.unlock(match.node);
  EXPECT_EQ(world.cache.evict(64), 2);
  EXPECT_EQ(world.cache.num_nodes(), 0);
  EXPECT_EQ(world.cache.num_evicted_tokens(), 256 + 64);
  world.cache.check_integrity({});
}

TEST(RadixCache, ALockSurvivesSplitsOfItsPath) {
  CacheWorld world;
  const Pages pages = world.allocate(256);
  const CacheNodeId node = world.cache.insert(range(0, 256), pages);
  world.cache.lock(node);
  world.release(pages);
  world.cache.match(range(0, 128));
  world.keep(range(0, 70) + range(1000, 10));
  world.cache.check_integrity({});
  world.cache.evict(64);
  EXPECT_TRUE(world.has(range(0, 256)));
  EXPECT_EQ(world.num_used(), 4);
  world.cache.unlock(node);
  world.cache.check_integrity({});
  EXPECT_EQ(world.cache.evictable_pages(), 4);
}

TEST(RadixCache, PagesThatRequestsHoldAreNotEvictable) {
  CacheWorld world;
  const Pages pages = world.allocate(128);
  world.cache.insert(range(0, 128), pages);
  EXPECT_EQ(world.cache.evictable_pages(), 0);
  EXPECT_EQ(world.cache.evict(1), 0);
  EXPECT_TRUE(world.has(range(0, 128)));  // nothing to gain, so nothing is evicted
  world.pool.release(pages[1]);
  EXPECT_EQ(world.cache.evictable_pages(), 1);
  world.pool.release(pages[0]);
  EXPECT_EQ(world.cache.evictable_pages(), 2);
}

TEST(RadixCache, EvictsNoMoreThanAskedAndLeavesBeforeParents) {
  CacheWorld world;
  world.keep(range(0, 64));
  world.keep(range(0, 64) + range(1000, 64));
  world.keep(range(0, 64) + range(2000, 64));
  EXPECT_EQ(world.cache.evict(1), 1);
  EXPECT_FALSE(world.has(range(0, 64) + range(1000, 64)));
  EXPECT_EQ(world.cache.evict(1), 1);
  EXPECT_FALSE(world.has(range(0, 64) + range(2000, 64)));
  EXPECT_TRUE(world.has(range(0, 64)));
  EXPECT_EQ(world.cache.evict(0), 0);
  EXPECT_EQ(world.cache.evict(1), 1);
}

TEST(RadixCache, LruEvictsWhatWasNotUsedForLongest) {
  CacheWorld world;
  for (const int32_t first : {0, 1000, 2000}) world.keep(range(first, 64));
  world.cache.match(range(0, 64));            // counts as a use
  world.keep(range(1000, 64));                // counts as a use
  world.cache.match_length(range(2000, 64));  // does not count as a use
  world.cache.evict(1);
  EXPECT_FALSE(world.has(range(2000, 64)));
  world.cache.evict(1);
  EXPECT_FALSE(world.has(range(0, 64)));
  EXPECT_TRUE(world.has(range(1000, 64)));
}

TEST(RadixCache, LfuEvictsWhatWasMatchedLeastThenOldest) {
  CacheWorld world(EvictionPolicy::kLfu);
  for (const int32_t first : {0, 1000, 2000}) world.keep(range(first, 64));
  world.cache.match(range(0, 64));
  world.cache.match(range(0, 64));
  world.cache.match(range(2000, 64));
  world.cache.match(range(1000, 64));
  world.cache.evict(1);
  EXPECT_FALSE(world.has(range(2000, 64)));
  world.cache.evict(1);
  EXPECT_FALSE(world.has(range(1000, 64)));
  EXPECT_TRUE(world.has(range(0, 64)));
}

TEST(RadixCache, PriorityEvictsTheLowestThenOldest) {
  CacheWorld world(EvictionPolicy::kPriority);
  world.keep(range(0, 64), -1);
  world.keep(range(1000, 64), 5);
  world.keep(range(2000, 64), 1);
  world.cache.match(range(0, 64), 3);      // has the highest priority of its users
  world.cache.match(range(2000, 64), -7);  // and keeps its priority of 1
  world.cache.evict(1);
  EXPECT_FALSE(world.has(range(2000, 64)));
  world.cache.evict(1);
  EXPECT_FALSE(world.has(range(0, 64)));
  EXPECT_TRUE(world.has(range(1000, 64)));
}

TEST(RadixCache, ClearRemovesEverythingThatIsNotLocked) {
  CacheWorld world;
  world.keep(range(0, 256));
  world.keep(range(1000, 100));
  const PrefixMatch match = world.cache.match(range(0, 100));
  world.cache.lock(match.node);
  EXPECT_EQ(world.cache.clear(), 5);
  EXPECT_EQ(world.cache.num_tokens(), 64);
  EXPECT_TRUE(world.has(range(0, 64)));
  EXPECT_EQ(world.cache.num_evicted_tokens(), 0);
  world.cache.unlock(match.node);
  EXPECT_EQ(world.cache.clear(), 1);
  EXPECT_EQ(world.pool.num_free(), 64);
  world.cache.check_integrity({});
}

TEST(RadixCache, ADisabledCacheStoresAndFindsNothing) {
  CacheWorld world(EvictionPolicy::kLru, /*enabled=*/false);
  world.keep(range(0, 128));
  EXPECT_EQ(world.pool.num_free(), 64);
  const PrefixMatch match = world.cache.match(range(0, 128));
  EXPECT_EQ(match.num_tokens(), 0);
  world.cache.lock(match.node);
  EXPECT_EQ(world.cache.evict(1), 0);
  EXPECT_EQ(world.cache.clear(), 0);
  EXPECT_EQ(world.cache.num_nodes(), 0);
  world.cache.unlock(match.node);
  world.cache.check_integrity({});
}

TEST(RadixCache, MisuseIsABrokenInvariant) {
  CacheWorld world;
  const Pages pages = world.allocate(128);
  EXPECT_THROW(world.cache.insert(range(0, 129), pages), Error);
  const CacheNodeId node = world.cache.insert(range(0, 128), pages);
  EXPECT_THROW(world.cache.unlock(node), Error);
  EXPECT_THROW(world.cache.unlock(kRootNode), Error);
  world.cache.clear();
  EXPECT_THROW(world.cache.lock(node), Error);
  EXPECT_THROW(world.cache.lock(-1), Error);
}

TEST(RadixCache, CheckIntegrityFindsEveryWrongReference) {
  CacheWorld world;
  const Pages pages = world.allocate(128);
  world.cache.insert(range(0, 128), pages);
  EXPECT_NO_THROW(world.cache.check_integrity({{pages[0], 1}, {pages[1], 1}}));
  EXPECT_THROW(world.cache.check_integrity({{pages[0], 1}}), Error);  // one leaked reference
  EXPECT_THROW(world.cache.check_integrity({{pages[0], 1}, {pages[1], 2}}), Error);
  EXPECT_THROW(world.cache.check_integrity({{pages[0], 1}, {pages[1], 1}, {64, 1}}), Error);
  world.pool.add_cache_ref(pages[0]);  // a reference that no node has
  EXPECT_THROW(world.cache.check_integrity({{pages[0], 1}, {pages[1], 1}}), Error);
}

TEST(RadixCache, DifferentSaltsShareNothing) {
  CacheWorld world;
  const CacheSalt a{.low = 1};
  const CacheSalt b{.high = 1};
  const Pages plain = world.keep(range(0, 128));
  const Pages salted = world.allocate(128);
  world.cache.insert(range(0, 128), salted, 0, {.salt = a});
  world.release(salted);
  EXPECT_EQ(world.cache.match(range(0, 128)).pages, plain);
  EXPECT_EQ(world.cache.match(range(0, 128), 0, {.salt = a}).pages, salted);
  EXPECT_EQ(world.cache.match(range(0, 128), 0, {.salt = b}).num_tokens(), 0);
  EXPECT_EQ(world.cache.match_length(range(0, 100), b), 0);
  EXPECT_EQ(world.cache.num_salts(), 1);
  world.cache.check_integrity({});
}

TEST(RadixCache, ASaltIsForgottenWithItsLastNode) {
  CacheWorld world;
  for (uint64_t salt = 1; salt <= 1000; ++salt) {  // many more than there are pages
    if (world.pool.num_free() == 0) world.cache.evict(1);
    const Pages pages = world.allocate(64);
    world.cache.insert(range(0, 64), pages, 0, {.salt = {.low = salt}});
    world.release(pages);
  }
  EXPECT_EQ(world.cache.num_salts(), 64);
  world.cache.check_integrity({});
  world.cache.clear();
  EXPECT_EQ(world.cache.num_salts(), 0);
  world.cache.check_integrity({});
}

// Otherwise a client could add one token after the other to what another client has sent, and learn from the
// count which tokens are right.
TEST(RadixCache, OthersPrefixesAreReportedInWholePagesOnly) {
  CacheWorld world;
  const auto told = [&](int64_t count, uint64_t client) {
    return world.cache.match(range(0, count), 0, {.client = client}).told_tokens;
  };
  const Pages pages = world.allocate(200);
  world.cache.insert(range(0, 200), pages, 0, {.client = 1});
  for (const int64_t count : {1, 63, 64, 65, 127, 128, 150, 199, 200}) {
    EXPECT_EQ(told(count, 1), count);
    EXPECT_EQ(told(count, 2), count / 64 * 64);
  }
  // Once a client has inserted a prefix itself, it is told the exact length, even where the other client's
  // prompt goes on.
  world.cache.insert(range(0, 150), Pages{pages[0], pages[1], pages[2]}, 0, {.client = 2});
  EXPECT_EQ(told(140, 2), 140);
  EXPECT_EQ(told(150, 2), 150);
  EXPECT_EQ(told(151, 2), 150);
  EXPECT_EQ(told(200, 2), 192);
  EXPECT_EQ(told(200, 1), 200) << "the other's insert tells the first client nothing";
  EXPECT_EQ(told(151, 3), 128);
  world.release(pages);
  world.cache.check_integrity({});
}

TEST(RadixCache, OnlyAFewWritersOfANodeAreRemembered) {
  CacheWorld world;
  const Pages pages = world.allocate(40);
  for (uint64_t client = 1; client <= 20; ++client)
    world.cache.insert(range(0, 40), pages, 0, {.client = client});
  EXPECT_EQ(world.cache.match(range(0, 40), 0, {.client = 20}).told_tokens, 40);
  EXPECT_EQ(world.cache.match(range(0, 40), 0, {.client = 1}).told_tokens, 0);
  world.release(pages);
  world.cache.check_integrity({});
}

}  // namespace
}  // namespace hadal
