// Decides what happens when the outcome of a step is known, and how requests end.
#include <algorithm>
#include <functional>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

void Scheduler::Impl::step_ended(const BatchPlan& plan) {
  HADAL_CHECK(!in_flight.empty() && plan.step == in_flight.front(), "step {} ended, {} steps are in flight",
              plan.step, in_flight.size());
  in_flight.pop_front();
}

void Scheduler::Impl::complete(const BatchPlan& plan, std::span<const ItemOutcome> outcomes) {
  step_ended(plan);
  size_t num_seen = 0;
  for (const RankPlan& rank : plan.ranks) {
    for (const WorkItem& item : rank.items) {
      const ItemOutcome* outcome = nullptr;
      if (item.samples) {
        HADAL_CHECK_LT(num_seen, outcomes.size());
        outcome = &outcomes[num_seen++];
        HADAL_CHECK_EQ(outcome->request_id, item.request_id);
      }
      RequestState* request = by_slot[item.slot];
      if (request == nullptr || request->id != item.request_id) {
        request = find(item.request_id);   // it may have gone back to the queue
        if (request == nullptr) continue;  // it has ended
      }
      --request->num_items_in_flight;
      // A request is admitted again only when it has no item in flight, so this item belongs to the present
      // admission.
      const bool deferred = item.samples && request->deferred_step == plan.step;
      if (request->running) {
        const int64_t accepted = outcome != nullptr ? std::ssize(outcome->further) : 0;
        HADAL_CHECK(request->confirmed == item.begin || (item.verifies && request->confirmed > item.begin),
                    "request {}: step {} computed [{}, + {}), but {} are confirmed", request->id, plan.step,
                    item.begin, item.num_tokens, request->confirmed);
        // The last token of a deferred item is computed again.
        request->confirmed += (item.verifies ? 1 + accepted : item.num_tokens) - (deferred ? 1 : 0);
        request->planned += accepted;
        if (!request->prompt_cached && request->confirmed >= request->prompt_len) cache_prompt(*request);
      }
      if (deferred) continue;
      if (outcome != nullptr) {
        take_tokens(*request, item, *outcome);
      } else if (item.ends_request) {
        forget(*request, /*keep=*/true);
      }
    }
  }
  HADAL_CHECK_EQ(num_seen, outcomes.size());
}

void Scheduler::Impl::take_tokens(RequestState& request, const WorkItem& item, const ItemOutcome& outcome) {
  HADAL_CHECK_LE(std::ssize(outcome.further), item.verifies ? item.num_tokens - 1 : 0);
  --request.unknown;
  if (item.verifies) request.surplus -= item.num_tokens - 1;
  HADAL_CHECK(request.unknown >= 0 && request.surplus >= 0, "request {}: {} unknown tokens, {} more",
              request.id, request.unknown, request.surplus);
  request.prompt_done = true;
  request.tokens.push_back(outcome.token);
  for (const int32_t token : outcome.further) request.tokens.push_back(token);
  request.match_version = 0;
  const int64_t most = request.prompt_len + request.max_new_tokens;
  HADAL_CHECK(request.num_known() <= most, "request {} has {} tokens; allowed are {}", request.id,
              request.num_known(), most);
  if (outcome.finished || request.num_known() == most) forget(request, /*keep=*/true);
}

// The prompt's records exist now, and other requests may use them.
void Scheduler::Impl::cache_prompt(RequestState& request) {
  request.prompt_cached = true;
  leave_prefilling(request);
  if (!request.isolated && options.enable_radix_cache) insert_prompt(request, request.prompt_len);
}

void Scheduler::Impl::insert_prompt(RequestState& request, int64_t count) {
  const CacheNodeId node = cache.insert(
      known_tokens(request, count), std::span(request.pages).first(static_cast<size_t>(num_pages_for(count))),
      request.priority, request.cache_owner());
  ++tree_version;
  cache.lock(node);
  cache.unlock(request.node);
  request.node = node;
  request.prompt_end_cached = count;
}

void Scheduler::Impl::leave_prefilling(RequestState& request) {
  if (request.prefilling) std::erase(prefilling, &request);
  request.prefilling = false;
}

void Scheduler::Impl::stop_running(RequestState& request, bool keep) {
  HADAL_CHECK(request.running, "request {} is not running", request.id);
  int64_t count = request.confirmed;
  if (!options.cache_generated_tokens) count = std::min(count, request.prompt_len);
  if (keep && options.enable_radix_cache && count > 0) {
    cache.insert(known_tokens(request, count),
                 std::span(request.pages).first(static_cast<size_t>(num_pages_for(count))), request.priority,
                 request.cache_owner());
    ++tree_version;
  }
  for (const PageId page : request.pages) pool.release(page);
  shares.stop(request.client, std::ssize(request.pages));
  cache.unlock(request.node);
  request.pages.clear();
  request.node = kRootNode;
  request.isolated = false;
  request.running = false;
  request.catching_up = false;
  request.repeats = false;
  request.planned = request.confirmed = 0;
  request.step_tokens = 0;
  leave_prefilling(request);
  std::erase(running, &request);
  by_slot[request.slot] = nullptr;
  free_slots.push_back(request.slot);
  std::push_heap(free_slots.begin(), free_slots.end(), std::greater<>());
  request.slot = -1;
}

void Scheduler::Impl::forget(RequestState& request, bool keep) {
  if (request.running) stop_running(request, keep);
  if (request.queued) queue.remove(&request, /*served=*/false);
  std::erase(retracted_ids, request.id);
  prompt_table.leave(request.tokens.prompt());
  requests.erase(request.id);
}

bool Scheduler::Impl::abort(RequestId id) {
  RequestState* request = find(id);
  if (request == nullptr) return false;
  forget(*request, /*keep=*/true);
  return true;
}

void Scheduler::Impl::hold(RequestId id, bool held) {
  if (RequestState* request = find(id)) request->held = held;
}

bool Scheduler::Impl::defer(RequestId id) {
  RequestState* request = find(id);
  if (request == nullptr || !request->running || request->unknown != 1) return false;
  if (request->planned != request->num_known()) return false;
  request->deferred_step = request->sample_step;
  request->held = true;
  request->unknown = 0;
  request->surplus = 0;
  request->repeats = true;
  --request->planned;
  // The last token of a prompt will be computed again as a prompt token. Until then, other requests must not
  // wait for this prompt.
  if (request->planned < request->prompt_len) {
    request->catching_up = true;
    leave_prefilling(*request);
  }
  return true;
}

std::vector<RequestId> Scheduler::Impl::fail(const BatchPlan& plan) {
  step_ended(plan);
  std::vector<RequestId> failed;
  for (const RankPlan& rank : plan.ranks) {
    for (const WorkItem& item : rank.items) {
      RequestState* request = find(item.request_id);
      if (request == nullptr) continue;
      failed.push_back(request->id);
      forget(*request, /*keep=*/false);
    }
  }
  return failed;
}

}  // namespace hadal
