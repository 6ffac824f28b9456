// A decoding request that begins a block needs a page, either a free one or one that the cache evicts. A
// request that speculates needs pages for everything that this step and the one in flight may write. When
// there is no page, a running request is retracted: it goes back to the queue, ahead of requests that have
// not run yet. What it computed is cached, so most of it is reused unless other requests need the memory.
//
// The retracted request belongs to the client that holds the most pages, so one client's requests do not push
// out those of another one that holds fewer. Among that client's requests it is the one that arrived last.
// Under kPriority, priority goes first: the requests of the lowest priority are retracted first, and the rule
// chooses among them. The oldest running request is never retracted for others. Only if it runs alone and
// still gets no page, it starts again without the cache. So it always ends.
//
// Clients that hold a share of the engine must leave the last pages to others (client_shares.h). While
// another client's waiting request lacks pages, the running requests of such a client do not grow into the
// kept ones. Instead, the client's last request is retracted. That request `yielded`: as long as the other
// one waits, it starts only if it leaves the kept pages free, or when nothing runs. This does not apply to
// the oldest running request, which may always grow, to starved requests (request_queue.h), and under
// kPriority to requests of a higher priority than the waiting one's. Nor does it apply while a request waits
// that has itself yielded. Otherwise two large requests could take turns in making each other yield.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

// Returns whether the request has all pages that it needs. If not, it keeps the pages that it has got.
bool Scheduler::Impl::acquire_pages(RequestState& request, int64_t width) {
  while (request.needs_page(width)) {
    if (leaves_next_page(request)) return false;
    if (pool.num_free() == 0) cache.evict(1);
    const auto page = pool.allocate();
    if (!page) return false;
    request.pages.push_back(*page);
    shares.grow(request.client);
  }
  return true;
}

bool Scheduler::Impl::goes_before(const RequestState& a, const RequestState& b) const {
  if (options.policy == SchedulePolicy::kPriority && a.priority != b.priority) return a.priority > b.priority;
  return a.arrival < b.arrival;
}

void Scheduler::Impl::secure_decode_pages(int64_t width) {
  bool all = true;
  for (RequestState* request : running) {
    if (request->needs_page(width) && !acquire_pages(*request, width)) all = false;
  }
  if (all) return;

  // Requests that end with a step in flight free pages soon: skipping a step costs less than a retraction.
  if (std::any_of(running.begin(), running.end(), [](const RequestState* r) { return r->draining(); }))
    return;

  std::vector<RequestState*> order = running;
  std::iter_swap(order.begin(), std::find(order.begin(), order.end(), &oldest_running()));
  std::sort(order.begin() + 1, order.end(),
            [this](const RequestState* a, const RequestState* b) { return goes_before(*a, *b); });
  for (size_t i = 0; i < order.size();) {
    if (acquire_pages(*order[i], width)) {
      ++i;
      continue;
    }
    const bool yields = leaves_next_page(*order[i]);
    const size_t at = victim_for(i, order);
    RequestState& victim = *order[at];
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(at));
    if (at < i) --i;
    // If the request runs alone and still gets no page, its own locked path has more pages than blocks. It
    // starts again without the cache, and then fits by contract.
    retract(victim, /*isolated=*/order.empty());
    victim.yielded = yields;
  }
}

const RequestState& Scheduler::Impl::oldest_running() const {
  return **std::min_element(running.begin(), running.end(),
                            [](const auto* a, const auto* b) { return a->arrival < b->arrival; });
}

bool Scheduler::Impl::goes_after_waiting(const RequestState& request) const {
  const RequestState* waiting = find(lacks_pages);
  if (waiting == nullptr || !waiting->queued || waiting->yielded || waiting->client == request.client)
    return false;
  if (request.starved) return false;
  if (options.policy == SchedulePolicy::kPriority && request.priority > waiting->priority) return false;
  return !shares.must_leave_room(waiting->client, last_step);
}

bool Scheduler::Impl::leaves_next_page(const RequestState& request) const {
  return available_pages() <= shares.kept_pages() && shares.must_leave_room(request.client, last_step) &&
         goes_after_waiting(request) && &request != &oldest_running();
}

size_t Scheduler::Impl::victim_for(size_t idx, const std::vector<RequestState*>& order) const {
  const bool yields = leaves_next_page(*order[idx]);
  size_t victim = order.size() - 1;
  int64_t most_pages = -1;  // of a client
  for (size_t at = order.size() - 1; at > 0; --at) {
    const RequestState& request = *order[at];
    if (yields) {
      if (request.client == order[idx]->client) return at;
      continue;
    }
    if (options.policy == SchedulePolicy::kPriority && request.priority > order.back()->priority) break;
    if (const int64_t num_pages = shares.pages_of(request.client); num_pages > most_pages) {
      most_pages = num_pages;
      victim = at;
    }
  }
  return victim;
}

void Scheduler::Impl::retract(RequestState& request, bool isolated) {
  HADAL_CHECK(!isolated || !request.isolated, "request {} finds no page with the whole pool for itself",
              request.id);
  stop_running(request, /*keep=*/true);
  request.isolated = isolated;
  request.retracted = true;
  queue.push(&request);
  retracted_ids.push_back(request.id);
  ++totals.total_retractions;
  growth.note_retraction();
}

}  // namespace hadal
