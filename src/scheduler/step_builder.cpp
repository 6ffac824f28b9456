// Turns the running requests' work into items: prompt chunks first (un-absorbed, then absorbed ones), then
// generated tokens, each kind in order of admission.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace hadal {

void Scheduler::Impl::build_items(BatchPlan& plan) {
  RankPlan& rank = plan.ranks[0];
  rank.items.reserve(running.size());
  for (const WorkKind kind : {WorkKind::kPrefill, WorkKind::kAbsorbedPrefill}) {
    for (RequestState* request : running) {
      if (!request->catching_up || request->planned >= request->prompt_len || request->step_tokens == 0)
        continue;
      if (request->step_absorbed != (kind == WorkKind::kAbsorbedPrefill)) continue;
      const int64_t count = std::min(request->step_tokens, request->prompt_len - request->planned);
      add_item(*request, kind, count, rank);
      plan.num_prefill_tokens += count;
    }
  }
  for (RequestState* request : running) {
    if (request->step_tokens == 0) continue;
    plan.num_decode_tokens += request->step_tokens;
    add_item(*request, WorkKind::kDecode, request->step_tokens, rank);
  }
}

void Scheduler::Impl::add_item(RequestState& request, WorkKind kind, int64_t num_tokens, RankPlan& rank) {
  WorkItem item;
  item.request_id = request.id;
  item.slot = request.slot;
  item.kind = kind;
  item.verifies = request.verifies();
  request.repeats = false;
  item.begin = request.planned;
  item.num_tokens = static_cast<int32_t>(num_tokens);
  item.starts_slot = request.starts_slot;
  item.first_new_page = static_cast<int32_t>(rank.new_pages.size());
  item.num_new_pages = static_cast<int32_t>(std::ssize(request.pages) - request.num_pages_sent);
  rank.new_pages.insert(rank.new_pages.end(), request.pages.begin() + request.num_pages_sent,
                        request.pages.end());
  request.num_pages_sent = std::ssize(request.pages);
  request.starts_slot = false;
  item.input_from_previous = !item.verifies && request.planned >= request.num_known();
  HADAL_CHECK(!item.input_from_previous || num_tokens == 1, "request {}: {} unknown tokens", request.id,
              num_tokens);

  if (kind != WorkKind::kDecode) request.prompt_step = last_step + 1;
  request.planned += item.verifies ? 1 : num_tokens;
  request.step_tokens -= num_tokens;
  ++request.num_items_in_flight;
  if (request.planned == request.length()) {  // caught up: the last row's logits predict the next token
    request.catching_up = false;
    item.samples = request.num_new_planned() < request.max_new_tokens;
    item.ends_request = request.max_new_tokens == 0;
    if (item.samples) {
      ++request.unknown;
      if (item.verifies) request.surplus += item.num_tokens - 1;
      request.sample_step = last_step + 1;
    }
  }
  rank.items.push_back(item);
}

}  // namespace hadal
