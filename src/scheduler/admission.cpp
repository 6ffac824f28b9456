// Decides which waiting requests start in this step. They are admitted in the queue's order until the step's
// budget, the slots or the memory are used up; the first that has no room ends admission, so that no request
// overtakes a large one. There are two exceptions, in which a request and all later ones of its client are
// passed over:
//
//   - It would use the eighth of the slots and pages that its client must leave to others (client_shares.h).
//     A request that yielded to a waiting one leaves that eighth, too (retraction.cpp).
//   - It would have room without the pages that running requests of its own client hold.
//
// Short requests of clients that have no prompt under way start ahead of that order (prompt_turns.cpp). If
// the first request of such a client is not short, the pages that it needs are kept for it.
//
// While requests of other clients generate, the cost of a step's prompt tokens is limited, too
// (prompt_budget.h). A request is not admitted if none of its prompt may be computed. If that is only because
// other prompts of the step are scored, it and all later ones of its client are passed over.
//
// A request has room if the pages that it needs are free or evictable: those of all known tokens that the
// cache does not have, plus the expected growth of this request and of the running ones (growth_estimate.h).
// Growth that the running requests will not get, because their clients must leave the kept pages to this
// request, does not count. When nothing runs, the first request is always admitted, because it fits alone. If
// necessary it starts without its cached prefix, whose path may have more pages than the prefix has blocks.
//
// A request that waits for a prompt in prefill (prefix_wait.cpp) is overtaken by others meanwhile.
#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

int64_t Scheduler::Impl::prefill_budget() const {
  if (options.chunked_prefill_size < 0) return options.max_prefill_tokens;
  return std::min(options.chunked_prefill_size, options.max_prefill_tokens);
}

int64_t Scheduler::Impl::match_limit(const RequestState& request) const {
  if (!request.prompt_done) return request.max_cached_tokens;
  // Cached generated tokens may be reused only if they were computed as generated tokens. If the tree
  // contains only prompts, they were not.
  const int64_t limit = options.cache_generated_tokens ? request.num_known() : request.prompt_len;
  return std::min(limit, request.num_known() - 1);
}

int64_t Scheduler::Impl::match_length(RequestState& request) {
  if (request.match_version == tree_version) return request.match_length;
  const int64_t limit = match_limit(request);
  PromptPages::Cached& latest = request.prompt_pages->cached;
  if (latest.tree_version == tree_version && latest.num_evicted == cache.num_evicted_tokens() &&
      latest.salt == request.salt && latest.limit == limit) {
    request.match_length = latest.length;
  } else {
    request.match_length = cache.match_length(known_tokens(request, limit), request.salt);
    if (limit <= request.prompt_len) {
      latest = {.tree_version = tree_version,
                .num_evicted = cache.num_evicted_tokens(),
                .salt = request.salt,
                .limit = limit,
                .length = request.match_length};
    }
  }
  request.match_version = tree_version;
  return request.match_length;
}

int64_t Scheduler::Impl::expected_growth() const {
  int64_t pages = 0;
  for (const RequestState* request : running) pages += growth.pages(*request, std::ssize(request->pages));
  return pages;
}

void Scheduler::Impl::admit(PromptBudget& budget, const Generating& generating, BatchPlan& plan) {
  if (queue.empty() || budget.tokens() <= 0 || free_slots.empty()) return;
  AdmissionPass pass = {.budget = budget,
                        .generating = generating,
                        .plan = plan,
                        .wanted_pages = expected_growth(),
                        .first_prompt = budget.tokens() == prefill_budget()};
  using Visit = RequestQueue::Visit;
  std::vector<const RequestState*> admitted;
  std::unordered_set<uint64_t> passed_over;           // clients whose later requests wait
  std::unordered_map<uint64_t, int64_t> num_waiting;  // by client, for a prefix
  queue.visit_in_order([this](RequestState& request) { return match_length(request); },
                       [&](RequestState& request) {
                         if (passed_over.contains(request.client)) return Visit::kSkipClient;
                         switch (try_admit(request, pass)) {
                           case Admission::kNoRoom:
                             return Visit::kStop;
                           case Admission::kTooLong:
                           case Admission::kWaitsForPrefix:
                             if (++num_waiting[request.client] < kMaxWaiting) return Visit::kNext;
                             [[fallthrough]];
                           case Admission::kClientWaits:
                             passed_over.insert(request.client);
                             return Visit::kSkipClient;
                           case Admission::kAdmitted:
                             break;
                         }
                         admitted.push_back(&request);
                         return budget.tokens() > 0 && !free_slots.empty() ? Visit::kNext : Visit::kStop;
                       });
  for (const RequestState* request : admitted) queue.note_admission(*request);
}

void Scheduler::Impl::admit_newcomers(PromptBudget& budget, const Generating& generating,
                                      std::unordered_set<uint64_t>& busy, BatchPlan& plan) {
  if (queue.empty() || budget.tokens() <= 0 || free_slots.empty()) return;
  AdmissionPass pass = {.budget = budget,
                        .generating = generating,
                        .plan = plan,
                        .short_only = true,
                        .wanted_pages = expected_growth()};
  using Visit = RequestQueue::Visit;
  std::vector<const RequestState*> admitted;
  int64_t num_lookups = 0;
  queue.visit_in_order([this](RequestState& request) { return match_length(request); },
                       [&](RequestState& request) {
                         if (++num_lookups > kMaxLookups) return Visit::kStop;
                         if (!busy.insert(request.client).second) return Visit::kSkipClient;
                         const Admission admission = try_admit(request, pass);
                         if (admission == Admission::kAdmitted) admitted.push_back(&request);
                         const bool goes_on = admission != Admission::kNoRoom && budget.tokens() > 0;
                         return goes_on && !free_slots.empty() ? Visit::kSkipClient : Visit::kStop;
                       });
  for (const RequestState* request : admitted) queue.note_admission(*request);
}

Scheduler::Impl::Admission Scheduler::Impl::try_admit(RequestState& request, AdmissionPass& pass) {
  Start start;
  const Admission admission = decide(request, pass, start);
  if (admission != Admission::kAdmitted) return admission;
  queue.remove(&request, /*served=*/true);
  take_pages(request, start, pass.plan);
  start_running(request, start, pass);
  return Admission::kAdmitted;
}

Scheduler::Impl::Admission Scheduler::Impl::decide(RequestState& request, AdmissionPass& pass, Start& start) {
  // The outcome from before the retraction must be known first; later requests do not overtake.
  if (request.num_items_in_flight > 0) return Admission::kNoRoom;
  shares.see(request.client, last_step);
  const bool alone = running.empty();
  const bool leaves_room = shares.must_leave_room(request.client, last_step) ||
                           (request.yielded && !alone && goes_after_waiting(request));
  if (leaves_room && std::ssize(free_slots) <= shares.kept_slots()) return Admission::kClientWaits;
  if (waits_for_prefix(request)) return Admission::kWaitsForPrefix;

  const int64_t known = request.num_known();
  const int64_t num_blocks = num_pages_for(known);
  const int64_t own_growth = growth.pages(request, num_blocks);
  if (pass.short_only && is_long(request, match_length(request))) {
    if (!leaves_room) pass.wanted_pages += num_blocks - match_length(request) / kCachePageSize + own_growth;
    return Admission::kTooLong;
  }
  // This is known before the cache is asked, because many requests may wait for it in every step.
  if (pass.budget.lacks_scores(request, match_length(request))) return Admission::kClientWaits;
  const auto has_room = [&](int64_t num_new) {
    if (alone) return num_new <= available_pages();
    const int64_t missing = num_new + own_growth + pass.wanted_pages - available_pages();
    if (leaves_room) return missing + shares.kept_pages() <= 0;
    return missing <= 0 || missing <= barred_growth(request, pass);
  };
  // Requests that surely do not fit are refused before match(), which counts as a use of the cached prefix.
  if (!alone && !has_room(num_blocks)) {
    const int64_t num_new = num_blocks - match_length(request) / kCachePageSize;
    if (!has_room(num_new)) return refuse(request, num_new + own_growth, leaves_room, pass);
  }

  PrefixMatch& match = start.match;
  const auto matchable = known_tokens(request, match_limit(request));
  if (!request.isolated && !matchable.empty())
    match = cache.match(matchable, request.priority, request.cache_owner());
  cache.lock(match.node);
  const auto num_shared = [&match] { return std::ssize(match.pages); };
  if (alone && num_blocks - num_shared() > available_pages()) {
    cache.unlock(match.node);
    match = {};
    cache.lock(match.node);
    request.isolated = true;
  }
  const bool fits = has_room(num_blocks - num_shared());
  const int64_t to_compute = known - match.num_tokens();
  const bool is_scored = request.scored_from < request.prompt_len - 1;
  const bool cut = options.chunked_prefill_size >= 0 || is_scored;
  const bool delays = pass.generating.others_than(request.client);
  const int64_t step_tokens =
      cut ? pass.budget.most(request, match.num_tokens(), 0, to_compute, delays) : to_compute;
  const bool has_time = cut ? step_tokens > 0 : pass.first_prompt || to_compute <= pass.budget.tokens();
  if (!fits || !has_time) {
    HADAL_CHECK(fits || !alone, "request {}: no room for {} pages in an idle pool of {}", request.id,
                num_blocks, pool.num_pages());
    cache.unlock(match.node);
    if (!fits) return refuse(request, num_blocks - num_shared() + own_growth, leaves_room, pass);
    return Admission::kNoRoom;
  }
  start.num_pages = num_blocks;
  start.step_tokens = step_tokens;
  start.delays = delays;
  return Admission::kAdmitted;
}

int64_t Scheduler::Impl::barred_growth(const RequestState& request, AdmissionPass& pass) const {
  const int32_t priority = options.policy == SchedulePolicy::kPriority ? request.priority : 0;
  if (pass.barred_priority != priority) {
    pass.barred_priority = priority;
    pass.over_share_growth = 0;
    // The oldest request and starved ones are not left out, although they may grow, because their expected
    // growth alone could keep everybody out. If they do grow, the client that holds most gives pages back.
    for (const RequestState* other : running) {
      if (options.policy == SchedulePolicy::kPriority && other->priority > priority) continue;
      if (!shares.must_leave_room(other->client, last_step)) continue;
      pass.over_share_growth += growth.pages(*other, std::ssize(other->pages));
    }
  }
  const int64_t most = std::max<int64_t>(available_pages() - shares.kept_pages(), 0);
  return std::max<int64_t>(pass.over_share_growth - most, 0);
}

Scheduler::Impl::Admission Scheduler::Impl::refuse(const RequestState& request, int64_t num_pages,
                                                   bool leaves_room, AdmissionPass& pass) {
  if (leaves_room) return Admission::kClientWaits;
  if (!pass.has_refused) lacks_pages = request.id;
  pass.has_refused = true;
  const int64_t own_pages = shares.pages_of(request.client);
  return num_pages + pass.wanted_pages - own_pages <= available_pages() ? Admission::kClientWaits
                                                                        : Admission::kNoRoom;
}

void Scheduler::Impl::take_pages(RequestState& request, Start& start, BatchPlan& plan) {
  PrefixMatch& match = start.match;
  for (const PageId page : match.pages) pool.add_ref(page);
  request.pages = std::move(match.pages);
  if (const int64_t missing = start.num_pages - std::ssize(request.pages) - pool.num_free(); missing > 0) {
    cache.evict(missing);
  }
  const int64_t num_shared_pages = std::ssize(request.pages);
  while (std::ssize(request.pages) < start.num_pages) {
    const auto page = pool.allocate();
    HADAL_CHECK(page.has_value(), "request {}: {} evictable pages, but none was freed", request.id,
                cache.evictable_pages());
    request.pages.push_back(*page);
  }
  // The source may just have been evicted, and may now be a page of this request. Its rows are still there,
  // because the copy runs before all writes. If it is the target itself, the rows are already in place.
  if (match.partial_tokens > 0 && match.partial_page != request.pages[num_shared_pages]) {
    plan.ranks[0].copies.push_back({.source = match.partial_page,
                                    .target = request.pages[num_shared_pages],
                                    .num_rows = match.partial_tokens});
  }
}

void Scheduler::Impl::start_running(RequestState& request, const Start& start, AdmissionPass& pass) {
  const PrefixMatch& match = start.match;
  std::pop_heap(free_slots.begin(), free_slots.end(), std::greater<>());
  request.slot = free_slots.back();
  free_slots.pop_back();
  by_slot[request.slot] = &request;
  shares.start(request.client, start.num_pages);
  shares.see(request.client, last_step);
  running.push_back(&request);
  request.running = true;
  request.held = false;  // its mask may have become ready while it waited
  request.node = match.node;
  request.num_pages_sent = 0;
  request.starts_slot = true;
  request.catching_up = true;
  request.prompt_cached = false;
  request.prompt_end_cached = match.shared_tokens;
  request.yielded = false;
  if (lacks_pages == request.id) lacks_pages = 0;
  request.planned = request.confirmed = match.num_tokens();
  request.step_tokens = start.step_tokens;
  request.step_absorbed =
      pass.budget.absorbs(request, match.num_tokens(), match.num_tokens() + start.step_tokens, start.delays);
  pass.budget.take(request, match.num_tokens(), 0, start.step_tokens, start.delays);
  const int64_t cached_tokens = std::min(match.num_tokens(), request.prompt_len);
  request.told_cached_tokens = std::min(match.told_tokens, request.prompt_len);
  if (request.prompt_pages->num_pages() > 0 && options.enable_radix_cache && !request.isolated) {
    request.prefilling = true;
    prefilling.push_back(&request);
  }

  pass.first_prompt = false;
  pass.wanted_pages += growth.pages(request, std::ssize(request.pages));
  ++pass.plan.num_new_requests;
  pass.plan.num_cached_tokens += cached_tokens;
  if (!request.retracted) {
    totals.total_prompt_tokens += request.prompt_len;
    totals.total_cached_tokens += request.told_cached_tokens;  // not more, because everybody may read it
  }
}

}  // namespace hadal
