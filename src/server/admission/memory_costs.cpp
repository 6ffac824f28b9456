#include "server/admission/memory_costs.h"

#include "text/stop/stop_search.h"

namespace hadal::server {
namespace {

// A choice's biases and stop tokens exist this many times: in the request, in a step that starts it, and in
// the executor.
constexpr size_t kSamplingCopies = 3;

}  // namespace

size_t choice_bytes(const GenerationRequest& request) {
  const SamplingParams& sampling = request.sampling;
  size_t out = kChoiceBytes;
  out += kSamplingCopies * (sampling.logit_bias.size() * sizeof(sampling.logit_bias[0]) +
                            sampling.stop_token_ids.size() * sizeof(sampling.stop_token_ids[0]));
  // The engine checks the text, and the answer searches it.
  if (request.stops != nullptr) out += request.stops->check_bytes() + request.stops->search_bytes();
  return out;
}

size_t token_bytes(const GenerationRequest& request) {
  const bool holds_text = request.stops != nullptr && request.stops->num_regexes() > 0;
  return (request.keeps_answer ? kKeptTokenBytes : kTokenBytes) + (holds_text ? kHeldTokenBytes : 0) +
         (uses_token_counts(request.sampling) ? kCountedTokenBytes : 0) +
         (request.grammar != nullptr ? kMatcherTokenBytes : 0);
}

Result<void> charge_choices(MemoryCharge& charge, const GenerationRequest& request, int64_t num_choices,
                            int64_t vocab_size) {
  const auto count = static_cast<size_t>(num_choices);
  const size_t prompt_tokens = request.input_ids.size();
  const size_t prompt_token_bytes =
      kPromptTokenBytes + (uses_prompt_tokens(request.sampling) ? kPenalisedPromptTokenBytes : 0);
  const size_t patterns = request.stops == nullptr ? 0 : request.stops->bytes();  // the choices share them
  const int64_t first_tokens = std::min(request.sampling.max_new_tokens, kTokenBlock);
  HADAL_RETURN_IF_ERROR(charge.add(
      MemoryKind::kChoice, patterns + prompt_tokens * prompt_token_bytes + count * choice_bytes(request)));
  HADAL_RETURN_IF_ERROR(
      charge.add(MemoryKind::kOutput, count * static_cast<size_t>(first_tokens) * token_bytes(request)));
  const LogprobOptions& logprobs = request.logprobs;
  // The log-probabilities of a prompt arrive in one piece, so they are kept even if the answer is streamed.
  const int64_t scored = (request.keeps_answer ? first_tokens : 0) +
                         num_scored_positions(logprobs, static_cast<int64_t>(prompt_tokens));
  HADAL_RETURN_IF_ERROR(charge.add(MemoryKind::kLogprob, count * num_logprobs(logprobs, scored) *
                                                             bytes_per_logprob(request.long_logprobs)));
  if (vocab_size <= 0) return {};
  // The worker's task, the step and the executor hold a mask each.
  return charge.add(MemoryKind::kGrammar,
                    count * (kMatcherBytes + static_cast<size_t>(first_tokens) * kMatcherTokenBytes +
                             3 * static_cast<size_t>(vocab_size) / 8));
}

}  // namespace hadal::server
