#include "server/admission/request_limits.h"

#include <algorithm>

#include "server/admission/memory_costs.h"
#include "server/json/json_fields.h"
#include "server/json/sampling_fields.h"

namespace hadal::server {

int64_t default_max_request_tokens(int64_t context_length) {
  constexpr int64_t kBatchTokens = int64_t{1024} * 4096;
  return std::max(kMaxChoices * context_length, kBatchTokens);
}

void read_num_alternatives(FieldReader& reader, std::string_view name, int64_t most,
                           const RequestLimits& limits, int64_t& out) {
  if (limits.max_logprobs >= most) return reader.integer(name, out, 0, most);
  reader.integer(name, out, 0, limits.max_logprobs, "--max-logprobs");
}

void RequestBudget::add(int64_t prompt_tokens, int64_t max_new_tokens, const LogprobOptions& logprobs,
                        int64_t num_choices) {
  num_generations_ += num_choices;
  prompt_tokens_ += num_choices * prompt_tokens;
  answer_tokens_ += num_choices * max_new_tokens;
  const int64_t scored = num_scored_positions(logprobs, prompt_tokens);
  prompt_logprobs_ += num_choices * static_cast<int64_t>(num_logprobs(logprobs, scored));
}

Result<void> RequestBudget::check_tokens() const {
  const int64_t sum = prompt_tokens_ + answer_tokens_;
  if (limits_.max_tokens == 0 || sum <= limits_.max_tokens) return {};
  return invalid_argument(
      "the request asks for {} tokens (generations: {}; tokens of prompts: {}, of answers: {}); at most {} "
      "are "
      "allowed (--max-request-tokens)",
      sum, num_generations_, prompt_tokens_, answer_tokens_, limits_.max_tokens);
}

Result<void> RequestBudget::check_prompt_logprobs() const {
  if (prompt_logprobs_ <= limits_.max_prompt_logprobs) return {};
  return invalid_argument(
      "asks for {} log-probabilities of prompts (generations: {}; tokens of prompts: {}); at most {} are "
      "allowed "
      "(--max-prompt-logprobs)",
      prompt_logprobs_, num_generations_, prompt_tokens_, limits_.max_prompt_logprobs);
}

}  // namespace hadal::server
