// Puts questions to a model, wherever it runs. One thread uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/eval_report.h"
#include "text/chat/chat_template.h"

namespace hadal::client {

struct EvalAsk {
  std::vector<ChatMessage> messages;  // messages of a chat; if empty, `prompt` is used
  std::string prompt;                 // text to continue
  bool thinking = false;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 0;
  bool fits_context = true;  // lower max_new_tokens to the room that the context has
  double temperature = 0.0;
  double top_p = 1.0;
  uint64_t seed = 0;
};

struct EvalReply {
  std::string text;                  // without the reasoning if a server removes it
  bool starts_in_reasoning = false;  // `text` begins inside <think>
  int64_t completion_tokens = 0;
  AcceptCounts accepted;
};

class EvalAsker {
 public:
  // This is called for each reply, in any order.
  using OnReply = std::function<void(size_t index, const EvalReply& reply)>;

  virtual ~EvalAsker() = default;

  // Returns the replies in the order of the questions. `stop` is polled at least ten times per second. The
  // errors are kCancelled if `stop` returned true, and kInternal if a question, which the message names, got
  // no answer.
  virtual Result<std::vector<EvalReply>> ask(std::span<const EvalAsk> asks, const OnReply& on_reply,
                                             const std::function<bool()>& stop) = 0;
};

}  // namespace hadal::client
