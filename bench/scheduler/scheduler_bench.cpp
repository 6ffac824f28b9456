// Measures the scheduler's cost for the engine thread: plan() and complete() of a decode step, admission over
// a large cache, and a step with a long queue.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace hadal {
namespace {

std::vector<int32_t> random_tokens(std::mt19937_64& rng, int64_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 129'280);
  return tokens;
}

std::vector<ItemOutcome> outcomes_of(const BatchPlan& plan, int32_t token) {
  std::vector<ItemOutcome> outcomes;
  for (const WorkItem& item : plan.ranks[0].items) {
    if (item.samples) outcomes.push_back({.request_id = item.request_id, .token = token, .finished = false});
  }
  return outcomes;
}

void run_step(Scheduler& scheduler) {
  const BatchPlan plan = scheduler.plan();
  scheduler.complete(plan, outcomes_of(plan, 7));
}

SchedulerOptions options_for(int64_t num_running, int64_t num_pages) {
  SchedulerOptions options;
  options.num_pages = num_pages;
  options.max_running_requests = num_running;
  options.chunked_prefill_size = 1 << 20;
  options.max_prefill_tokens = 1 << 20;
  options.conservativeness = 0.01;
  return options;
}

// Fills the scheduler with decoding requests that do not end during the bench.
void start_decoding(Scheduler& scheduler, int64_t num_running, std::mt19937_64& rng, RequestId& next_id) {
  for (int64_t i = 0; i < num_running; ++i) {
    scheduler.add({.id = next_id++,
                   .prompt = random_tokens(rng, 100 + static_cast<int64_t>(rng() % 64)),
                   .max_new_tokens = 200'000,
                   .max_cached_tokens = 99});
  }
  while (scheduler.stats().num_queued > 0) run_step(scheduler);
}

// Measures plan() and complete() of one decode step with the given number of running requests. Building the
// vector of outcomes is not measured.
void BM_DecodeStep(benchmark::State& state) {
  const int64_t num_running = state.range(0);
  const int64_t num_queued = state.range(1);
  std::mt19937_64 rng(1);
  RequestId next_id = 1;
  auto scheduler = std::make_unique<Scheduler>(options_for(num_running, 1 << 17));
  start_decoding(*scheduler, num_running, rng, next_id);
  for (int64_t i = 0; i < num_queued; ++i) {
    scheduler->add(
        {.id = next_id++, .prompt = random_tokens(rng, 500), .max_new_tokens = 10, .max_cached_tokens = 499});
  }
  BatchPlan plan = scheduler->plan();
  const std::vector<ItemOutcome> outcomes = outcomes_of(plan, 7);
  scheduler->complete(plan, outcomes);
  int64_t steps = 0;
  for (auto _ : state) {
    plan = scheduler->plan();
    scheduler->complete(plan, outcomes);
    if (++steps % 4096 == 0) {  // before the sequences fill the pool
      state.PauseTiming();
      scheduler = std::make_unique<Scheduler>(options_for(num_running, 1 << 17));
      next_id = 1;
      start_decoding(*scheduler, num_running, rng, next_id);
      for (int64_t i = 0; i < num_queued; ++i) {
        scheduler->add({.id = next_id++,
                        .prompt = random_tokens(rng, 500),
                        .max_new_tokens = 10,
                        .max_cached_tokens = 499});
      }
      state.ResumeTiming();
    }
  }
  HADAL_CHECK_EQ(outcomes.size(), static_cast<size_t>(num_running));
}
BENCHMARK(BM_DecodeStep)
    ->ArgNames({"running", "queued"})
    ->Args({16, 0})
    ->Args({256, 0})
    ->Args({1024, 0})
    ->Args({256, 1000})
    ->Unit(benchmark::kMicrosecond);

// Plans each step before the previous one has completed, so that its input tokens come from that step.
void BM_OverlappedDecodeStep(benchmark::State& state) {
  const int64_t num_running = state.range(0);
  std::mt19937_64 rng(1);
  RequestId next_id = 1;
  Scheduler scheduler(options_for(num_running, 1 << 20));
  start_decoding(scheduler, num_running, rng, next_id);
  BatchPlan before = scheduler.plan();
  const std::vector<ItemOutcome> outcomes = outcomes_of(before, 7);
  for (auto _ : state) {
    BatchPlan plan = scheduler.plan();
    scheduler.complete(before, outcomes);
    before = std::move(plan);
  }
}
BENCHMARK(BM_OverlappedDecodeStep)->Arg(256)->Arg(1024)->Iterations(20'000)->Unit(benchmark::kMicrosecond);

// Measures a request from add to end (admission with a 4,096-token prompt of which 4,000 are cached, one
// token) over a cache of `num_nodes` nodes.
void BM_ShortRequest(benchmark::State& state) {
  const int64_t num_nodes = state.range(0);
  std::mt19937_64 rng(1);
  RequestId next_id = 1;
  Scheduler scheduler(options_for(256, 1 << 18));
  const std::vector<int32_t> document = random_tokens(rng, 4096);
  const auto run = [&](std::vector<int32_t> prompt) {
    const auto limit = std::ssize(prompt) - 1;
    scheduler.add(
        {.id = next_id++, .prompt = std::move(prompt), .max_new_tokens = 1, .max_cached_tokens = limit});
    run_step(scheduler);
  };
  run(document);
  for (int64_t i = 1; i < num_nodes; ++i) run(random_tokens(rng, 64));
  std::vector<int32_t> prompt = document;
  for (auto _ : state) {
    for (int64_t i = 4000; i < 4096; ++i) prompt[i] = static_cast<int32_t>(rng() % 129'280);
    run(prompt);
  }
  state.counters["retractions"] = static_cast<double>(scheduler.stats().total_retractions);
}
BENCHMARK(BM_ShortRequest)
    ->ArgName("cached_nodes")
    ->Arg(10)
    ->Arg(100'000)
    ->Iterations(10'000)
    ->Unit(benchmark::kMicrosecond);

// Measures plan() with 1,000 waiting requests that all wait for the prefix of one request in prefill.
void BM_PlanBesideThousandWhoWaitForAPrefix(benchmark::State& state) {
  std::mt19937_64 rng(1);
  SchedulerOptions options = options_for(512, 1 << 18);
  options.policy = static_cast<SchedulePolicy>(state.range(0));
  Scheduler scheduler(options);
  const std::vector<int32_t> document = random_tokens(rng, 4096);
  scheduler.add({.id = 1, .prompt = document, .max_new_tokens = 1, .max_cached_tokens = 1});
  HADAL_CHECK(!scheduler.plan().empty());
  for (int32_t i = 0; i < 1000; ++i) {
    std::vector<int32_t> prompt = document;
    prompt.push_back(i);
    scheduler.add({.id = static_cast<RequestId>(2 + i),
                   .prompt = std::move(prompt),
                   .max_new_tokens = 1,
                   .max_cached_tokens = 4096});
  }
  for (auto _ : state) HADAL_CHECK(scheduler.plan().empty());
  HADAL_CHECK_EQ(scheduler.stats().num_queued, 1000);
}
BENCHMARK(BM_PlanBesideThousandWhoWaitForAPrefix)
    ->ArgName("policy")
    ->Arg(static_cast<int>(SchedulePolicy::kFcfs))
    ->Arg(static_cast<int>(SchedulePolicy::kLpm))
    ->Iterations(1'000)
    ->Unit(benchmark::kMicrosecond);

// Measures plan() with 4,096 waiting choices of a prompt of 32k tokens, which share their ids, beside a
// prompt in prefill that begins with the same tokens: the first plan that sees the choices, or one of the
// following.
void BM_PlanBesideChoicesOfALongPrompt(benchmark::State& state) {
  const bool is_first = state.range(0) == 1;
  std::mt19937_64 rng(1);
  const TokenIds document = random_tokens(rng, 32'768);
  std::unique_ptr<Scheduler> scheduler;
  const auto start = [&] {
    scheduler = std::make_unique<Scheduler>(options_for(512, 1 << 18));
    scheduler->add({.id = 1, .prompt = document, .max_new_tokens = 1, .max_cached_tokens = 1});
    HADAL_CHECK(!scheduler->plan().empty());
    for (RequestId id = 2; id < 2 + 4096; ++id) {
      scheduler->add({.id = id, .prompt = document, .max_new_tokens = 1, .max_cached_tokens = 32'767});
    }
  };
  start();
  for (auto _ : state) {
    HADAL_CHECK(scheduler->plan().empty());
    if (!is_first) continue;
    state.PauseTiming();
    start();
    state.ResumeTiming();
  }
  HADAL_CHECK_EQ(scheduler->stats().num_queued, 4096);
}
BENCHMARK(BM_PlanBesideChoicesOfALongPrompt)
    ->ArgName("first")
    ->Arg(1)
    ->Arg(0)
    ->Iterations(20)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace hadal

BENCHMARK_MAIN();
