#include "engine/sampling_params.h"

#include <cmath>

namespace hadal {
namespace {

// The comparison is written so that NaN fails too.
Result<void> check_range(const char* name, double value, double low, double high, const char* allowed) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{} is {}; allowed: {}", name, value, allowed);
}

Result<void> check_token(const char* name, int64_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return {};
  return invalid_argument("{} contains token {}; allowed: 0 to {}", name, token, vocab_size - 1);
}

}  // namespace

Result<void> validate(const SamplingParams& params, int64_t vocab_size) {
  HADAL_RETURN_IF_ERROR(
      check_range("max_new_tokens", static_cast<double>(params.max_new_tokens), 0, 1e15, "0 or more"));
  HADAL_RETURN_IF_ERROR(check_range("min_new_tokens", static_cast<double>(params.min_new_tokens), 0,
                                    static_cast<double>(params.max_new_tokens), "0 to max_new_tokens"));
  HADAL_RETURN_IF_ERROR(check_range("temperature", params.temperature, 0, static_cast<float>(kMaxTemperature),
                                    "0 (greedy) to 1e30"));
  HADAL_RETURN_IF_ERROR(check_range("top_p", params.top_p, static_cast<float>(kMinTopP), 1, "1e-30 to 1"));
  if (params.top_k != -1 && params.top_k < 1) {
    return invalid_argument("top_k is {}; allowed: 1 or more, or -1 for all", params.top_k);
  }
  HADAL_RETURN_IF_ERROR(check_range("min_p", params.min_p, 0, 1, "0 to 1"));
  HADAL_RETURN_IF_ERROR(check_range("frequency_penalty", params.frequency_penalty, -2, 2, "-2 to 2"));
  HADAL_RETURN_IF_ERROR(check_range("presence_penalty", params.presence_penalty, -2, 2, "-2 to 2"));
  HADAL_RETURN_IF_ERROR(check_range("repetition_penalty", params.repetition_penalty,
                                    static_cast<float>(kMinRepetitionPenalty), 2, "1e-30 to 2"));
  for (const int32_t token : params.stop_token_ids) {
    HADAL_RETURN_IF_ERROR(check_token("stop_token_ids", token, vocab_size));
  }
  for (const auto& [token, bias] : params.logit_bias) {
    HADAL_RETURN_IF_ERROR(check_token("logit_bias", token, vocab_size));
    HADAL_RETURN_IF_ERROR(check_range("logit_bias", bias, -100, 100, "-100 to 100"));
  }
  return {};
}

}  // namespace hadal
