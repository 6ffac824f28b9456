// Decides what every step computes: queue, admission, chunked prefill, decode, retraction and page ownership.
// It is a deterministic function of the calls made to it: it has no clock, threads or randomness. Only the
// engine thread uses it.
//
// The plan for step N + 1 may be made before the outcome of step N is known (the overlapped loop). A request
// whose item in step N samples is then assumed to have one more token, which is not yet known, and up to one
// more for each draft that step N verifies. Steps are executed in order.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/request_id.h"
#include "base/result.h"
#include "base/token_ids.h"
#include "cache/page_pool.h"
#include "cache/radix_cache.h"
#include "scheduler/batch_plan.h"

namespace hadal {

enum class SchedulePolicy {
  kFcfs,      // in order of arrival, fair between clients
  kLpm,       // longest cached prefix first
  kPriority,  // highest ScheduledRequest::priority first, then arrival
  kLof,       // longest output (max_new_tokens) first
};
// `name` is "fcfs", "lpm", "priority" or "lof"; anything else is kInvalidArgument, which names `field`.
Result<SchedulePolicy> parse_schedule_policy(std::string_view name, std::string_view field);

// PromptCosts says what a prompt token costs in addition to its row of the matrix products, which every token
// needs. The unit of cost is one such row.
struct PromptCosts {
  int64_t positions_per_row = 0;  // positions whose attention costs as much as one row; 0: attention is free
  int64_t rows_per_score = 0;     // a token whose logits are computed costs this much more, ≥ 0
  // The un-absorbed path computes the keys and values of all earlier positions of the prompt again in each
  // step; this is the cost for 1,024 such positions, ≥ 0. The absorbed path reads their records instead, and
  // its attention costs more for each position. Chunks that delay another client's generation use the cheaper
  // path. If absorbed_positions_per_row is 0, all chunks use the un-absorbed path.
  int64_t rows_per_1024_expanded = 0;
  int64_t absorbed_positions_per_row = 0;
};

// Passed to Scheduler::plan(), this limit cuts nothing.
inline constexpr int64_t kUnlimitedCost = std::numeric_limits<int64_t>::max();

struct SchedulerOptions {
  int64_t num_pages = 0;              // pages in the pool, ≥ 1
  int64_t max_running_requests = 64;  // ≥ 1
  // prompt (and recomputed) tokens per step; -1: only prompts that are scored are cut (max_scored_tokens)
  int64_t chunked_prefill_size = 2048;
  int64_t max_prefill_tokens = 16384;  // over all prompts of a step; one uncut prompt may exceed it
  SchedulePolicy policy = SchedulePolicy::kFcfs;
  bool low_priority_values_first = false;  // kPriority
  // Scales how much of the running requests' future output is reserved before a new request is admitted. 1
  // reserves the estimate. A larger value admits fewer requests, which causes fewer retractions; a smaller
  // one admits more.
  double conservativeness = 1.0;
  EvictionPolicy eviction = EvictionPolicy::kLru;
  bool enable_radix_cache = true;
  // If false, only prompts are kept for reuse, so that every prompt token has always been computed on the
  // same path.
  bool cache_generated_tokens = true;
  PromptCosts prompt_costs;
  // The largest number of prompt tokens of a step whose logits are computed to score the tokens after them,
  // ≥ 1. A scored prompt is cut at this limit even if chunked_prefill_size is -1.
  int64_t max_scored_tokens = std::numeric_limits<int64_t>::max();
  // The largest number of rows of a step for a decoding request (the width of a step). The step samples at
  // most as many tokens and verifies one draft less than that. 0: there is no speculation. With speculation,
  // the record of a token in the NextN layer depends on the token after it, so one token less of a cached
  // prefix is used.
  int64_t max_width = 0;
};

// ScheduledRequest is what the scheduler knows about a request.
struct ScheduledRequest {
  RequestId id = 0;
  TokenIds prompt;                // ≥ 1 token
  int64_t max_new_tokens = 0;     // ≥ 0; 0: the prompt is computed, nothing is sampled
  int64_t max_cached_tokens = 0;  // prompt tokens that may come from the cache, < prompt.size()
  bool scores_prompt = false;     // the logits of all prompt tokens from max_cached_tokens on are computed
  int32_t priority = 0;
  uint64_t client = 0;  // whose turn the request uses, because clients share the engine (fair_line.h)
  CacheSalt salt;       // prefixes are shared only between requests of equal salt
};

// ItemOutcome is the outcome of one sampling item of a step, in the order of the plan's sampling items.
struct ItemOutcome {
  RequestId request_id = 0;
  int32_t token = -1;
  // The request ends with its last token (stop, end of sequence, length, or an error of its own).
  bool finished = false;
  // The tokens after `token` for an item that verifies: one for each accepted draft, so at most num_tokens −
  // 1.
  std::vector<int32_t> further;
};

struct SchedulerStats {
  int64_t num_running = 0;
  int64_t num_queued = 0;
  int64_t num_used_tokens = 0;   // in pages in use by requests (cached, unused pages do not count)
  int64_t num_cached_pages = 0;  // evictable
  int64_t num_free_pages = 0;
  int64_t total_retractions = 0;
  int64_t total_evicted_tokens = 0;
  int64_t total_prompt_tokens = 0;  // prompt tokens of admitted requests, counted at the first admission only
  int64_t total_cached_tokens = 0;  // how many of those came from the cache, as told to the clients
};

class PlanRecorder;  // scheduler/plan_record.h

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // Queues a request. Its ceil((prompt + max_new_tokens) / 64) pages must not exceed num_pages, so that it
  // fits into the pool when it runs alone. The caller checks this; here a violation is a broken invariant.
  void add(ScheduledRequest request);

  // Removes the request in any state. Its pages are freed at once, and what it computed stays cached. The
  // outcomes of its items in a step in flight are ignored. Returns false for an unknown id.
  bool abort(RequestId id);

  // Plans no work for the request until release(); the engine calls this when the mask of its row is not
  // ready. The request keeps its place, but pages may still be taken from it. If that sends it back to the
  // queue, it may start again. Unknown ids and repeated calls do nothing.
  void hold(RequestId id);
  void release(RequestId id);
  // Announces that the request's sample in the step in flight will not be used: complete() ignores its
  // outcome, the request is held, and the first step after release() computes its last token again. For this
  // request, neither that step in flight nor the first step after release() verifies a draft. Returns false,
  // and does nothing, unless exactly one step in flight samples for the request.
  bool defer(RequestId id);

  // Returns the next step's work. Its `retracted` requests are back in the queue, and their slots are free.
  // The plan is empty when there is no work, or none until the outcome of a step in flight is known. A plan
  // that is not empty must be passed to complete() or fail(), in order; at most one other step may be in
  // flight.
  //
  // `max_cost` limits the cost of those prompt tokens of the step that delay a generating request of another
  // client, in rows (PromptCosts, ≥ 0). Together such prompts get at least PromptBudget::kLeastCost rows, and
  // the first of them gets at least one token. Prompts that are never cut (chunked_prefill_size -1) are not
  // cut by this limit either.
  //
  // `width` in [1, max(1, max_width)] is how many rows the step may have for a request that speculates.
  BatchPlan plan(int64_t max_cost = kUnlimitedCost, int64_t width = 1);

  // Reports the outcome of a step: one entry for each sampling item, including those of requests that have
  // ended. A request that was retracted after the step was planned also gets its token. A request ends here
  // with `finished`, with its max_new_tokens-th token, or with an item whose ends_request is set.
  void complete(const BatchPlan& plan, std::span<const ItemOutcome> outcomes);

  // Removes the requests with items in this step, which failed; nothing that it computed is cached. Returns
  // their ids.
  std::vector<RequestId> fail(const BatchPlan& plan);

  bool idle() const;  // nothing is queued, running or in flight
  // Returns the tokens of a request known so far: prompt, then generated. The request must be queued or
  // running, because complete() forgets those that end.
  TokenSequence tokens(RequestId id) const;
  // Returns how many prompt tokens came from the cache at the latest admission, limited to what the client
  // may be told (PrefixMatch::told_tokens); 0 while the request is queued for the first time.
  int64_t cached_tokens(RequestId id) const;
  bool is_running(RequestId id) const;

  // Removes all cached prefixes that no running request uses.
  void flush_cache();
  SchedulerStats stats() const;
  const SchedulerOptions& options() const;

  // Forgets everything: requests, cached prefixes, steps in flight and the recorder. Step numbers go on. If
  // it throws (std::bad_alloc), nothing has changed.
  void reset();

  // Writes every call from now on to `recorder` (null: none), which must live until the next record_to() or
  // the scheduler's end. A record can be replayed only if this was called before the first add().
  void record_to(PlanRecorder* recorder);

  // Proves that pool, tree, tables and queues agree; throws otherwise. It reads all of them.
  void check_integrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal
