// SGLang's /generate body → what is to be generated. A pure function of the body, the tokenizer and the
// limits: no engine, no sockets.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "server/generation.h"
#include "server/prompt_limits.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace hadal::server {

struct NativeLimits {
  PromptLimits prompt;
  int64_t vocab_size = 0;
  const Tokenizer* tokenizer = nullptr;  // null: input_ids only
};

inline constexpr size_t kMaxBatch = 16384;  // generations of one HTTP request, n counted
inline constexpr size_t kMaxRidBytes = 256;
inline constexpr int64_t kMaxPriority = 1'000'000'000;  // and as far below zero
inline constexpr int64_t kMaxTopLogprobs = 128;         // as LogprobOptions::top_num allows

struct NativeItem {
  GenerationRequest request;                   // rid set, made up where the client gave none
  std::shared_ptr<const GrammarSpec> grammar;  // null: none
};

struct NativeRequest {
  std::vector<NativeItem> items;  // prompt by prompt, the n choices of a prompt together
  bool is_list = false;           // the answer is a list, events carry `index`
  bool stream = false;
  bool text_in_logprobs = false;
};

struct FieldError {
  Status status;
  std::string field;  // empty: the body as a whole
};

// Errors name the field, its value and what is allowed. Unknown fields of the body are ignored, as SGLang
// does; unknown sampling parameters are errors, as there.
std::variant<NativeRequest, FieldError> parse_native_request(std::string_view body,
                                                             const NativeLimits& limits);

}  // namespace hadal::server
