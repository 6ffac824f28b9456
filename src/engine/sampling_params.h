// Says how the next token is chosen: plain data with the defaults of SGLang's sampling_params.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal {

// Logits and probabilities stay within float32 between these bounds, each of which is rounded to it.
inline constexpr double kMaxTemperature = 1e30;
inline constexpr double kMinTopP = 1e-30;
inline constexpr double kMinRepetitionPenalty = 1e-30;

struct SamplingParams {
  int64_t max_new_tokens = 128;  // ≥ 0
  // In [0, max_new_tokens]. End-of-sequence and stop tokens are masked for this many tokens.
  int64_t min_new_tokens = 0;
  float temperature = 1.0F;  // [0, kMaxTemperature]; 0 is greedy
  float top_p = 1.0F;        // [kMinTopP, 1]: nucleus, arXiv 1904.09751
  int64_t top_k = -1;        // ≥ 1, or -1: all
  float min_p = 0.0F;        // [0, 1]: drops tokens below min_p · the best probability, arXiv 2407.01082
  float frequency_penalty = 0.0F;  // [-2, 2]: logit −= penalty · occurrences among the generated tokens
  float presence_penalty = 0.0F;   // [-2, 2]: logit −= penalty if generated before
  // [kMinRepetitionPenalty, 2]: for prompt and generated tokens; logit / p if > 0, · p if < 0
  float repetition_penalty = 1.0F;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::pair<int32_t, float>> logit_bias;  // each bias in [-100, 100]
  std::optional<uint64_t> seed;                       // none: the engine chooses one for each request
};

// These tell whether sampling depends on the tokens that have occurred so far, and on those of the prompt.
inline bool uses_prompt_tokens(const SamplingParams& params) {
  return params.repetition_penalty != 1.0F;
}
inline bool uses_token_counts(const SamplingParams& params) {
  return uses_prompt_tokens(params) || params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F;
}

// Errors name the field, its value and what is allowed. Token ids are checked against vocab_size.
Result<void> validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace hadal
