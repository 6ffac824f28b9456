// Holds what the fuzzers of request bodies share: limits with a tokenizer of single bytes, and every format.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "server/openai/openai_request.h"

namespace hadal::fuzz {

inline const Tokenizer* body_tokenizer() {
  constexpr std::string_view kTokenizer = R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]},
  "added_tokens":[{"id":3,"content":"</think>","special":false}],
  "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
  "decoder":{"type":"ByteLevel"}})";
  static const auto tokenizer = Tokenizer::from_json(kTokenizer);
  HADAL_CHECK(tokenizer.ok(), "{}", tokenizer.status().message);
  return tokenizer->get();
}

// Returns limits without a chat format and, until the caller sets one, without a tokenizer.
inline server::OpenAiLimits body_limits(int64_t context_length, int64_t vocab_size) {
  server::OpenAiLimits limits;
  limits.prompt = {.context_length = context_length, .max_total_tokens = 4096};
  limits.vocab_size = vocab_size;
  limits.model_name = "m";
  return limits;
}

// Calls use(limits) for each chat format, with its parsers.
template <typename Use>
void for_each_format(server::OpenAiLimits limits, const Use& use) {
  for (const ChatFormat format :
       {ChatFormat::kV2, ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31, ChatFormat::kV32}) {
    limits.chat_format = format;
    limits.reasoning = resolve_reasoning_format("auto", format).value();
    limits.tool_calls = resolve_tool_call_format("auto", format).value();
    use(limits);
  }
}

}  // namespace hadal::fuzz
