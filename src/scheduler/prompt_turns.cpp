// Divides a step's budget of prompt tokens between the prompts that are under way and those that wait.
//
// The oldest long prompt gets half of the budget, and what no other prompt can use. The other half goes first
// to short prompts of other clients, one for each client: first to prompts under way, then to those that
// wait. So a client's short request does not wait until another client's long prompt has been computed. The
// oldest long prompt advances by half a chunk with every step, however many short ones arrive. A prompt is
// short when half a chunk can hold what is left of it, and half of the tokens that a step may score are
// enough for it. If there is no long prompt, the oldest short one is treated as the long one.
#include <algorithm>
#include <unordered_set>

#include "scheduler/scheduler_impl.h"

namespace hadal {

void Scheduler::Impl::advance_prompt(RequestState& request, PromptBudget& budget,
                                     const Generating& generating) {
  const int64_t begin = request.planned;
  const int64_t num_taken = request.step_tokens;
  const bool delays = generating.others_than(request.client);
  const int64_t count =
      budget.most(request, begin, num_taken, request.num_known() - begin - num_taken, delays);
  budget.take(request, begin, num_taken, count, delays);
  request.step_tokens = num_taken + count;
  request.step_absorbed = budget.absorbs(request, begin, begin + request.step_tokens, delays);
}

bool Scheduler::Impl::is_long(const RequestState& request, int64_t begin) const {
  const int64_t known = request.num_known();
  return known - begin > prefill_budget() / 2 ||
         PromptBudget::num_scored(request, begin, known) > options.max_scored_tokens / 2;
}

void Scheduler::Impl::plan_prompts(PromptBudget& budget, const Generating& generating, bool admits,
                                   BatchPlan& plan) {
  std::vector<RequestState*> prompts;  // in order of admission
  for (RequestState* request : running) {
    if (!request->held && request->catching_up) prompts.push_back(request);
  }
  if (!prompts.empty() && options.chunked_prefill_size >= 0) {
    const auto first_long = std::find_if(prompts.begin(), prompts.end(), [this](const RequestState* request) {
      return is_long(*request, request->planned);
    });
    RequestState& oldest = first_long != prompts.end() ? **first_long : *prompts.front();
    budget.set_half_aside();
    advance_prompt(oldest, budget, generating);
    budget.give_back();
    std::unordered_set<uint64_t> clients = {oldest.client};
    for (RequestState* request : prompts) {
      if (is_long(*request, request->planned)) continue;
      if (clients.insert(request->client).second) advance_prompt(*request, budget, generating);
    }
    for (const RequestState* request : prompts) clients.insert(request->client);
    if (admits) admit_newcomers(budget, generating, clients, plan);
  }
  for (RequestState* request : prompts) advance_prompt(*request, budget, generating);
  if (admits) admit(budget, generating, plan);
}

}  // namespace hadal
