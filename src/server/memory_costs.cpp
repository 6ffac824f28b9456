#include "server/memory_costs.h"

namespace hadal::server {

Result<void> charge_choices(MemoryCharge& charge, const GenerationRequest& request, int64_t num_choices,
                            int64_t vocab_size) {
  const auto count = static_cast<size_t>(num_choices);
  const size_t prompt_tokens = request.input_ids.size();
  const int64_t first_tokens = std::min(request.sampling.max_new_tokens, kTokenBlock);
  HADAL_RETURN_IF_ERROR(
      charge.add(MemoryKind::kChoice, count * kChoiceBytes + prompt_tokens * kPromptTokenBytes));
  HADAL_RETURN_IF_ERROR(
      charge.add(MemoryKind::kOutput, count * output_bytes(request.keeps_answer, first_tokens)));
  const LogprobOptions& logprobs = request.logprobs;
  // The log-probabilities of a prompt arrive in one piece, so they are kept whatever the form of the answer
  // is.
  const int64_t scored = (request.keeps_answer ? first_tokens : 0) +
                         num_scored_positions(logprobs, static_cast<int64_t>(prompt_tokens));
  HADAL_RETURN_IF_ERROR(charge.add(MemoryKind::kLogprob, count * num_logprobs(logprobs, scored) *
                                                             bytes_per_logprob(request.long_logprobs)));
  if (vocab_size <= 0) return {};
  // The worker's task, the step and the executor hold a mask each.
  return charge.add(MemoryKind::kGrammar, count * (kMatcherBytes + 3 * static_cast<size_t>(vocab_size) / 8));
}

}  // namespace hadal::server
