// Puts questions to a model: in this process, or to a server. Main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "text/chat_template.h"

namespace hadal::cli {

struct EvalAsk {
  std::vector<ChatMessage> messages;  // a chat; or, when empty:
  std::string prompt;                 // a text to continue
  bool thinking = false;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 0;
  bool fits_context = true;  // max_new_tokens may be lowered to what the context leaves
  double temperature = 0.0;
  double top_p = 1.0;
  uint64_t seed = 0;
};

struct EvalReply {
  std::string text;                  // without reasoning, where a server cuts that off
  bool starts_in_reasoning = false;  // `text` begins inside <think>
  int64_t completion_tokens = 0;
};

class EvalAsker {
 public:
  // Hears of each reply, in any order.
  using OnReply = std::function<void(size_t index, const EvalReply& reply)>;

  virtual ~EvalAsker() = default;

  // The replies in the order of the questions. Errors: kCancelled by Ctrl-C; a question that was not
  // answered, which the message names.
  virtual Result<std::vector<EvalReply>> ask(std::span<const EvalAsk> asks, const OnReply& on_reply,
                                             const InterruptGuard& guard) = 0;
};

// With --base-url, over HTTP; else loads the model of --model-path. Errors: flags that belong to the other
// way; what loading says.
Result<std::unique_ptr<EvalAsker>> open_asker(const ParsedFlags& flags, const Environment& environment);

// The two ways.
Result<std::unique_ptr<EvalAsker>> open_http_asker(const ParsedFlags& flags);
Result<std::unique_ptr<EvalAsker>> open_engine_asker(const ParsedFlags& flags,
                                                     const Environment& environment);

}  // namespace hadal::cli
