#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"
#include "scheduler/plan_record.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

Scheduler::Impl::Impl(const SchedulerOptions& scheduler_options)
    : options(scheduler_options),
      pool(scheduler_options.num_pages),
      cache(pool, scheduler_options.eviction, scheduler_options.enable_radix_cache,
            /*lookahead=*/scheduler_options.max_width > 0 ? 1 : 0),
      queue(scheduler_options.policy),
      growth(scheduler_options.conservativeness),
      shares(scheduler_options.max_running_requests, scheduler_options.num_pages) {
  HADAL_CHECK_GE(options.max_running_requests, 1);
  HADAL_CHECK(options.chunked_prefill_size >= 1 || options.chunked_prefill_size == -1,
              "chunked_prefill_size is {}; allowed is ≥ 1 or -1", options.chunked_prefill_size);
  HADAL_CHECK_GE(options.max_prefill_tokens, 1);
  HADAL_CHECK_GT(options.conservativeness, 0.0);
  HADAL_CHECK_GE(options.prompt_costs.positions_per_row, 0);
  HADAL_CHECK_GE(options.prompt_costs.rows_per_score, 0);
  HADAL_CHECK_GE(options.max_scored_tokens, 1);
  HADAL_CHECK_GE(options.prompt_costs.rows_per_1024_expanded, 0);
  HADAL_CHECK_GE(options.prompt_costs.absorbed_positions_per_row, 0);
  HADAL_CHECK_GE(options.max_width, 0);
  HADAL_CHECK(options.cache_generated_tokens || options.prompt_costs.absorbed_positions_per_row == 0,
              "prompt tokens must always take the same path where generated tokens are not cached");
  by_slot.resize(options.max_running_requests);
  for (int32_t slot = 0; slot < options.max_running_requests; ++slot) free_slots.push_back(slot);
  std::make_heap(free_slots.begin(), free_slots.end(), std::greater<>());
}

RequestState* Scheduler::Impl::find(RequestId id) const {
  const auto it = requests.find(id);
  return it == requests.end() ? nullptr : it->second.get();
}

void Scheduler::Impl::add(ScheduledRequest request) {
  const auto prompt_len = static_cast<int64_t>(request.prompt.size());
  HADAL_CHECK(prompt_len >= 1, "request {}: the prompt is empty", request.id);
  HADAL_CHECK_GE(request.max_new_tokens, 0);
  HADAL_CHECK(request.max_cached_tokens >= 0 && request.max_cached_tokens < prompt_len,
              "request {}: max_cached_tokens is {}, the prompt has {} tokens", request.id,
              request.max_cached_tokens, prompt_len);
  HADAL_CHECK(num_pages_for(prompt_len + request.max_new_tokens) <= pool.num_pages(),
              "request {}: {} + {} tokens do not fit into {} pages", request.id, prompt_len,
              request.max_new_tokens, pool.num_pages());
  auto state = std::make_unique<RequestState>();
  state->id = request.id;
  state->tokens = TokenSequence(std::move(request.prompt));
  state->prompt_len = prompt_len;
  state->max_new_tokens = request.max_new_tokens;
  state->max_cached_tokens = request.max_cached_tokens;
  // The logits of the last prompt token give the first generated one.
  state->scored_from = request.scores_prompt ? request.max_cached_tokens : prompt_len - 1;
  // ~x reverses the order of all values; -x would overflow for the smallest.
  state->priority = options.low_priority_values_first ? ~request.priority : request.priority;
  state->speculates = options.max_width > 0;
  state->client = request.client;
  state->salt = request.salt;
  state->arrival = ++last_arrival;
  const auto [it, is_new] = requests.emplace(request.id, std::move(state));
  HADAL_CHECK(is_new, "request {} already exists", request.id);
  it->second->prompt_pages = prompt_table.enter(it->second->tokens.prompt());
  if (requests.size() == 1) growth.reset();  // an estimate from earlier work does not apply to this request
  queue.push(it->second.get());
}

void Scheduler::Impl::Generating::add(uint64_t whose) {
  several = several || (any && client != whose);
  any = true;
  client = whose;
}

BatchPlan Scheduler::Impl::plan(int64_t max_cost, int64_t width) {
  HADAL_CHECK_LT(in_flight.size(), 2U);
  HADAL_CHECK(width >= 1 && width <= std::max<int64_t>(1, options.max_width), "width is {}; allowed: 1 to {}",
              width, options.max_width);
  BatchPlan plan;
  plan.ranks.resize(1);
  secure_decode_pages(width);

  Generating generating;
  for (RequestState* request : running) {
    request->step_tokens = 0;
    shares.see(request->client, last_step);
    if (request->held || !request->decoding() || request->needs_page(width)) continue;
    request->step_tokens = request->step_width(width);
    generating.add(request->client);
  }
  const bool cut = options.chunked_prefill_size >= 0;
  PromptBudget budget(options.prompt_costs, prefill_budget(), cut ? max_cost : kUnlimitedCost,
                      options.max_scored_tokens);
  // A request that was just retracted would only be admitted again to the same pages.
  plan_prompts(budget, generating, /*admits=*/retracted_ids.empty() || running.empty(), plan);
  build_items(plan);

  if (plan.empty()) return plan;
  growth.note_step();
  plan.prompt_cost = static_cast<int64_t>(std::ceil(budget.taken_cost()));
  plan.step = ++last_step;
  plan.retracted = std::move(retracted_ids);
  retracted_ids.clear();
  in_flight.push_back(plan.step);
  return plan;
}

SchedulerStats Scheduler::Impl::stats() const {
  SchedulerStats stats = totals;
  stats.num_running = std::ssize(running);
  stats.num_queued = queue.size();
  stats.num_cached_pages = cache.evictable_pages();
  stats.num_free_pages = pool.num_free();
  stats.num_used_tokens = (pool.num_pages() - stats.num_free_pages - stats.num_cached_pages) * kCachePageSize;
  stats.total_evicted_tokens = cache.num_evicted_tokens();
  return stats;
}

Scheduler::Scheduler(const SchedulerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;

void Scheduler::add(ScheduledRequest request) {
  if (impl_->recorder) impl_->recorder->add(request);
  impl_->add(std::move(request));
}

bool Scheduler::abort(RequestId id) {
  if (impl_->recorder) impl_->recorder->abort(id);
  return impl_->abort(id);
}

void Scheduler::hold(RequestId id) {
  if (impl_->recorder) impl_->recorder->hold("hold", id);
  impl_->hold(id, true);
}

void Scheduler::release(RequestId id) {
  if (impl_->recorder) impl_->recorder->hold("release", id);
  impl_->hold(id, false);
}

bool Scheduler::defer(RequestId id) {
  if (impl_->recorder) impl_->recorder->hold("defer", id);
  return impl_->defer(id);
}

BatchPlan Scheduler::plan(int64_t max_cost, int64_t width) {
  BatchPlan plan = impl_->plan(max_cost, width);
  if (impl_->recorder) impl_->recorder->plan(plan, max_cost, width);
  return plan;
}

void Scheduler::complete(const BatchPlan& plan, std::span<const ItemOutcome> outcomes) {
  if (impl_->recorder) impl_->recorder->complete(plan.step, outcomes);
  impl_->complete(plan, outcomes);
}

std::vector<RequestId> Scheduler::fail(const BatchPlan& plan) {
  if (impl_->recorder) impl_->recorder->fail(plan.step);
  return impl_->fail(plan);
}

bool Scheduler::idle() const {
  return impl_->queue.empty() && impl_->running.empty() && impl_->in_flight.empty();
}

TokenSequence Scheduler::tokens(RequestId id) const {
  const RequestState* request = impl_->find(id);
  HADAL_CHECK(request != nullptr, "request {} is unknown", id);
  return request->tokens;
}

int64_t Scheduler::cached_tokens(RequestId id) const {
  const RequestState* request = impl_->find(id);
  return request ? request->told_cached_tokens : 0;
}

bool Scheduler::is_running(RequestId id) const {
  const RequestState* request = impl_->find(id);
  return request && request->running;
}

void Scheduler::flush_cache() {
  if (impl_->recorder) impl_->recorder->flush_cache();
  impl_->cache.clear();
  ++impl_->tree_version;
}

SchedulerStats Scheduler::stats() const {
  return impl_->stats();
}
const SchedulerOptions& Scheduler::options() const {
  return impl_->options;
}

void Scheduler::reset() {
  auto fresh = std::make_unique<Impl>(impl_->options);
  fresh->last_step = impl_->last_step;
  fresh->last_arrival = impl_->last_arrival;
  fresh->totals = impl_->totals;
  impl_ = std::move(fresh);
}

void Scheduler::record_to(PlanRecorder* recorder) {
  impl_->recorder = recorder;
  if (recorder) recorder->start(impl_->options);
}

void Scheduler::check_integrity() const {
  impl_->check_integrity();
}

}  // namespace hadal
