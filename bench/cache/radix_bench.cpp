// Measures the time that the prefix cache adds to an admission. A 4,096-token prompt is matched, locked,
// inserted and unlocked, in an almost empty tree and in a tree of 100,000 nodes, with none, half or all of
// the prompt cached. Earlier requests may have divided the path of the prompt into many pieces.
#include <benchmark/benchmark.h>

#include <random>
#include <utility>
#include <vector>

#include "cache/radix_cache.h"

namespace {

using namespace hadal;  // NOLINT(google-build-using-namespace)
using Tokens = std::vector<int32_t>;

constexpr int64_t kPromptTokens = 4096;
constexpr int64_t kPromptPages = kPromptTokens / kCachePageSize;

// The permanent contents have priority 1 and the measured prompts 0, so eviction removes only the latter.
class Fixture {
 public:
  // Builds a tree of `num_nodes` leaves of 96 tokens: half below the root, half below prompts that share a
  // page.
  explicit Fixture(int64_t num_nodes)
      : pool_(2 * num_nodes + 64 * kPromptPages), cache_(pool_, EvictionPolicy::kPriority) {
    const Tokens system_prompt = random_tokens(70);
    for (int64_t i = 0; i < num_nodes; ++i) {
      Tokens tokens = i % 2 == 0 ? Tokens{} : system_prompt;
      tokens.resize(96);
      for (size_t k = i % 2 == 0 ? 0 : system_prompt.size(); k < tokens.size(); ++k)
        tokens[k] = random_token();
      keep(tokens);
    }
  }

  int32_t random_token() { return static_cast<int32_t>(random_() % 129280); }
  Tokens random_tokens(int64_t count) {
    Tokens tokens(count);
    for (int32_t& token : tokens) token = random_token();
    return tokens;
  }

  void keep(const Tokens& tokens) {
    const std::vector<PageId> pages = allocate(tokens.size());
    cache_.insert(tokens, pages, /*priority=*/1);
    for (const PageId page : pages) pool_.release(page);
  }

  // Does the same, with the cached pages of the prefix that the tree has already.
  void extend(const Tokens& tokens) {
    const PrefixMatch match = cache_.match(tokens);
    std::vector<PageId> pages = match.pages;
    for (const PageId page : pages) pool_.add_ref(page);
    const size_t num_pages = (tokens.size() + kCachePageSize - 1) / kCachePageSize;
    while (pages.size() < num_pages) pages.push_back(pool_.allocate().value());
    cache_.insert(tokens, pages, /*priority=*/1);
    for (const PageId page : pages) pool_.release(page);
  }

  std::vector<PageId> allocate(size_t num_tokens) {
    std::vector<PageId> pages((num_tokens + kCachePageSize - 1) / kCachePageSize);
    for (PageId& page : pages) page = pool_.allocate().value();
    return pages;
  }

  PagePool& pool() { return pool_; }
  RadixCache& cache() { return cache_; }

 private:
  std::mt19937_64 random_{1};
  PagePool pool_;
  RadixCache cache_;
};

// Makes the scheduler's calls to the cache for one prompt, from admission to the end of its prefill.
void serve_prompt(Fixture& fixture, const Tokens& prompt) {
  RadixCache& cache = fixture.cache();
  PagePool& pool = fixture.pool();
  PrefixMatch match = cache.match(prompt);
  cache.lock(match.node);
  for (const PageId page : match.pages) pool.add_ref(page);
  std::vector<PageId> pages = std::move(match.pages);
  while (std::ssize(pages) < kPromptPages) pages.push_back(pool.allocate().value());
  const CacheNodeId node = cache.insert(prompt, pages);
  cache.lock(node);
  cache.unlock(match.node);
  cache.unlock(node);
  for (const PageId page : pages) pool.release(page);
}

// The arguments are the number of nodes that the tree has beforehand and the number of prompt tokens that are
// cached.
void serve_prompts(benchmark::State& state) {
  Fixture fixture(state.range(0));
  const int64_t num_cached = state.range(1);
  const Tokens cached = fixture.random_tokens(kPromptTokens);
  if (num_cached > 0) fixture.keep(cached);
  constexpr size_t kBatch = 16;  // prompts between two readings of the clock
  for (auto _ : state) {
    state.PauseTiming();
    std::vector<Tokens> prompts(kBatch, cached);
    for (Tokens& prompt : prompts)
      for (int64_t i = num_cached; i < kPromptTokens; ++i) prompt[i] = fixture.random_token();
    state.ResumeTiming();
    for (const Tokens& prompt : prompts) serve_prompt(fixture, prompt);
    state.PauseTiming();
    while (fixture.pool().num_free() < 2 * static_cast<int64_t>(kBatch) * kPromptPages)
      fixture.cache().evict(1);
    state.ResumeTiming();
  }
  state.counters["time/prompt"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kBatch),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["nodes"] = static_cast<double>(fixture.cache().num_nodes());
}
BENCHMARK(serve_prompts)
    ->ArgNames({"nodes", "cached"})
    ->ArgsProduct({{0, 100000}, {0, kPromptTokens / 2 + 10, kPromptTokens}});

enum Division : int64_t {
  kUndivided,
  kGrown,     // each of 4,096 requests has sent one more token of the prompt than the one before
  kBranched,  // each of 4,096 requests has left the prompt at another token
};

// Serves a prompt that is cached whole, by itself, after requests that divided its path.
void serve_divided_prompt(benchmark::State& state) {
  Fixture fixture(kPromptTokens);
  const Tokens prompt = fixture.random_tokens(kPromptTokens);
  if (state.range(0) != kGrown) fixture.keep(prompt);
  for (int64_t size = 1; size <= kPromptTokens && state.range(0) != kUndivided; ++size) {
    Tokens part(prompt.begin(), prompt.begin() + size);
    if (state.range(0) == kBranched) part.back() ^= 1 << 20;  // no token of the prompt
    fixture.extend(part);
  }
  const int64_t before = fixture.cache().num_nodes();
  for (auto _ : state) serve_prompt(fixture, prompt);
  state.counters["nodes"] = static_cast<double>(before);
}
BENCHMARK(serve_divided_prompt)->ArgName("division")->DenseRange(kUndivided, kBranched);

// Evicts one leaf and inserts another, as in a full pool.
void evict_and_insert(benchmark::State& state) {
  Fixture fixture(state.range(0));
  std::vector<Tokens> prompts(4096);
  for (Tokens& prompt : prompts) prompt = fixture.random_tokens(96);
  size_t next = 0;
  for (auto _ : state) {
    fixture.cache().evict(2);  // in pages: a leaf needs two
    fixture.keep(prompts[next++ % prompts.size()]);
  }
  state.counters["nodes"] = static_cast<double>(fixture.cache().num_nodes());
}
BENCHMARK(evict_and_insert)->ArgNames({"nodes"})->Arg(1000)->Arg(100000);

}  // namespace

BENCHMARK_MAIN();
