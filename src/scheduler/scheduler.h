// Decides what every step computes: queue, admission, chunked prefill, decode, retraction, and who holds
// which page. A deterministic function of the calls made to it: no clock, no threads, no randomness. Engine
// thread only.
//
// The plan for step N + 1 may be made before the outcome of step N is known (the overlapped loop): a request
// whose item samples is then taken to have one token more, not yet known. Steps are carried out in order.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/request_id.h"
#include "base/result.h"
#include "cache/page_pool.h"
#include "cache/radix_cache.h"
#include "scheduler/batch_plan.h"

namespace hadal {

enum class SchedulePolicy {
  kFcfs,      // in order of arrival
  kLpm,       // longest cached prefix first
  kPriority,  // highest ScheduledRequest::priority first, then arrival
  kLof,       // longest output (max_new_tokens) first
};
// "fcfs" | "lpm" | "priority" | "lof"; else kInvalidArgument naming `field`.
Result<SchedulePolicy> parse_schedule_policy(std::string_view name, std::string_view field);

struct SchedulerOptions {
  int64_t num_pages = 0;                // of the pool, ≥ 1
  int64_t max_running_requests = 64;    // ≥ 1
  int64_t chunked_prefill_size = 2048;  // prompt (and recomputed) tokens a step; -1: prompts are not cut
  int64_t max_prefill_tokens = 16384;   // of all prompts of a step; one uncut prompt may exceed it
  SchedulePolicy policy = SchedulePolicy::kFcfs;
  bool low_priority_values_first = false;  // kPriority
  // How much of the running requests' future output is set aside before a new one is admitted: 1 is the
  // estimate, larger admits fewer (fewer retractions), smaller more.
  double conservativeness = 1.0;
  EvictionPolicy eviction = EvictionPolicy::kLru;
  bool enable_radix_cache = true;
  bool cache_generated_tokens = true;  // false: only prompts are kept for reuse, so that every prompt token
                                       // has always been computed on the same path
};

// What the scheduler knows of a request.
struct ScheduledRequest {
  RequestId id = 0;
  std::vector<int32_t> prompt;    // ≥ 1 token
  int64_t max_new_tokens = 0;     // ≥ 0; 0: the prompt is computed, nothing is sampled
  int64_t max_cached_tokens = 0;  // prompt tokens that may come from the cache, < prompt.size()
  int32_t priority = 0;
};

// What became of one sampling item of a step, in the order of the plan's sampling items.
struct ItemOutcome {
  RequestId request_id = 0;
  int32_t token = -1;
  bool finished = false;  // the request is over with this token (stop, end of sequence, length, its fault)
};

struct SchedulerStats {
  int64_t num_running = 0;
  int64_t num_queued = 0;
  int64_t num_used_tokens = 0;   // of pages in use by requests (cached, unused pages do not count)
  int64_t num_cached_pages = 0;  // evictable
  int64_t num_free_pages = 0;
  int64_t total_retractions = 0;
  int64_t total_evicted_tokens = 0;
  int64_t total_prompt_tokens = 0;  // of admitted requests, first admission only
  int64_t total_cached_tokens = 0;  // of those, taken from the cache
};

class PlanRecorder;  // scheduler/plan_record.h

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // Queues a request. Its pages must fit into the pool alone: ceil((prompt + max_new_tokens) / 64) ≤
  // num_pages (checked by the caller; a broken invariant here).
  void add(ScheduledRequest request);

  // Takes the request out, wherever it is; its pages go back at once, what it computed stays cached. An item
  // of it in a step that is under way is ignored later. False: unknown id.
  bool abort(RequestId id);

  // The next step's work. Its `retracted` requests are back in the queue, their slots free. Empty when
  // nothing can be done before an outcome of a step under way is known, or nothing is there. When the plan is
  // not empty, complete() or fail() must follow for it, in order; at most one other step may be under way.
  BatchPlan plan();

  // The outcome of a step: one entry for each sampling item, those of requests that are gone included. A
  // request that was retracted after the step was planned takes its token too. Requests end here: with
  // `finished`, with their max_new_tokens-th token, or with an item that says ends_request.
  void complete(const BatchPlan& plan, std::span<const ItemOutcome> outcomes);

  // The step failed: the requests with items in it are taken out, nothing that it computed is cached. Returns
  // their ids.
  std::vector<RequestId> fail(const BatchPlan& plan);

  bool idle() const;  // nothing queued, running or under way
  // Tokens of a request known so far: prompt, then generated. The view ends with the next call. The request
  // must be queued or running: complete() forgets those that end.
  std::span<const int32_t> tokens(RequestId id) const;
  // Prompt tokens that its latest admission took from the cache; 0 while queued for the first time.
  int64_t cached_tokens(RequestId id) const;
  bool is_running(RequestId id) const;

  // Forgets all cached prefixes that no running request uses.
  void flush_cache();
  SchedulerStats stats() const;
  const SchedulerOptions& options() const;

  // Every call from now on is written to `recorder` (null: none), which must outlive the scheduler. For a
  // record that can be replayed, before the first add().
  void record_to(PlanRecorder* recorder);

  // Proves that pool, tree, tables and queues agree. Throws otherwise. O(everything).
  void check_integrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal
