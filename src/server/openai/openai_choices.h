// Holds what the answers of /v1/completions and /v1/chat/completions have in common: the frame around their
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
  // `object` is the answer's field of that name; with `reasoning` the usage counts reasoning.
  OpenAiChoices(const OpenAiRequest& request, std::string_view object, bool cache_report, bool reasoning);

  bool in_stream() const { return in_stream_; }
  OpenAiUsage& usage() { return usage_; }
  // Returns how the JSON of choice i begins, up to its index; in a stream with the beginning of the event
  // before it.
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
