// Decides what every step computes: queue, admission, chunked prefill, decode, retraction and page ownership.
// It is a deterministic function of the calls made to it: it has no clock, threads or randomness. Only the
// engine thread uses it.
//
// The plan for step N + 1 may be made before the outcome of step N is known (the overlapped loop): a request
// whose item samples is then assumed to have one more token, not yet known, and up to one more for each draft
// that step N verifies. Steps are executed in order.
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

// PromptCosts say what a prompt token costs beyond the row of the matrix products that each token needs. The
// unit is that row.
struct PromptCosts {
  int64_t positions_per_row = 0;  // positions whose attention costs as much as one row; 0: attention is free
  int64_t rows_per_score = 0;     // a token whose logits are computed costs this much more, ≥ 0
  // The un-absorbed path computes the keys and values of all earlier positions of the prompt again in each
  // step: this is the cost of 1,024 positions, ≥ 0. The absorbed path reads their records instead, and its
  // attention costs more for each position. Chunks that delay another client's generation take the cheaper
  // path; with 0 all take the un-absorbed one.
  int64_t rows_per_1024_expanded = 0;
  int64_t absorbed_positions_per_row = 0;
};

// This is the limit of Scheduler::plan() that cuts nothing.
inline constexpr int64_t kUnlimitedCost = std::numeric_limits<int64_t>::max();

struct SchedulerOptions {
  int64_t num_pages = 0;                // pages in the pool, ≥ 1
  int64_t max_running_requests = 64;    // ≥ 1
  int64_t chunked_prefill_size = 2048;  // prompt (and recomputed) tokens per step; -1: prompts are not cut
  int64_t max_prefill_tokens = 16384;   // over all prompts of a step; one uncut prompt may exceed it
  SchedulePolicy policy = SchedulePolicy::kFcfs;
  bool low_priority_values_first = false;  // kPriority
  // Says how much of the running requests' future output is reserved before a new one is admitted: 1 is the
  // estimate; larger values admit fewer requests (fewer retractions), smaller values more.
  double conservativeness = 1.0;
  EvictionPolicy eviction = EvictionPolicy::kLru;
  bool enable_radix_cache = true;
  // If false, only prompts are kept for reuse, so that every prompt token has always been computed on the
  // same path.
  bool cache_generated_tokens = true;
  PromptCosts prompt_costs;
  // Most tokens that a step may sample for a decoding request (the width of a step): it verifies the drafts
  // of all but the first. 0: there is no speculation. With it, the record of a token in the NextN layer
  // depends on the token after it, so one token less of a cached prefix is used.
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
  uint64_t client = 0;  // whose turn it uses: clients share the engine (fair_line.h)
  CacheSalt salt;       // prefixes of other salts are not used, and its own are not shown to them
};

// ItemOutcome is the outcome of one sampling item of a step, in the order of the plan's sampling items.
struct ItemOutcome {
  RequestId request_id = 0;
  int32_t token = -1;
  // The request ends with its last token (stop, end of sequence, length, or an error of its own).
  bool finished = false;
  // The tokens after `token`, at most num_tokens − 1 of an item that verifies: as many as drafts were
  // accepted.
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

  // Queues a request. It must fit into the pool when it runs alone: ceil((prompt + max_new_tokens) / 64) ≤
  // num_pages (checked by the caller; a broken invariant here).
  void add(ScheduledRequest request);

  // Removes the request in any state; its pages are freed at once, and what it computed stays cached. Its
  // items in a step in flight are ignored later. Returns false for an unknown id.
  bool abort(RequestId id);

  // Keeps the request where it is, without work in later plans, until release(): the engine holds a row whose
  // mask is not ready. Pages may still be taken from it; if that puts it back in the queue, it may start
  // again. Unknown ids and repeated calls do nothing.
  void hold(RequestId id);
  void release(RequestId id);
  // Announces that the request's sample in the step in flight will not be taken: complete() ignores its
  // outcome, the request is held, and the first step after release() computes its last token again. Returns
  // false, and does nothing, unless exactly one step in flight samples for the request. That step verifies no
  // draft for it then, nor does the first one after release().
  bool defer(RequestId id);

  // Returns the next step's work. Its `retracted` requests are back in the queue, their slots free. The plan
  // is empty when there is no work, or none before the outcome of a step in flight is known. When the plan is
  // not empty, complete() or fail() must follow for it, in order; at most one other step may be in flight.
  //
  // `max_cost` limits the step's prompt tokens, in rows (PromptCosts, ≥ 0), as far as they delay a generating
  // request of another client. Together such prompts get at least PromptBudget::kLeastCost, and the first of
  // them at least one token. Prompts that are never cut (chunked_prefill_size -1) are not cut by this limit
  // either.
  //
  // `width` in [1, max(1, max_width)] is how many tokens the step may sample for a request that speculates.
  BatchPlan plan(int64_t max_cost = kUnlimitedCost, int64_t width = 1);

  // Reports the outcome of a step: one entry for each sampling item, including those of requests that are
  // gone. A request that was retracted after the step was planned gets its token too. A request ends here
  // with `finished`, with their max_new_tokens-th token, or with an item whose ends_request is set.
  void complete(const BatchPlan& plan, std::span<const ItemOutcome> outcomes);

  // Removes the requests with items in this step, which failed; nothing that it computed is cached. Returns
  // their ids.
  std::vector<RequestId> fail(const BatchPlan& plan);

  bool idle() const;  // nothing is queued, running or in flight
  // Returns the tokens of a request known so far: prompt, then generated. The request must be queued or
  // running, because complete() forgets those that end.
  TokenSequence tokens(RequestId id) const;
  // Returns the prompt tokens that came from the cache at the latest admission, as many of them as the client
  // may be told (PrefixMatch::told_tokens); 0 while queued for the first time.
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
