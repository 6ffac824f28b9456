// Counts the tokens of one answer's reasoning, up to and including </think>. It belongs to one I/O thread.
#pragma once

#include <cstdint>
#include <optional>

#include "server/generation/generation.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

class ReasoningCount {
 public:
  // `opened` is true if the prompt ends inside <think>.
  ReasoningCount(const Tokenizer& tokenizer, bool opened);
  // Adds the tokens of the next delta, which is not a piece with `has_more`.
  void add(const GenerationDelta& delta);
  int64_t tokens() const { return tokens_; }

 private:
  std::optional<int32_t> think_id_, end_think_id_;
  bool in_reasoning_;
  int64_t tokens_ = 0;
};

}  // namespace hadal::server
