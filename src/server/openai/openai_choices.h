// Holds the common part of the answers of /v1/completions and /v1/chat/completions: the frame around their
// choices, in one piece or in events, and the usage. It runs on I/O threads.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai/openai_call.h"
#include "server/openai/openai_json.h"

namespace hadal::server {

class OpenAiChoices : public OpenAiAnswer {
 public:
  void end_stream(SseStream& stream) final;
  std::string whole() final;

 protected:
  // `object` is the answer's field of that name. If `reasoning` is set, the usage counts reasoning tokens.
  OpenAiChoices(const OpenAiRequest& request, std::string_view object, bool cache_report, bool reasoning);

  bool in_stream() const { return in_stream_; }
  OpenAiUsage& usage() { return usage_; }
  // Returns the beginning of the JSON of choice i, up to its index. In a stream the beginning of the event
  // precedes it.
  std::string begin_choice(size_t i) const;
  // Ends the event that choice i has begun, and sends it.
  void send_choice(size_t i, std::string& event, SseStream& stream) const;
  // Sets the JSON of choice i for whole().
  void set_choice(size_t i, std::string json) { choices_[i] = std::move(json); }

 private:
  const bool in_stream_;
  const bool include_usage_;
  const bool continuous_usage_;
  std::string head_;
  OpenAiUsage usage_;
  std::vector<std::string> choices_;  // as they will be sent in one piece
};

}  // namespace hadal::server
