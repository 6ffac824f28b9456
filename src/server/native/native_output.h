// NativeOutput writes one generation in the JSON of /generate: cumulative or incremental, with SGLang's
// meta_info. Text, ids and log-probabilities are kept as JSON, so that an event that repeats everything costs
// only a copy. Only the I/O thread uses it.
//
// A cumulative stream of t tokens whose last event has b bytes has at most t · kEventBytesPerToken + 2b
// bytes. An event that would be too long waits until it has more new tokens. The prompt's log-probabilities
// are only in the first and the last event, because SGLang's own OpenAI endpoint reads the first, and its
// client keeps the last.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/generation/generation.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

// An event of a cumulative stream may repeat this much for each token that is new in it.
inline constexpr int64_t kEventBytesPerToken = 32 << 10;

class NativeOutput {
 public:
  enum class Form {
    kWhole,        // one answer
    kCumulative,   // events contain everything so far
    kIncremental,  // events contain only what is new since the last one
  };
  struct Options {
    const Tokenizer* tokenizer = nullptr;  // null: no "text", and null for texts in logprobs
    Form form = Form::kWhole;
    bool text_in_logprobs = false;
    LogprobOptions logprobs;
    std::optional<int64_t> index;  // set in a stream of several generations
  };
  NativeOutput(std::string rid, std::span<const int32_t> prompt, Options options);

  // Adds a delta, or a piece of one. Pieces with has_more are shown together with the last piece.
  void add(GenerationDelta delta);
  // Returns false when the event of the last add() must wait for more tokens. The last event never waits.
  bool is_due() const;
  // Appends the object as of the last add(); in an incremental stream it appends only what that call added.
  void append_json(std::string& out);
  // Returns about how many bytes append_json() will append.
  size_t json_bytes() const;
  // Returns true once the last delta, with the finish reason, has been added.
  bool finished() const { return last_.finish_reason != FinishReason::kNone; }

  const std::string& rid() const { return rid_; }
  const GenerationDelta& last() const { return last_; }  // without text and lists
  const std::string& text_json() const { return text_; }

 private:
  void append_entry(std::string& out, std::optional<float> logprob, int32_t id) const;
  void append_logprobs(std::vector<TokenLogprob>& entries, std::string& list, std::string& tops) const;
  void append_finish_reason(std::string& out) const;
  void append_speculation(std::string& out) const;

  std::string rid_;
  Options options_;
  // These are escaped or joined, without the surrounding brackets.
  std::string text_;
  std::string ids_;
  std::string input_logprobs_;
  std::string input_tops_;
  std::string output_logprobs_;
  std::string output_tops_;
  bool has_sent_ = false;    // append_json was called
  bool in_pieces_ = false;   // the last pieces of a delta are missing
  int64_t sent_tokens_ = 0;  // completion tokens that append_json has written
  GenerationDelta last_;
};

}  // namespace hadal::server
