// Runs random requests against RadixCache and NaivePrefixCache side by side. Pages have contents here: each
// row contains a hash of all tokens up to it, because a model's KV record depends on all of them. A page that
// is shared, copied or freed wrongly shows as a row with the hash of another path. The naive cache knows no
// salts: it gets the same tokens under other numbers for each salt.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "cache/radix_cache.h"
#include "tests/cache/naive_prefix_cache.h"

namespace hadal {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kNumTokens = 2;  // tokens are below it

// Returns what the naive cache gets in place of `tokens`.
Tokens renumbered(std::span<const int32_t> tokens, uint64_t salt) {
  Tokens out(tokens.begin(), tokens.end());
  for (int32_t& token : out) token += kNumTokens * static_cast<int32_t>(salt);
  return out;
}

struct Request {
  CacheOwner owner;
  Tokens tokens;  // computed and still to be computed
  int64_t num_computed = 0;
  std::vector<PageId> pages;  // the request has a reference to each
  CacheNodeId node = kRootNode;
  int64_t num_locked = 0;  // tokens that the lock covers
  int32_t priority = 0;
  bool ended = false;
};

class RandomRequests {
 public:
  RandomRequests(uint64_t seed, EvictionPolicy policy, int64_t num_pages, int64_t max_requests)
      : random_(seed),
        max_requests_(max_requests),
        pool_(num_pages),
        cache_(pool_, policy),
        naive_(policy, [this](PageId page) { return refs_.contains(page); }),
        rows_(num_pages) {}

  void step() {
    const uint64_t choice = random_() % 100;
    if (choice < 25) {
      if (std::ssize(requests_) < max_requests_) start();
    } else if (choice < 55) {
      if (Request* request = any_request()) compute(*request);
    } else if (choice < 65) {
      if (Request* request = any_request()) insert(*request);
    } else if (choice < 70) {
      if (Request* request = any_request()) append_random(request->tokens, 1 + random_() % 90);
    } else if (choice < 86) {
      if (Request* request = any_request()) {
        insert(*request);
        end(*request);
      }
    } else if (choice < 92) {
      if (Request* request = any_request()) end(*request);  // aborted: nothing more is cached
    } else if (choice < 97) {
      evict(1 + random_() % 4);
    } else if (choice < 99) {
      const Tokens tokens = random_tokens();
      const uint64_t salt = random_salt();
      EXPECT_EQ(cache_.match_length(tokens, {.low = salt}), naive_.match_length(renumbered(tokens, salt)));
    } else if (random_() % 16 == 0) {
      EXPECT_EQ(cache_.clear(), naive_.clear());
      check_contents();
    }
    std::erase_if(requests_, [](const Request& request) { return request.ended; });
    compare();
  }

  void check_integrity() const { cache_.check_integrity(refs_); }

  // RadixCache finds everything that the naive cache has. It has nothing else, because the totals agree.
  void check_contents() const {
    for (const auto& segment : naive_.segments()) {
      const auto salt = static_cast<uint64_t>(segment.path.front() / kNumTokens);
      Tokens path = segment.path;
      for (int32_t& token : path) token %= kNumTokens;
      ASSERT_EQ(cache_.match_length(path, {.low = salt}), std::ssize(path));
    }
  }

  void end_all() {
    for (Request& request : requests_) end(request);
    requests_.clear();
    EXPECT_EQ(cache_.clear(), naive_.clear());
    EXPECT_EQ(pool_.num_free(), pool_.num_pages());
    EXPECT_EQ(cache_.num_nodes(), 0);
    EXPECT_EQ(cache_.num_salts(), 0);
    check_integrity();
  }

  int64_t num_shared_tokens = 0;
  int64_t num_copied_tokens = 0;
  int64_t num_evicted_pages = 0;

 private:
  static constexpr uint64_t kNumClients = 12;

  static uint64_t extend_hash(uint64_t hash, int32_t token) {
    return (hash ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15ULL + (hash >> 31);
  }

  // Usually returns none, so that requests share enough.
  uint64_t random_salt() { return std::max<uint64_t>(random_() % 12, 9) - 9; }

  Request* any_request() { return requests_.empty() ? nullptr : &requests_[random_() % requests_.size()]; }

  void append_random(Tokens& tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random_() % kNumTokens));
  }

  // Usually returns an earlier sequence, cut anywhere or near the end of a page, and then some new tokens.
  Tokens random_tokens() {
    Tokens tokens;
    if (!history_.empty() && random_() % 16 != 0) {
      tokens = history_[random_() % history_.size()];
      int64_t size = static_cast<int64_t>(random_() % (tokens.size() + 1));
      if (random_() % 2 == 0) size = size / 64 * 64 + static_cast<int64_t>(random_() % 5) - 2;
      tokens.resize(std::clamp<int64_t>(size, 0, std::ssize(tokens)));
    }
    append_random(tokens, random_() % 3 == 0 ? random_() % 200 : random_() % 20);
    if (tokens.size() > 320) tokens.resize(320);
    if (tokens.empty()) tokens.push_back(0);
    return tokens;
  }

  PageId allocate() {
    if (pool_.num_free() == 0 && evict(1) == 0) return -1;
    const PageId page = pool_.allocate().value();
    EXPECT_FALSE(refs_.contains(page));
    refs_[page] = 1;
    rows_[page].fill(random_());  // the previous contents are gone
    return page;
  }

  int64_t evict(int64_t num_pages) {
    const int64_t gained = cache_.evict(num_pages);
    EXPECT_EQ(gained, naive_.evict(num_pages));
    num_evicted_pages += gained;
    check_contents();
    return gained;
  }

  void start() {
    Request request;
    request.tokens = random_tokens();
    request.priority = static_cast<int32_t>(random_() % 5) - 2;
    const std::span<const int32_t> limited = std::span(request.tokens).first(request.tokens.size() - 1);
    request.owner = {.salt = {.low = random_salt()}, .client = random_() % kNumClients};
    const Tokens naive_tokens = renumbered(limited, request.owner.salt.low);
    const PrefixMatch match = cache_.match(limited, request.priority, request.owner);
    const PrefixMatch expected = naive_.match(naive_tokens, request.priority);
    ASSERT_EQ(match.shared_tokens, expected.shared_tokens);
    ASSERT_EQ(match.partial_tokens, expected.partial_tokens);
    ASSERT_EQ(match.pages, expected.pages);
    ASSERT_EQ(match.partial_page, expected.partial_page);
    check_told(request, limited, match);

    request.node = match.node;
    request.num_locked = match.shared_tokens;
    request.pages = match.pages;
    request.num_computed = match.shared_tokens;
    cache_.lock(match.node);
    naive_.lock(Tokens(naive_tokens.begin(), naive_tokens.begin() + match.shared_tokens));
    for (const PageId page : match.pages) {
      pool_.add_ref(page);
      ++refs_[page];
    }
    num_shared_tokens += match.shared_tokens;
    if (match.partial_tokens > 0) {
      const auto source = rows_[match.partial_page];  // the copy runs before later writes
      const PageId page = allocate();
      if (page == -1) return end(request);
      std::copy_n(source.begin(), match.partial_tokens, rows_[page].begin());
      request.pages.push_back(page);
      request.num_computed += match.partial_tokens;
      num_copied_tokens += match.partial_tokens;
    }
    check_rows(request);
    requests_.push_back(request);
  }

  // Computes some of the request's next tokens. If there is no page for them, the request is ended as if
  // retracted.
  void compute(Request& request) {
    const int64_t target = std::min(std::ssize(request.tokens),
                                    request.num_computed + 1 + static_cast<int64_t>(random_() % 150));
    while (std::ssize(request.pages) * 64 < target) {
      const PageId page = allocate();
      if (page == -1) {
        insert(request);
        return end(request);
      }
      request.pages.push_back(page);
    }
    uint64_t hash = request.owner.salt.low;
    for (int64_t i = 0; i < target; ++i) {
      hash = extend_hash(hash, request.tokens[i]);
      if (i >= request.num_computed) rows_[request.pages[i / 64]][i % 64] = hash;
    }
    request.num_computed = target;
  }

  void insert(Request& request) {
    check_rows(request);
    const std::span<const int32_t> computed = std::span(request.tokens).first(request.num_computed);
    const std::span<const PageId> pages = std::span(request.pages).first((computed.size() + 63) / 64);
    const Tokens naive_tokens = renumbered(computed, request.owner.salt.low);
    const CacheNodeId node = cache_.insert(computed, pages, request.priority, request.owner);
    naive_.insert(naive_tokens, pages, request.priority);
    cache_.lock(node);
    cache_.unlock(request.node);
    naive_.unlock(Tokens(naive_tokens.begin(), naive_tokens.begin() + request.num_locked));
    request.node = node;
    request.num_locked = request.num_computed / 64 * 64;
    naive_.lock(Tokens(naive_tokens.begin(), naive_tokens.begin() + request.num_locked));
    ASSERT_EQ(cache_.match_length(computed, request.owner.salt), std::ssize(computed));
    inserted_[{request.owner.client, request.owner.salt.low}].emplace(computed.begin(), computed.end());
  }

  // If a client is told of more than whole pages, it has inserted these tokens itself before.
  void check_told(const Request& request, std::span<const int32_t> tokens, const PrefixMatch& match) const {
    ASSERT_GE(match.told_tokens, match.shared_tokens);
    ASSERT_LE(match.told_tokens, match.num_tokens());
    if (match.told_tokens == match.shared_tokens) return;
    int64_t longest = 0;
    const auto own = inserted_.find({request.owner.client, request.owner.salt.low});
    if (own != inserted_.end()) {
      for (const Tokens& path : own->second) {
        const auto [end, unused] = std::mismatch(path.begin(), path.end(), tokens.begin(), tokens.end());
        longest = std::max<int64_t>(longest, end - path.begin());
      }
    }
    ASSERT_GE(longest, match.told_tokens);
  }

  void end(Request& request) {
    check_rows(request);
    cache_.unlock(request.node);
    const auto locked = std::span(request.tokens).first(static_cast<size_t>(request.num_locked));
    naive_.unlock(renumbered(locked, request.owner.salt.low));
    for (const PageId page : request.pages) {
      pool_.release(page);
      if (--refs_[page] == 0) refs_.erase(page);
    }
    if (history_.size() < 16) {
      history_.push_back(request.tokens);
    } else {
      history_[random_() % history_.size()] = request.tokens;
    }
    request.ended = true;
  }

  void check_rows(const Request& request) const {
    uint64_t hash = request.owner.salt.low;
    for (int64_t i = 0; i < request.num_computed; ++i) {
      hash = extend_hash(hash, request.tokens[i]);
      ASSERT_EQ(rows_[request.pages[i / 64]][i % 64], hash) << "position " << i;
    }
  }

  void compare() const {
    ASSERT_EQ(cache_.num_nodes(), std::ssize(naive_.segments()));
    ASSERT_EQ(cache_.num_tokens(), naive_.num_tokens());
    ASSERT_EQ(cache_.num_evicted_tokens(), naive_.num_evicted_tokens());
    ASSERT_EQ(cache_.evictable_pages(), naive_.evictable_pages());
    std::set<PageId> in_use = naive_.pages();
    for (const auto& [page, count] : refs_) in_use.insert(page);
    ASSERT_EQ(pool_.num_free(), pool_.num_pages() - std::ssize(in_use));
  }

  std::mt19937_64 random_;
  int64_t max_requests_;
  PagePool pool_;
  RadixCache cache_;
  std::unordered_map<PageId, int32_t> refs_;  // references of requests
  NaivePrefixCache naive_;
  std::vector<std::array<uint64_t, 64>> rows_;
  std::vector<Request> requests_;
  std::vector<Tokens> history_;
  std::map<std::pair<uint64_t, uint64_t>, std::set<Tokens>> inserted_;  // by client and salt
};

class RadixCacheProperty : public ::testing::TestWithParam<EvictionPolicy> {
 protected:
  // HADAL_TEST_SEED=N repeats the sequence of a failure.
  void run(int64_t num_pages, int64_t max_requests, int num_steps, int steps_between_checks) {
    const char* given = std::getenv("HADAL_TEST_SEED");
    const uint64_t seed = given == nullptr ? std::random_device{}() : std::strtoull(given, nullptr, 10);
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRequests requests(seed, GetParam(), num_pages, max_requests);
    for (int step = 0; step < num_steps && !HasFailure(); ++step) {
      try {
        requests.step();
        if (step % steps_between_checks == 0) requests.check_integrity();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      if (HasFailure()) ADD_FAILURE() << "in step " << step;
    }
    if (HasFailure()) return;
    requests.end_all();
    // The test proves nothing unless prefixes were shared.
    EXPECT_GT(requests.num_shared_tokens, num_steps / 8);
    EXPECT_GT(requests.num_copied_tokens, num_steps / 8);
    EXPECT_GT(requests.num_evicted_pages, num_steps / 40);
  }
};

TEST_P(RadixCacheProperty, AgreesWithTheNaiveModel) {
  run(40, 6, 120000, 50);
}
TEST_P(RadixCacheProperty, AgreesWithTheNaiveModelWhenPagesAreScarce) {
  run(8, 3, 100000, 50);
}
TEST_P(RadixCacheProperty, AgreesWithTheNaiveModelAndIsSoundAfterEveryOperation) {
  run(20, 4, 40000, 1);
}

std::string policy_name(const ::testing::TestParamInfo<EvictionPolicy>& param) {
  return std::vector<std::string>{"Lru", "Lfu", "Priority"}.at(static_cast<size_t>(param.param));
}
INSTANTIATE_TEST_SUITE_P(Policies, RadixCacheProperty,
                         ::testing::Values(EvictionPolicy::kLru, EvictionPolicy::kLfu,
                                           EvictionPolicy::kPriority),
                         policy_name);

}  // namespace
}  // namespace hadal
