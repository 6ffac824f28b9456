// One request inside the engine, from submit to its final chunk. Owned and changed by the engine only.
#pragma once

#include <chrono>
#include <vector>

#include "cache/page_pool.h"
#include "engine/engine.h"
#include "engine/sampler.h"

namespace hadal {

struct Sequence {
  using Clock = std::chrono::steady_clock;

  RequestId id = 0;
  GenerateRequest request;
  uint64_t seed = 0;
  TokenHistory history;
  std::vector<int32_t> tokens;  // prompt, then what was generated
  int64_t prompt_len = 0;

  // Tokens [0, num_computed) have their records in the cache; pages cover at least those, in order of
  // position.
  int64_t num_computed = 0;
  std::vector<PageId> pages;

  TokenChunk pending;  // what stream() has not handed out yet
  bool finished = false;
  Clock::time_point submitted, started, first_token;

  Sequence(RequestId sequence_id, GenerateRequest r, uint64_t sequence_seed)
      : id(sequence_id),
        request(std::move(r)),
        seed(sequence_seed),
        history(request.input_ids),
        tokens(request.input_ids),
        prompt_len(static_cast<int64_t>(request.input_ids.size())),
        submitted(Clock::now()) {}

  int64_t num_generated() const { return static_cast<int64_t>(tokens.size()) - prompt_len; }
  bool in_prefill() const { return num_computed < prompt_len; }
  int64_t max_len() const { return prompt_len + request.sampling.max_new_tokens; }
};

}  // namespace hadal
