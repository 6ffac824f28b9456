// Writes the parts of OpenAI's JSON that completions and chat share. Only I/O threads use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation/generation.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

// Returns {"id":…,"object":…,"created":<now>,"model":…,"choices":[ , which begins an answer and each event.
// It is written once per request.
std::string openai_head(std::string_view id, std::string_view object, std::string_view model);

// Appends ,"finish_reason":…,"matched_stop":…  `reason` replaces the reason "stop" (by "tool_calls").
void append_finish(std::string& out, const GenerationDelta& delta, std::string_view reason = {});

// OpenAiUsage holds the token counts of the choices of one request.
class OpenAiUsage {
 public:
  // prompt_of[i] is the prompt of choice i. A prompt is counted once, however many choices it has.
  OpenAiUsage(std::vector<size_t> prompt_of, bool cache_report, bool reasoning);

  void update(size_t choice, const GenerationDelta& delta);
  void set_reasoning_tokens(size_t choice, int64_t count) { counts_[choice].reasoning = count; }

  // Appends ,"usage":{…} of all choices, or of one choice for SGLang's continuous usage.
  void append_total(std::string& out) const;
  void append_choice(std::string& out, size_t choice) const;

 private:
  struct Counts {
    int64_t prompt = 0;
    int64_t completion = 0;
    int64_t cached = 0;
    int64_t reasoning = 0;
  };
  void append(std::string& out, const Counts& counts) const;

  std::vector<size_t> prompt_of_;
  std::vector<Counts> counts_;
  bool cache_report_;
  bool reasoning_;  // count the tokens of reasoning (chat only)
};

// openai_tail() appends about this many bytes.
inline constexpr size_t kTailBytes = 512;

// Completes a text that begins with openai_head: "]", the usage of all choices, `more` members, "}".
std::string openai_tail(std::string begun, const OpenAiUsage& usage, std::string_view more = {});

// Appends chat's logprobs: {"token","logprob","bytes","top_logprobs"} objects, separated by commas.
void append_chat_logprobs(std::string& out, const Tokenizer& tokenizer,
                          const std::vector<TokenLogprob>& entries);

// CompletionLogprobs writes the legacy four lists of completions, for one choice or one event. A token that
// is not valid UTF-8 by itself is written as OpenAI does: "bytes:\xe2\x80". text_offset is the number of
// characters of the choice's text before a token; a special token that is not shown has no characters.
// top_logprobs contains the best tokens and the token itself.
class CompletionLogprobs {
 public:
  // `tokenizer` may be null: texts are then empty.
  CompletionLogprobs(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // Adds the first token of a prompt, which no logits predict.
  void add_unpredicted(int32_t token_id);
  void add(const std::vector<TokenLogprob>& entries);
  // Appends {"text_offset":[…],"token_logprobs":[…],"tokens":[…],"top_logprobs":[…]} of everything added
  // since the last call.
  void append_json(std::string& out);

 private:
  void add_token(int32_t token_id);
  void append_key(std::string& out, int32_t token_id) const;

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  int64_t offset_ = 0;
  std::string offsets_, values_, tokens_, tops_;  // joined by commas
};

}  // namespace hadal::server
