// Bounds what one HTTP request may ask for, over all of its prompts and choices, because a body of a few
// kilobytes can ask for billions of tokens. A request beyond a bound is a client's error (400), which is
// found before anything is built or started. The functions are pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "engine/engine.h"

namespace hadal::server {

class FieldReader;  // server/json/json_fields.h

inline constexpr int64_t kMaxTopLogprobs = 128;  // the limit of LogprobOptions::top_num
// One prompt of 163,840 tokens with 20 alternatives needs less, and so do 64 of 4,096 tokens with 10. This
// many log-probabilities take 1 GiB (kKeptLogprobBytes) until the answer is sent.
inline constexpr int64_t kDefaultMaxPromptLogprobs = int64_t{1} << 22;

struct RequestLimits {
  int64_t max_logprobs = kMaxTopLogprobs;  // alternatives at a position; [0, kMaxTopLogprobs]
  int64_t max_tokens = 0;                  // of all generations, see add(); 0: no limit
  int64_t max_prompt_logprobs = kDefaultMaxPromptLogprobs;  // of all generations, see add(); 0: none at all
};

// Returns the limit of tokens if the operator gives none. It allows one prompt with as many choices as the
// API allows (kMaxChoices), each of which fills the context, or a batch of 1,024 prompts with 4,096 tokens
// each. It is far below the largest batch (kMaxBatch) with full contexts.
int64_t default_max_request_tokens(int64_t context_length);

// Reads the number of alternatives from field `name`, in [0, most] and at most limits.max_logprobs.
void read_num_alternatives(FieldReader& reader, std::string_view name, int64_t most,
                           const RequestLimits& limits, int64_t& out);

// Sums the tokens and log-probabilities that the generations of one request ask for.
class RequestBudget {
 public:
  explicit RequestBudget(const RequestLimits& limits) : limits_(limits) {}

  // Adds `num_choices` generations of one prompt. The prompt's tokens count once for each choice, whatever
  // the prefix cache will save. Its log-probabilities do so too, because each choice computes and sends its
  // own: at each position that of the token and those of the alternatives.
  void add(int64_t prompt_tokens, int64_t max_new_tokens, const LogprobOptions& logprobs,
           int64_t num_choices);
  // kInvalidArgument names the sum, the limit and its flag.
  Result<void> check_tokens() const;
  // Does the same for the log-probabilities of prompts. The caller puts a field's name before the message.
  Result<void> check_prompt_logprobs() const;

 private:
  RequestLimits limits_;
  int64_t num_generations_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t answer_tokens_ = 0;
  int64_t prompt_logprobs_ = 0;
};

}  // namespace hadal::server
