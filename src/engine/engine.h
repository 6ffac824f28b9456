// The engine: token ids in, token ids out. It owns scheduling, cache, model execution and sampling, and sees
// no text.
//
// submit, stream and abort may be called by any thread, but in this synchronous engine the work of a step is
// done by whichever thread is inside stream() or step(); one thread at a time may be there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/sampling_params.h"
#include "kernels/params/kv_layout.h"
#include "model/model.h"

namespace hadal {

using RequestId = uint64_t;

// Restricts the next token (a grammar). Called by the engine thread only, once per generated token.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets bit t of `allowed` ([ceil(vocab/32)] words, all zero on entry) for every token that may come next.
  virtual void fill_mask(std::span<uint32_t> allowed) = 0;
  // Tells the constraint which token was chosen. False: the token was not allowed (a broken invariant).
  virtual bool accept_token(int32_t token_id) = 0;
};

// Ends a request on something other than a token id (a stop string). Called by the engine thread, once per
// token.
class StopCondition {
 public:
  virtual ~StopCondition() = default;
  // After token_id the request is over when this returns a description of what matched, e.g. the stop string.
  virtual std::optional<std::string> on_token(int32_t token_id) = 0;
};

struct LogprobOptions {
  bool enabled = false;
  int64_t start = -1;   // first prompt position whose logprob is wanted; -1: generated tokens only
  int64_t top_num = 0;  // alternatives a position, [0, 128]
};

struct GenerateRequest {
  std::vector<int32_t> input_ids;
  SamplingParams sampling;
  LogprobOptions logprobs;
  std::unique_ptr<StopCondition> stop;          // may be null
  std::unique_ptr<TokenConstraint> constraint;  // may be null
};

enum class FinishReason { kNone, kStopToken, kStopCondition, kLength, kAbort };

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0F;  // log-softmax of the unmodified logits (before penalties, temperature)
  std::vector<std::pair<int32_t, float>> top;  // best first, LogprobOptions::top_num of them
};

struct RequestTimings {  // seconds
  double queue_s = 0.0;
  double prefill_s = 0.0;  // start of work on the prompt until the first token
  double decode_s = 0.0;   // first token until the last
};

// What stream() hands out: the tokens since the previous chunk.
struct TokenChunk {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;         // of token_ids, when asked for
  std::vector<TokenLogprob> prompt_logprobs;  // with the first chunk, when asked for: positions start+1 … end
  FinishReason finish_reason = FinishReason::kNone;
  int32_t matched_token = -1;  // kStopToken: the token (also the last of token_ids)
  std::string matched;         // kStopCondition: what it said; kAbort: why
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // so far
  RequestTimings timings;
};

struct EngineOptions {
  int64_t max_total_tokens = 0;         // KV capacity; 0: default_max_total_tokens
  int64_t max_running_requests = 64;    // ≥ 1
  int64_t chunked_prefill_size = 2048;  // prompt tokens a step, ≥ 1
  int64_t context_length = 0;           // 0: the model's max_position_embeddings
  KvLayout kv_layout;
  KernelSet kernels = KernelSet::kOptimised;
  uint64_t random_seed = 42;  // seeds requests that bring none
};

// The KV capacity chosen when none is asked for: a quarter of the free memory, at most two full contexts,
// whole pages.
int64_t default_max_total_tokens(const ModelConfig& config, KvLayout layout, int64_t context_length);

class Engine {
 public:
  // `model` and `pool` must outlive the engine. Errors: kResourceExhausted when the KV pool does not fit.
  static Result<std::unique_ptr<Engine>> create(Model& model, ThreadPool& pool, const EngineOptions& options);
  virtual ~Engine() = default;

  // Queues a request. Errors (kInvalidArgument): empty input, ids out of range, prompt not shorter than the
  // context, more pages than the pool has, bad sampling values.
  virtual Result<RequestId> submit(GenerateRequest request) = 0;

  // The next chunk of a request: at least one token, or the finish reason. nullopt once the final chunk has
  // been handed out, or for an unknown id. Runs steps on the calling thread until there is something to say.
  virtual std::optional<TokenChunk> stream(RequestId id) = 0;

  // Like stream, but never runs a step: nullopt also while there is nothing new. For callers that look at
  // something else between steps.
  virtual std::optional<TokenChunk> poll(RequestId id) = 0;

  // Ends a request; its final chunk says kAbort. Unknown ids are ignored.
  virtual void abort(RequestId id) = 0;

  // Runs one step for everything that is queued or running. False when there was nothing to do.
  virtual bool step() = 0;

  virtual int64_t context_length() const = 0;
  virtual int64_t max_total_tokens() const = 0;
};

}  // namespace hadal
