// A decoding request that begins a block needs a page, either a free one or one that the cache evicts. A
// request that speculates needs pages for everything that this step and the one in flight may write. When
// there is no page, the last of the running requests is retracted: it goes back to the queue, ahead of
// requests that have not run yet. What it computed is cached, so most of it is reused unless other requests
// need the memory.
//
// The oldest request is kept first (it is never retracted, so it always ends); the others are kept by
// priority under kPriority, then by arrival.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

// Returns whether the request has all pages that it needs. If not, it keeps the pages that it has got.
bool Scheduler::Impl::acquire_pages(RequestState& request, int64_t width) {
  while (request.needs_page(width)) {
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
    if (request->needs_page(width) && !(all && acquire_pages(*request, width))) all = false;
  }
  if (all) return;

  // Requests that end with a step in flight free pages soon: skipping a step costs less than a retraction.
  if (std::any_of(running.begin(), running.end(), [](const RequestState* r) { return r->draining(); }))
    return;

  std::vector<RequestState*> order = running;
  const auto oldest = std::min_element(order.begin(), order.end(),
                                       [](const auto* a, const auto* b) { return a->arrival < b->arrival; });
  std::iter_swap(order.begin(), oldest);
  std::sort(order.begin() + 1, order.end(),
            [this](const RequestState* a, const RequestState* b) { return goes_before(*a, *b); });
  for (size_t i = 0; i < order.size(); ++i) {
    while (!acquire_pages(*order[i], width)) {
      RequestState* victim = order.back();
      order.pop_back();
      // The request runs alone and still gets no page, because its own locked path has more pages than
      // blocks. It starts again without the cache, and then fits by contract.
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
