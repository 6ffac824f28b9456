// A Generation is one prompt that is generated for a client: an engine request, its text and its pauses. It
// does everything between a validated request and an endpoint's own JSON. It belongs to one I/O thread, on
// which all callbacks run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "server/http/http.h"
#include "server/server_context.h"

namespace hadal {
class CompiledGrammar;
class StopPatterns;
}  // namespace hadal

namespace hadal::server {

struct GenerationRequest {
  // This is the client's name for the request, by which /abort_request finds it. Two requests of one client
  // must not have the same name at the same time (request_registry.h). An empty name is not registered.
  std::string rid;
  std::string key_name;  // set_origin(): the name of the client's key, if it has one
  TokenIds input_ids;    // shared by the choices of a prompt
  SamplingParams sampling;
  std::shared_ptr<const StopPatterns> stops;  // searched for in the generated text; null: none
  bool skip_special_tokens = true;
  bool no_stop_trim = false;  // the stop string or token stays in the text
  LogprobOptions logprobs;
  std::shared_ptr<const CompiledGrammar> grammar;  // may be null
  std::optional<int32_t> grammar_after_token;      // the grammar begins after this token (</think>)
  int32_t priority = 0;
  CacheSalt cache_salt;                   // the client's field; set_origin() adds the client's key
  uint64_t client = 0;                    // set_origin()
  std::shared_ptr<RequestMemory> memory;  // set_origin(): the client's ledger; null: the context's
  std::shared_ptr<RequestTally> tally;    // set_origin(); null: nothing is counted
  bool further_choice = false;            // an earlier choice has the same prompt, which counts once
  bool stream = false;  // false: only the last delta is delivered, and it contains everything
  // True if the delivered data is kept until the request ends: the request is not a stream, or is one in
  // which every event, or the last event, repeats everything.
  bool keeps_answer = true;
  bool cumulative = false;     // a stream whose events repeat everything: chunks that wait become one event
  bool long_logprobs = false;  // log-probabilities become objects with texts and bytes (chat)
  bool log_metrics = true;     // false for a health check's request
};

// GenerationDelta is what is new since the last delta. Its text never ends inside a UTF-8 character or inside
// a possible stop string, and contains nothing from a stop string on.
//
// A delta with many log-probabilities is delivered in pieces (server/generation/delta_pieces.h), each in a
// task of its own. Pieces with `has_more` contain only log-probabilities and are not events by themselves;
// everything else is in the last piece.
struct GenerationDelta {
  std::string text;
  std::vector<int32_t> token_ids;                    // includes a matched stop or end token
  std::vector<TokenLogprob> logprobs;                // for token_ids
  std::vector<TokenLogprob> prompt_logprobs;         // in the first delta only
  FinishReason finish_reason = FinishReason::kNone;  // set in the last delta only
  AbortReason abort_reason = AbortReason::kNone;     // for kAbort; `matched` has the details
  int32_t matched_token = -1;
  std::string matched;  // the stop string, or the reason of an abort
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // so far
  int64_t cached_tokens = 0;
  SpeculationCounts speculation;  // so far
  RequestTimings timings;         // set in the last delta
  double e2e_s = 0.0;             // since start()
  bool has_more = false;          // this is a piece, but not the last one
};

// Returns the ledger of a request's client, or the server's if the transport has none for it.
std::shared_ptr<RequestMemory> ledger_for(const ServerContext& context, const HttpRequest& from);
// Returns the number of a client (HttpRequest::client) in the engine, which is never 0.
uint64_t engine_client(const HttpRequest& from);

// Sets on whose behalf the request is made: its tally, its engine_client, the name of that client's key, and
// with --cache-isolation key the key's salt.
void set_origin(GenerationRequest& request, const ServerContext& context, const HttpRequest& from);

class Generation {
 public:
  using OnDelta = std::function<void(GenerationDelta delta)>;

  // Submits the request to the engine in one of `places`, which belong to request.client. The errors are
  // those of Engine::submit, stops without a tokenizer, and a rid that is in use. After an error nothing has
  // been started. `on_delta` is destroyed with its last call or by cancel().
  static Result<std::shared_ptr<Generation>> start(ServerContext& context, IoThread& io, QueuePlaces& places,
                                                   GenerationRequest request, OnDelta on_delta);
  // Reserves a place and starts in it. The errors are also those of Engine::reserve.
  static Result<std::shared_ptr<Generation>> start(ServerContext& context, IoThread& io,
                                                   GenerationRequest request, OnDelta on_delta);
  virtual ~Generation() = default;

  virtual RequestId id() const = 0;
  // While paused (because a client does not read), new deltas are merged into one, which is held. A delta
  // that is being delivered in pieces waits. Memory stays bounded by max_new_tokens.
  virtual void pause() = 0;
  virtual void resume() = 0;
  // The client has gone: aborts the request in the engine and delivers nothing more.
  virtual void cancel() = 0;
};

}  // namespace hadal::server
