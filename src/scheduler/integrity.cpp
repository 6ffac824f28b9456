// Proves that pool, tree, page tables, slots and queue agree. It reads all of them, so it is for tests and
// debugging.
#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

void Scheduler::Impl::check_integrity() const {
  std::unordered_map<PageId, int32_t> references;
  for (const RequestState* request : running) {
    for (const PageId page : request->pages) ++references[page];
  }
  cache.check_integrity(references);
  pool.check_integrity();
  queue.check_integrity();

  std::unordered_map<uint64_t, ClientShares::Held> held;
  for (const RequestState* request : running) {
    ++held[request->client].slots;
    held[request->client].pages += std::ssize(request->pages);
  }
  HADAL_CHECK(held == shares.held(), "what {} clients hold is counted wrongly", held.size());

  HADAL_CHECK_EQ(prompt_table.num_requests(), std::ssize(requests));

  HADAL_CHECK_LE(in_flight.size(), 2U);
  HADAL_CHECK_EQ(running.size() + free_slots.size(), by_slot.size());
  HADAL_CHECK_EQ(requests.size(), running.size() + static_cast<size_t>(queue.size()));
  for (const auto& [id, request] : requests) {
    HADAL_CHECK(request->id == id, "request {} is filed as {}", request->id, id);
    HADAL_CHECK(request->running != request->queued, "request {} must be either running or queued", id);
    HADAL_CHECK(request->num_known() >= request->prompt_len && request->unknown >= 0 &&
                    request->num_new_planned() <= request->max_new_tokens,
                "request {}: {} tokens, {} unknown, prompt {}, at most {} new", id, request->num_known(),
                request->unknown, request->prompt_len, request->max_new_tokens);
    HADAL_CHECK(!request->queued || request->pages.empty(), "request {} is queued but has pages", id);
    // Tokens that are unknown, or planned and not confirmed, belong to a step in flight.
    HADAL_CHECK(request->num_items_in_flight > 0 || request->unknown == 0,
                "request {} has unknown tokens but no step in flight", id);
    HADAL_CHECK(request->surplus >= 0 && (request->unknown > 0 || request->surplus == 0),
                "request {} may have {} more tokens, but no step in flight samples any", id,
                request->surplus);
    HADAL_CHECK(request->num_items_in_flight == 0 || !in_flight.empty(), "request {} is not consistent", id);
    if (!request->running) continue;
    HADAL_CHECK(by_slot[request->slot] == request.get(), "request {} is not in slot {}", id, request->slot);
    HADAL_CHECK(request->confirmed <= request->planned && request->planned <= request->length() &&
                    num_pages_for(request->planned) <= std::ssize(request->pages) &&
                    request->num_pages_sent <= std::ssize(request->pages),
                "request {}: confirmed {}, planned {}, length {}, {} pages, {} sent", id, request->confirmed,
                request->planned, request->length(), request->pages.size(), request->num_pages_sent);
    const bool defers =
        std::find(in_flight.begin(), in_flight.end(), request->deferred_step) != in_flight.end();
    HADAL_CHECK(defers || (request->confirmed < request->planned) == (request->num_items_in_flight > 0),
                "request {} is not consistent", id);
    HADAL_CHECK(request->catching_up || request->draining() || request->planned == request->length() - 1,
                "request {} decodes at {} of {}", id, request->planned, request->length());
  }
  for (const RequestState* request : prefilling) {
    HADAL_CHECK(request->running && request->prefilling && !request->prompt_cached,
                "request {} is not in prefill", request->id);
  }
}

}  // namespace hadal
