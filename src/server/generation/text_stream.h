// Turns the token ids of one answer into the text that the server streams and the command line prints. It
// belongs to one stream and one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "text/stop/stop_search.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

class TextStream {
 public:
  struct Options {
    bool skip_special_tokens = true;
    bool no_stop_trim = false;  // the stop string or token stays in the text
  };
  // Without a tokenizer (which must outlive this object), all text is empty. `stops` may be null; the stop
  // condition of the same request must be made with the same patterns and options.
  TextStream(const Tokenizer* tokenizer, std::shared_ptr<const StopPatterns> stops, Options options);

  // Returns the text that the chunk adds, which is complete once the chunk has a finish reason. It consists
  // of whole characters, without a possible beginning of a stop string and without anything from a stop on. A
  // matched stop token has no text unless no_stop_trim is set.
  std::string append(const TokenChunk& chunk);
  // Returns the stop string or the text that a stop expression matched. It is empty if there was no match.
  std::string matched() const { return search_ ? search_->matched() : std::string(); }

 private:
  std::optional<Detokenizer> detokenizer_;
  std::optional<StopSearch> search_;
  bool no_stop_trim_;
};

// Makes the argument of TextStream and make_stop_condition: null when there are no stops. The errors are
// those of StopPatterns::compile.
Result<std::shared_ptr<const StopPatterns>> compile_stops(std::vector<std::string> strings,
                                                          const std::vector<std::string>& regexes = {});

}  // namespace hadal::server
