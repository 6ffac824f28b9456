// The three ways to ask a server for text, as request bodies and as answers read back: SGLang's /generate and
// OpenAI's completions and chat. Pure; one AnswerReader a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::cli {

enum class ServerApi { kGenerate, kCompletions, kChat };

struct Backend {
  std::string_view name;  // as --backend writes it
  ServerApi api;
  uint16_t default_port;
};
// By name. Error: kInvalidArgument.
Result<Backend> find_backend(std::string_view name);
std::string_view target_of(ServerApi api);  // "/generate"

// A request before it is written for an API: text or token ids.
struct LoadRequest {
  std::string prompt;
  std::vector<int32_t> ids;   // sent instead of the text when not empty
  int64_t prompt_tokens = 0;  // 0: not known
  int64_t output_tokens = 0;  // asked for
};

struct BodyOptions {
  ServerApi api = ServerApi::kGenerate;
  std::string model;  // OpenAI's APIs need one
  bool stream = true;
  bool ignore_eos = true;
  bool return_logprob = false;
  double temperature = 0.0;
  std::string extra;  // a JSON object merged into the body, objects inside it too; empty: none
};

// Error (kInvalidArgument): `extra` is not a JSON object.
Result<void> check_extra(std::string_view extra);

// The JSON body. `extra` has been checked.
std::string make_body(const LoadRequest& request, const BodyOptions& options);

// Reads one answer: the events of a stream, or the whole body.
class AnswerReader {
 public:
  explicit AnswerReader(ServerApi api) : api_(api) {}

  // Tokens that this event brought (0 for one without text). After an error event, error() is set.
  int64_t take_event(std::string_view data);
  void take_body(std::string_view body);

  const std::string& text() const { return text_; }
  const std::string& error() const { return error_; }  // of the server; empty: none
  bool saw_done() const { return saw_done_; }          // "[DONE]", which ends a stream
  // As the server counts, else the number of events with text.
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

}  // namespace hadal::cli
