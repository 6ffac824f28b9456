// Separates a model's output into reasoning and answer, at <think> and </think>, while the text streams.
//
// Nothing is trimmed: reasoning + "</think>" + content is the generated text, byte for byte (without the
// opening <think>). vLLM and current SGLang do the same; older SGLang stripped white space, but only when it
// did not stream. The result depends on the text alone, never on how the text was cut into pieces.
//
// The tags are special tokens in some vocabularies: detokenise with skip_special_tokens = false.
// Functions are pure; a parser belongs to one stream and is used by one thread at a time.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/chat/chat_template.h"

namespace hadal {

// The names are those of SGLang's --reasoning-parser.
enum class ReasoningFormat {
  kNone,        // everything is content
  kDeepSeekR1,  // "deepseek-r1": the answer begins in reasoning, whether or not the model writes <think>
  // "deepseek-v3": reasons if the prompt (when thinking was requested) or the model opens <think>
  kDeepSeekV3,
};

// `name` is the value of --reasoning-parser: "deepseek-r1", "deepseek-v3", or "auto", which selects by the
// chat format: none for v2, deepseek-r1 for r1, deepseek-v3 for v3.1, v3.2 and v2.5 (where R1-0528 opens
// <think> itself). Any other name is kInvalidArgument; the message lists these.
Result<ReasoningFormat> resolve_reasoning_format(std::string_view name, ChatFormat chat_format);
// Returns "none", "deepseek-r1" or "deepseek-v3".
const char* to_string(ReasoningFormat format);

// Tells whether generation after `prompt` (render_chat's text) begins inside reasoning. The tags in the
// assistant's open turn decide, so a continued final message is inside reasoning if its text ends there. A
// turn without tags begins in reasoning for kDeepSeekR1 and not for kDeepSeekV3.
bool starts_in_reasoning(ReasoningFormat format, std::string_view prompt);

class ReasoningParser {
 public:
  struct Options {
    ReasoningFormat format = ReasoningFormat::kNone;
    bool starts_in_reasoning = false;  // see the function of that name
    bool stream_reasoning = true;      // false: reasoning is returned in one piece, once it is complete
  };
  struct Piece {
    std::string reasoning;
    std::string content;
  };
  explicit ReasoningParser(Options options);

  // Adds a piece of text and returns the text that may be shown now; only a possible beginning of a tag is
  // held back. <think> at the very beginning, even repeated, is removed and opens reasoning; the first
  // </think> in reasoning ends it for good. Tags anywhere else are ordinary text.
  Piece append(std::string_view text);

  // Ends the text and returns the rest. Reasoning that no </think> has ended is still returned as reasoning.
  Piece finish();

  // Tells whether the text so far ends inside reasoning.
  bool in_reasoning() const { return in_reasoning_; }

 private:
  void take_reasoning(std::string_view text, Piece& piece);

  Options options_;
  bool at_start_;  // nothing but <think> has been read
  bool in_reasoning_;
  std::string held_;       // a possible beginning of a tag
  std::string collected_;  // reasoning that is not complete yet (stream_reasoning = false)
};

}  // namespace hadal
