// One generation in the JSON of /generate: cumulative or incremental, with SGLang's meta_info. Text, ids and
// log-probabilities are kept as JSON, so that an event that repeats everything costs only a copy. I/O thread
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "text/tokenizer.h"

namespace hadal::server {

class NativeOutput {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;  // null: no "text", and null for texts in logprobs
    bool incremental = false;              // events contain only what is new since the last one
    bool text_in_logprobs = false;
    LogprobOptions logprobs;
    std::optional<int64_t> index;  // set in a stream of several generations
  };
  NativeOutput(std::string rid, const std::vector<int32_t>& prompt, Options options);

  // Adds a delta.
  void add(GenerationDelta delta);
  // Appends the object as of the last add(); in an incremental stream only what that call added.
  void append_json(std::string& out) const;
  // True once the last delta, with the finish reason, has been added.
  bool finished() const { return last_.finish_reason != FinishReason::kNone; }

  const std::string& rid() const { return rid_; }
  const GenerationDelta& last() const { return last_; }  // without text and lists
  const std::string& text_json() const { return text_; }

 private:
  void append_entry(std::string& out, std::optional<float> logprob, int32_t id) const;
  void append_logprobs(std::vector<TokenLogprob>& entries, std::string& list, std::string& tops) const;
  void append_finish_reason(std::string& out) const;

  std::string rid_;
  Options options_;
  // Escaped or joined, without the surrounding brackets.
  std::string text_;
  std::string ids_;
  std::string input_logprobs_;
  std::string input_tops_;
  std::string output_logprobs_;
  std::string output_tops_;
  GenerationDelta last_;
};

}  // namespace hadal::server
