// Sequence is one request inside the engine, from submit to its final chunk. It is made on the caller's
// thread; after the inbox only the engine thread owns, reads and changes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace hadal {

class MaskTask;    // engine/loop/mask_workers.h
struct SinkGroup;  // engine/loop/chunk_delivery.h

struct Sequence {
  using Clock = std::chrono::steady_clock;

  RequestId id = 0;
  GenerateRequest request;  // input_ids moved into `tokens`; stop_token_ids sorted
  uint64_t seed = 0;
  TokenSequence tokens;
  int64_t prompt_len = 0;
  std::vector<int32_t> eos;  // end tokens inside the vocabulary; empty with ignore_eos

  // The logits of all prompt positions below this one have been requested, so that a second pass over the
  // prompt, after a retraction, requests none of them twice. It is prompt_len when no prompt
  // log-probabilities are wanted.
  int64_t next_scored = 0;
  int64_t cached_tokens = 0;  // at the first admission
  TokenChunk pending;         // what has not been delivered yet
  SpeculationCounts speculation;
  SinkGroup* sink = nullptr;
  bool admitted = false;
  bool finished = false;
  bool score_is_nan = false;       // one of its prompt log-probabilities is NaN
  bool deliverable = true;         // false: its sink failed
  std::shared_ptr<MaskTask> mask;  // has request.constraint once the engine thread owns the sequence
  bool awaits_mask = false;        // no plan has work for it until its mask is ready (Scheduler::hold)
  bool restarts_sampling = false;  // its slot's sampling state contains a sample that was not taken
  int64_t late_step = 0;           // the latest step whose sample was not taken because the mask was late
  int64_t last_step = 0;           // the latest step with a row of it, which the sequence outlives
  Clock::time_point submitted, started, first_token;

  int64_t num_generated() const { return static_cast<int64_t>(tokens.size()) - prompt_len; }
};

using SequenceTable = std::unordered_map<RequestId, std::unique_ptr<Sequence>>;

}  // namespace hadal
