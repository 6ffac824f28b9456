// A decoding request that begins a block needs a page: a free one, else one that the cache gives up. When
// there is none, the running request that comes last gives way. It goes back to the queue, ahead of those
// that have not run yet; what it computed goes to the cache, from where most of it comes back if nobody else
// needs the memory.
//
// Order: the oldest request first (it is never the victim, so it always ends), then by priority under
// kPriority, then by arrival.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

bool Scheduler::Impl::acquire_page(RequestState& request) {
  if (pool.num_free() == 0) cache.evict(1);
  const auto page = pool.allocate();
  if (page) request.pages.push_back(*page);
  return page.has_value();
}

bool Scheduler::Impl::goes_before(const RequestState& a, const RequestState& b) const {
  if (options.policy == SchedulePolicy::kPriority && a.priority != b.priority) return a.priority > b.priority;
  return a.arrival < b.arrival;
}

void Scheduler::Impl::secure_decode_pages() {
  bool all = true;
  for (RequestState* request : running) {
    if (request->needs_page() && !(all && acquire_page(*request))) all = false;
  }
  if (all) return;

  // Who ends with a step under way brings pages soon: sitting out a step is cheaper than computing again.
  if (std::any_of(running.begin(), running.end(), [](const RequestState* r) { return r->draining(); }))
    return;

  std::vector<RequestState*> order = running;
  const auto oldest = std::min_element(order.begin(), order.end(),
                                       [](const auto* a, const auto* b) { return a->arrival < b->arrival; });
  std::iter_swap(order.begin(), oldest);
  std::sort(order.begin() + 1, order.end(),
            [this](const RequestState* a, const RequestState* b) { return goes_before(*a, *b); });
  for (size_t i = 0; i < order.size(); ++i) {
    while (order[i]->needs_page() && !acquire_page(*order[i])) {
      RequestState* victim = order.back();
      order.pop_back();
      // Alone and still no page: its own locked path holds more pages than it has blocks. It starts again
      // without the cache, and then fits by contract.
      retract(*victim, /*isolated=*/order.empty());
      if (i == order.size()) return;
    }
  }
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
