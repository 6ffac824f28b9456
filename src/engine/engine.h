// The engine turns token ids into token ids. It owns scheduling, cache, model execution and sampling, and
// never sees text.
//
// Every member function may be called by any thread. One engine thread, started by create, owns all scheduler
// and cache state; one worker thread runs the steps (engine/step_executor.h). Only the engine thread calls
// sinks and stop conditions, and the mask workers call constraints. See docs/engine-contract.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/request_id.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "base/token_ids.h"
#include "engine/queue_places.h"
#include "engine/sampling_params.h"
#include "kernels/params/draft_tree.h"
#include "kernels/params/kv_layout.h"
#include "model/model.h"
#include "scheduler/scheduler.h"

namespace hadal {

// A callback throws this when its own request is at fault: the request ends with AbortReason::kRequest.
class BadRequest : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// TokenConstraint restricts the next token (a grammar). The mask workers (engine/loop/mask_workers.h) call it
// once per generated token, one worker at a time, while the step that needs the mask is already running. If
// the mask of a row is late, later steps leave that row out until its mask is ready, so other rows never wait
// for it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets bit t of `allowed` ([ceil(vocab/32)] words, all zero on entry) for every token that may come next.
  virtual void fill_mask(std::span<uint32_t> allowed) = 0;
  // Tells the constraint which token was chosen. False means that the token was not allowed (a broken
  // invariant).
  virtual bool accept_token(int32_t token_id) = 0;
  // Undoes the last `num_tokens` accepted tokens, which were drafts of speculation.
  virtual void rollback(int64_t num_tokens) = 0;
};

// StopCondition ends a request on something other than a token id (a stop string). The engine thread calls it
// once per token.
class StopCondition {
 public:
  virtual ~StopCondition() = default;
  // Returns whether the request ends after token_id.
  virtual bool on_token(int32_t token_id) = 0;
};

struct LogprobOptions {
  bool enabled = false;
  int64_t start = -1;   // first prompt position whose logprob is wanted; -1: generated tokens only
  int64_t top_num = 0;  // alternatives per position, [0, 128]
};

struct TokenChunk;

// ChunkSink receives the chunks of requests. The engine thread calls it once per step and sink, with all
// chunks of the sink's requests (a request that fails while its mask is made has its chunk in a separate
// call). The call must return quickly and must never call the engine. Each request's last chunk, and only
// that one, has a finish reason; no chunk follows it.
class ChunkSink {
 public:
  virtual ~ChunkSink() = default;
  // Moves the chunks that it keeps out of `chunks`. If it throws std::bad_alloc, it is called again with the
  // vector as it has left it, so it must not have lost any chunk.
  virtual void on_chunks(std::vector<TokenChunk>& chunks) = 0;
};

struct GenerateRequest {
  TokenIds input_ids;
  SamplingParams sampling;
  LogprobOptions logprobs;
  std::unique_ptr<StopCondition> stop;          // may be null
  std::unique_ptr<TokenConstraint> constraint;  // may be null
  int32_t priority = 0;                         // see SchedulePolicy::kPriority
  // Requests of one client share its turns and its part of the queue; at most 2^63 - 1. 0: the client is
  // unknown.
  uint64_t client = 0;
  CacheSalt cache_salt;  // requests of different salts share no prefixes in the cache
  // A chunk is delivered when it has this many tokens (≥ 1) or a finish reason. Use a large value for answers
  // in one piece.
  int64_t stream_interval = 1;
  std::shared_ptr<ChunkSink> sink;  // null: the chunks are kept for stream() or poll()
};

enum class FinishReason { kNone, kStopToken, kStopCondition, kLength, kAbort };

// AbortReason says what caused a kAbort.
enum class AbortReason {
  kNone,      // not aborted
  kClient,    // abort, abort_all
  kShutdown,  // drain timed out, or the engine was destroyed
  kFault,     // the request could not be completed: a step, a callback or the engine itself failed
  kRequest,   // the request itself is at fault, for example because its constraint is too expensive
  kMemory,    // there is no memory for it
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0F;  // log-softmax of the unmodified logits (before penalties, temperature)
  std::vector<std::pair<int32_t, float>> top;  // best first, LogprobOptions::top_num of them
};

struct RequestTimings {  // seconds; complete in the last chunk
  double queue_s = 0.0;
  double prefill_s = 0.0;  // from the start of work on the prompt to the first token
  double decode_s = 0.0;   // from the first token to the last
};

// SpeculationCounts count what speculation has done, for one request or for all.
struct SpeculationCounts {
  int64_t verifications = 0;  // steps of a request that could verify drafts
  int64_t tokens = 0;         // tokens that these steps have sampled
  int64_t drafts = 0;         // drafts that these steps have verified
  int64_t accepted = 0;

  SpeculationCounts& operator+=(const SpeculationCounts& other) {
    verifications += other.verifications;
    tokens += other.tokens;
    drafts += other.drafts;
    accepted += other.accepted;
    return *this;
  }
  SpeculationCounts operator-(const SpeculationCounts& other) const {
    return {.verifications = verifications - other.verifications,
            .tokens = tokens - other.tokens,
            .drafts = drafts - other.drafts,
            .accepted = accepted - other.accepted};
  }
  // Returns the tokens of a verification, at least 1, or 0 if there was none.
  double accept_length() const {
    return verifications == 0 ? 0.0 : static_cast<double>(tokens) / static_cast<double>(verifications);
  }
  // Returns the rows of a verification, or 0 if there was none.
  double mean_width() const {
    return verifications == 0 ? 0.0 : 1.0 + static_cast<double>(drafts) / static_cast<double>(verifications);
  }
  // Returns the share of drafts that were accepted, or 0 if there was none.
  double accept_rate() const {
    return drafts == 0 ? 0.0 : static_cast<double>(accepted) / static_cast<double>(drafts);
  }
};

// TokenChunk holds the tokens of one request since its previous chunk.
struct TokenChunk {
  RequestId request_id = 0;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;         // for token_ids, if requested
  std::vector<TokenLogprob> prompt_logprobs;  // in the first chunk, if requested: positions start+1 … end
  FinishReason finish_reason = FinishReason::kNone;
  AbortReason abort_reason = AbortReason::kNone;  // kAbort: what caused it
  int32_t matched_token = -1;                     // kStopToken: the token (also the last of token_ids)
  std::string abort_text;                         // kAbort: the reason in words
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // so far
  SpeculationCounts speculation;  // so far
  // Prompt tokens that came from the prefix cache at the first admission, limited to what the client may be
  // told (PrefixMatch::told_tokens).
  int64_t cached_tokens = 0;
  RequestTimings timings;
};

// DeviceOptions say how a GPU is used; the CPU ignores them.
struct DeviceOptions {
  double mem_fraction_static = 0.88;  // (0, 1]: share of the GPU's memory for weights, scratch and KV cache
  bool use_graphs = true;             // launch decode steps as CUDA graphs
  bool pad_graphs = true;             // run batches between two graphs' sizes at the larger one
  int64_t graph_max_bs = 0;           // largest graphed batch; 0: max_running_requests
  std::vector<int64_t> graph_bs;      // batch sizes with graphs; empty: a series up to graph_max_bs
};

// In EngineOptions::max_queued_requests this stands for default_max_queued_requests(max_running_requests).
inline constexpr int64_t kDefaultMaxQueued = -1;

struct EngineOptions {
  int64_t max_total_tokens = 0;       // KV capacity; 0: the backend chooses
  int64_t max_running_requests = 64;  // requests that run together; 0: the backend chooses
  // The limit on waiting requests; further ones are refused with kResourceExhausted. 0 means no limit, and
  // kDefaultMaxQueued means a limit that suits a server.
  int64_t max_queued_requests = 0;
  // prompt tokens per step, ≥ 1, or -1: only prompts that are scored are cut (kMaxScoredRows)
  int64_t chunked_prefill_size = 2048;
  int64_t max_prefill_tokens = 16384;  // prompt tokens of all requests per step, ≥ 1
  // The limit on the time in ms that prompt tokens add to a step while a request of another client generates
  // (engine/loop/step_pace.h); 0: no limit.
  int64_t max_prefill_ms = 0;
  SchedulePolicy schedule_policy = SchedulePolicy::kFcfs;
  bool low_priority_values_first = false;
  double schedule_conservativeness = 1.0;  // > 0
  EvictionPolicy eviction_policy = EvictionPolicy::kLru;
  bool enable_radix_cache = true;
  bool cache_generated_tokens = true;  // see SchedulerOptions
  bool overlap_schedule = true;        // plan step N + 1 while N runs; outputs are the same either way
  int64_t context_length = 0;          // 0: the model's max_position_embeddings
  KvLayout kv_layout;
  KernelSet kernels = KernelSet::kOptimised;  // for create(model, pool, options)
  DeviceOptions device;
  uint64_t random_seed = 42;  // seeds requests that have no seed of their own
  int64_t decode_log_interval =
      40;                    // decode steps between two "Decode batch" lines; 0: no batch lines at all
  std::string record_plans;  // file in which every scheduler call and plan is recorded; empty: none
  // How long a running step may wait for the masks of its rows, as a share of a decode step's duration. Rows
  // whose masks are late are computed again in a later step. With 0 the step never waits, so most rows are
  // late; with infinity it waits until all masks are ready. Tests use both.
  double mask_wait_share = 0.5;
  double watchdog_timeout_s = 0.0;  // a step that takes longer is reported through on_stall; 0: no watchdog
  // The watchdog thread calls this once per stall, with one line: the phase, its duration and the requests.
  std::function<void(const std::string&)> on_stall;
  // The engine thread calls this once, with the reason, when a broken invariant has ended all work for good.
  std::function<void(const std::string&)> on_failure;
  // Rows that a step may have for a request: its newest token and the drafts that the step verifies
  // (docs/speculation.md). At most kMaxSpeculationWidth. 0: no speculation.
  int64_t speculation_width = 0;
  // Limits the depth of drafts and how many of them have the same parent. Models with an indexer support only
  // topk 1.
  DraftShape draft_shape;
  // If true, steps are narrower where drafts are not worth their cost
  // (engine/speculation/speculation_policy.h). If false, every step has the width above.
  bool speculation_adapts = false;
  // Simulates how many drafts are accepted, for benchmarks. Entry d is the chance that the draft at depth d
  // is accepted, given that those before it were; deeper drafts are never accepted. The tokens then have no
  // meaning. Empty: drafts are accepted if they are right.
  std::vector<double> simulated_acceptance;
};

inline constexpr int64_t kMaxSpeculationWidth = kMaxDraftNodes;

// Checks EngineOptions::simulated_acceptance: each chance must be in [0, 1], and there must be no more of
// them than a step has drafts of different depths. The error (kInvalidArgument) names `field`.
Result<void> check_simulated_acceptance(std::span<const double> chances, int64_t speculation_width,
                                        const DraftShape& shape, std::string_view field);

// Checks that the model supports draft trees, if topk is above 1. The error is kInvalidArgument.
Result<void> check_draft_trees(const DraftShape& shape, const ModelConfig& config);

// Returns `num_tokens` rounded up to whole pages: the KV capacity of an engine with this max_total_tokens.
int64_t in_whole_pages(int64_t num_tokens);

// Returns the default KV capacity on the CPU, in whole pages: a quarter of the memory that is available once
// the weights are loaded, but at most two full contexts and at least one page. If available_bytes is 0 or
// less (not known, or none), the result is one page. `with_nextn` says that the cache has a layer for NextN.
// It is a pure function.
int64_t default_max_total_tokens(const ModelConfig& config, KvLayout layout, int64_t context_length,
                                 int64_t available_bytes, bool with_nextn = false);

// Returns the default limit of waiting requests: 16 for each request that can run, at least 4096.
int64_t default_max_queued_requests(int64_t max_running_requests);

// EngineStats is a snapshot for metrics and /get_load. Its counters count from the start of the engine.
struct EngineStats {
  SchedulerStats scheduler;
  int64_t max_total_tokens = 0;
  int64_t num_steps = 0;
  int64_t generation_tokens = 0;
  int64_t num_requests = 0;  // submitted and accepted
  int64_t num_aborted = 0;
  double gen_throughput = 0.0;  // generated tokens per second over the last log interval or idle gap
  double utilization = 0.0;     // share of the last second or so in which a step was running, [0, 1]
  SpeculationCounts speculation;
  bool acceptance_is_simulated = false;
  bool decode_graphed = false;  // whether the last step without prompt tokens ran as a CUDA graph
};

class StepExecutor;  // engine/step_executor.h
class Backend;       // engine/backend.h

class Engine {
 public:
  // `backend` must outlive the engine, and nothing else may use it while the engine lives. The errors are
  // kInvalidArgument (an option), kResourceExhausted when the KV pool does not fit, and file errors of
  // record_plans.
  static Result<std::unique_ptr<Engine>> create(Backend& backend, const EngineOptions& options);

  // Creates an engine on the CPU. `model` and `pool` must outlive the engine, as above.
  static Result<std::unique_ptr<Engine>> create(Model& model, ThreadPool& pool, const EngineOptions& options);

  // Creates an engine over any executor (tests, benches): `config` provides vocabulary, context and end
  // tokens; options.max_total_tokens and context_length must be set.
  static Result<std::unique_ptr<Engine>> create(std::unique_ptr<StepExecutor> executor,
                                                const ModelConfig& config, const EngineOptions& options);

  // Aborts what is left and joins the threads.
  virtual ~Engine() = default;

  // Reserves places in the queue for `count` requests (≥ 1) of `client` (GenerateRequest::client), all of
  // them or none, so that a batch is refused before any of its requests has started. The errors are
  // kInvalidArgument (more than the client may ever have), kResourceExhausted (not enough places are free
  // now), and kCancelled (shutting down).
  virtual Result<QueuePlaces> reserve(int64_t count, uint64_t client) = 0;

  // Queues a request in one of `places`, which must belong to its client and have a place left. The errors
  // are kInvalidArgument (empty input, ids out of range, prompt not shorter than the context, bad sampling
  // values), kResourceExhausted (more pages than the pool has), and kCancelled (shutting down). After an
  // error the place is free to be used again.
  virtual Result<RequestId> submit(GenerateRequest request, QueuePlaces& places) = 0;
  // Reserves a place and queues a request in it. The errors are those of both.
  virtual Result<RequestId> submit(GenerateRequest request) = 0;

  // Waits for the next chunk of a request without a sink. Returns nullopt once the final chunk has been
  // returned, or for an unknown id.
  virtual std::optional<TokenChunk> stream(RequestId id) = 0;
  // Does the same, but waits at most `timeout`; returns nullopt also when there is nothing new.
  virtual std::optional<TokenChunk> poll(RequestId id, std::chrono::milliseconds timeout) = 0;

  // Ends a request within one step; the finish reason of its final chunk is kAbort. Unknown ids are ignored.
  virtual void abort(RequestId id) = 0;
  virtual void abort_all() = 0;

  // Removes cached prefixes. It returns kResourceExhausted while requests are queued or running (as SGLang
  // does). It throws when it finds a broken invariant; the engine has then failed.
  virtual Result<void> flush_cache() = 0;

  // Starts no step until resume() is called. Requests are still accepted and queued.
  virtual void pause() = 0;
  virtual void resume() = 0;
  virtual bool paused() const = 0;

  // Makes submit return kCancelled and pause() do nothing from now on; a paused engine resumes. The call
  // waits until every request has ended or `timeout` is over, then aborts the remaining requests and returns
  // their number. It does not return while a step hangs.
  virtual int64_t drain(std::chrono::milliseconds timeout) = 0;

  virtual EngineStats stats() const = 0;

  // Collects a Chrome trace (about:tracing, Perfetto) of the next `num_steps` steps (0: until stop_profile):
  // plan, stage, run and collect of each step, and a span for every request.
  virtual Result<void> start_profile(int64_t num_steps) = 0;
  // Returns the trace as JSON text. The error is kInvalidArgument when none was started.
  virtual Result<std::string> stop_profile() = 0;

  // Proves that scheduler, pool and tree agree, on the engine thread between two steps. It throws otherwise.
  virtual void check_integrity() = 0;

  virtual int64_t context_length() const = 0;
  virtual int64_t max_total_tokens() const = 0;
  virtual int64_t max_running_requests() const = 0;
  virtual int64_t max_queued_requests() const = 0;  // 0: no limit
};

}  // namespace hadal
