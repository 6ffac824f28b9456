// Asks a server for text in three ways: SGLang's /generate and OpenAI's completions and chat. These functions
// write the request bodies of the three interfaces and read their answers. The functions are pure; each
// request has an AnswerReader of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::client {

enum class ServerApi { kGenerate, kCompletions, kChat };

struct Backend {
  std::string_view name;  // as users write it
  ServerApi api;
  uint16_t default_port;
};
// Returns the backend of this name. The error is kInvalidArgument if there is none.
Result<Backend> find_backend(std::string_view name);
std::string_view target_of(ServerApi api);  // its path, "/generate"

// LoadRequest is a request that has not been written for an API yet. Its prompt is text or token ids.
struct LoadRequest {
  std::string prompt;
  std::vector<int32_t> ids;   // sent instead of `prompt` unless empty
  int64_t prompt_tokens = 0;  // 0: not known
  int64_t output_tokens = 0;  // that are asked for
};

struct BodyOptions {
  ServerApi api = ServerApi::kGenerate;
  std::string model;  // required by OpenAI's APIs
  bool stream = true;
  bool ignore_eos = true;
  bool return_logprob = false;
  double temperature = 0.0;
  std::string extra;  // JSON object to merge into the body, nested objects field by field; empty: none
};

// Returns an error (kInvalidArgument) if `extra` is not a JSON object. `source` names the text in the error.
Result<void> check_extra(std::string_view extra, std::string_view source);

// Returns the JSON body. check_extra must have accepted the options' `extra`.
std::string make_body(const LoadRequest& request, const BodyOptions& options);

// Reads one answer, either from the events of a stream or from a whole body.
class AnswerReader {
 public:
  explicit AnswerReader(ServerApi api) : api_(api) {}

  // Returns how many tokens this event carried, 0 if it had no text. An error event sets error().
  int64_t take_event(std::string_view data);
  void take_body(std::string_view body);

  const std::string& text() const { return text_; }
  const std::string& error() const { return error_; }  // that the server reported; empty: none
  bool saw_done() const { return saw_done_; }          // the event "[DONE]" has ended the stream
  // Returns the number of output tokens that the server reported. If it reported none, returns the number of
  // events with text.
  int64_t output_tokens() const { return counted_.value_or(num_text_events_); }
  int64_t prompt_tokens() const { return prompt_tokens_; }  // 0: the server did not say
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  int64_t take_json(std::string_view text, bool whole);

  ServerApi api_;
  std::string text_;
  std::string error_;
  std::optional<int64_t> counted_;
  int64_t num_text_events_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  bool saw_done_ = false;
};

}  // namespace hadal::client
