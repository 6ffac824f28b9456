// One request inside the engine, from submit to its final chunk. Made on the caller's thread; after the inbox
// it is owned, read and changed by the engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace hadal {

struct SinkGroup;  // engine/chunk_delivery.h

struct Sequence {
  using Clock = std::chrono::steady_clock;

  RequestId id = 0;
  GenerateRequest request;  // input_ids moved into `tokens`
  uint64_t seed = 0;
  std::vector<int32_t> tokens;  // prompt, then generated tokens
  int64_t prompt_len = 0;
  std::vector<int32_t> eos;  // end tokens inside the vocabulary; empty with ignore_eos

  // The logits of prompt positions below this one have been requested, so that a second pass over the prompt,
  // after a retraction, requests none twice. prompt_len when no prompt log-probabilities are wanted.
  int64_t next_scored = 0;
  int64_t cached_tokens = 0;  // at the first admission
  TokenChunk pending;         // what has not been delivered yet
  SinkGroup* sink = nullptr;
  bool admitted = false;
  bool finished = false;
  bool score_is_nan = false;  // for one of its prompt log-probabilities
  bool deliverable = true;    // false: its sink failed
  int64_t last_step = 0;      // the latest step with a row of it; the sequence is kept until that step ends
  Clock::time_point submitted, started, first_token;

  int64_t num_generated() const { return static_cast<int64_t>(tokens.size()) - prompt_len; }
};

using SequenceTable = std::unordered_map<RequestId, std::unique_ptr<Sequence>>;

}  // namespace hadal
