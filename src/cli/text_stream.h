// Token ids of one answer -> the text to show. Used by the main thread; the stop condition by the thread that
// runs the engine's steps, which is the same one here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace hadal::cli {

// Ends a request at one of some strings. skip_special_tokens as for the TextStream of the same request: both
// have to see the same text.
class StopStrings final : public StopCondition {
 public:
  StopStrings(const Tokenizer& tokenizer, const std::vector<std::string>& stops, bool skip_special_tokens)
      : detokenizer_(tokenizer, skip_special_tokens), matcher_(stops) {}
  std::optional<std::string> on_token(int32_t token_id) override;

 private:
  Detokenizer detokenizer_;
  StopMatcher matcher_;
};

class TextStream {
 public:
  struct Options {
    bool skip_special_tokens = true;
    bool no_stop_trim = false;  // the stop string or token stays in the text
  };
  // Without a tokenizer all text is empty.
  TextStream(const Tokenizer* tokenizer, const std::vector<std::string>& stops, Options options);

  // The text that the chunk adds, complete once the chunk carries a finish reason. A matched stop token
  // gives no text unless no_stop_trim is set.
  std::string append(const TokenChunk& chunk);

 private:
  std::optional<Detokenizer> detokenizer_;
  StopMatcher matcher_;
  Options options_;
};

}  // namespace hadal::cli
