// One prompt being generated for a client: an engine request, its text, its pauses. Everything an endpoint
// needs between a validated request and its own JSON. Belongs to one I/O thread; all callbacks run there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "server/http.h"
#include "server/server_context.h"

namespace hadal {
class CompiledGrammar;
class StopPatterns;
}  // namespace hadal

namespace hadal::server {

struct GenerationRequest {
  // What the client knows the request by: found by /abort_request; two at a time must not share one. Empty:
  // not registered.
  std::string rid;
  std::vector<int32_t> input_ids;
  SamplingParams sampling;
  std::shared_ptr<const StopPatterns> stops;  // searched in the generated text; null: none
  bool skip_special_tokens = true;
  bool no_stop_trim = false;  // the stop string or token stays in the text
  LogprobOptions logprobs;
  std::shared_ptr<const CompiledGrammar> grammar;  // may be null
  std::optional<int32_t> grammar_after_token;      // the grammar begins after this token (</think>)
  int32_t priority = 0;
  bool stream = false;      // false: only the last delta is delivered, with everything in it
  bool log_metrics = true;  // false: a health check's
};

// What is new since the last delta. Text never ends inside a UTF-8 character or inside what may become a stop
// string, and nothing from a stop string on is in it.
struct GenerationDelta {
  std::string text;
  std::vector<int32_t> token_ids;                    // a matched stop or end token included
  std::vector<TokenLogprob> logprobs;                // of token_ids
  std::vector<TokenLogprob> prompt_logprobs;         // first delta only
  FinishReason finish_reason = FinishReason::kNone;  // set in the last delta, and only there
  AbortReason abort_reason = AbortReason::kNone;     // of kAbort; `matched` says more
  bool is_bad_request = false;                       // of kAbort: the request asked for what cannot be done
  int32_t matched_token = -1;
  std::string matched;  // the stop string, or why it was aborted
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // so far
  int64_t cached_tokens = 0;
  RequestTimings timings;  // last delta
  double e2e_s = 0.0;      // since start()
};

class Generation {
 public:
  using OnDelta = std::function<void(GenerationDelta delta)>;

  // Submits to the engine. Errors are the engine's (see Engine::submit), stops without a tokenizer, a
  // rid in use; nothing was started then. `on_delta` is
  // destroyed with its last call or with cancel().
  static Result<std::shared_ptr<Generation>> start(ServerContext& context, IoThread& io,
                                                   GenerationRequest request, OnDelta on_delta);
  virtual ~Generation() = default;

  virtual RequestId id() const = 0;
  // While paused, deltas are merged into one and held (a client that does not read); memory stays bounded by
  // max_new_tokens.
  virtual void pause() = 0;
  virtual void resume() = 0;
  // The client has gone: aborts in the engine, delivers nothing more.
  virtual void cancel() = 0;
};

}  // namespace hadal::server
