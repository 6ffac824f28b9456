// Decides which waiting requests wait for a prompt in prefill that begins like theirs.
//
// A request whose prompt shares at least a page more with a prompt in prefill than with the cache waits until
// that prefill has computed the common whole pages. Then they are inserted into the tree, where the request
// finds them. Other requests may overtake it meanwhile. It waits for another client's prompt only as long as
// every step computes some of it, so it does not wait for that client's other prompts, or for a mask of it. A
// starved request (request_queue.h) does not wait. The wait always ends, because some running prefill
// advances with every step.
//
// Only prompts are compared, page by page, by their hashes (prompt_pages.h). Which prompt a request waits for
// is remembered, so that a plan does little for each of thousands that wait.
#include <algorithm>

#include "scheduler/scheduler_impl.h"

namespace hadal {

bool Scheduler::Impl::may_wait_for(const RequestState& owner, const RequestState& request) const {
  if (!owner.prefilling) return false;
  if (owner.client == request.client) return true;
  // In the step that is being planned, or in the latest one if its turn in this step has not come yet.
  return !owner.held && (owner.step_tokens > 0 || owner.prompt_step == last_step);
}

bool Scheduler::Impl::waits_for_prefix(RequestState& request) {
  if (request.starved || prefilling.empty()) return false;
  if (request.prefix_owner != 0) {  // decided in an earlier step
    RequestState* owner = find(request.prefix_owner);
    if (owner != nullptr && owner->confirmed < request.prefix_end && may_wait_for(*owner, request))
      return true;
    if (owner != nullptr && owner->prefilling) cache_computed_pages(*owner);
    request.prefix_owner = 0;
  }
  const PromptPages& mine = *request.prompt_pages;
  const int64_t most = std::min(match_limit(request) / kCachePageSize, mine.num_pages());
  RequestState* owner = nullptr;
  int64_t longest = 0;  // pages
  for (RequestState* other : prefilling) {
    if (longest >= most) break;
    if (other->salt != request.salt || !may_wait_for(*other, request)) continue;
    const int64_t common = mine.common_pages(*other->prompt_pages, longest, most);
    if (common <= longest) continue;
    longest = common;
    owner = other;
  }
  if (owner == nullptr || longest * kCachePageSize < match_length(request) + kCachePageSize) return false;
  if (owner->confirmed >= longest * kCachePageSize) {
    cache_computed_pages(*owner);
    return false;
  }
  request.prefix_owner = owner->id;
  request.prefix_end = longest * kCachePageSize;
  return true;
}

void Scheduler::Impl::cache_computed_pages(RequestState& owner) {
  const int64_t end = std::min(owner.confirmed, owner.prompt_len) / kCachePageSize * kCachePageSize;
  if (end > owner.prompt_end_cached) insert_prompt(owner, end);
}

}  // namespace hadal
