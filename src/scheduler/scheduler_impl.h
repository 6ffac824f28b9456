// Scheduler::Impl is the state of a Scheduler and the rules over it, one file per rule:
//
//   request_queue      the order of waiting requests
//   client_shares      the slots and pages that a client leaves to others
//   prompt_pages       which pages of prompts are equal
//   prompt_turns       how a step's prompt tokens are divided between prompts and clients
//   admission          which waiting requests start, with which cached prefix and pages
//   prefix_wait        which waiting requests wait for a prompt in prefill that begins like theirs
//   retraction         pages for every decode, and which request is retracted when there is none
//   step_builder       the running requests' work as a BatchPlan
//   completion         outcomes, failures, aborts, the end of a request
//   integrity          the proof that all of it agrees
//
// An admitted request gets the pages of all its known tokens at once; a decoding one gets a page when it
// begins a block. So no request waits for a page in the middle of a prompt, and two long prompts cannot block
// each other. The oldest running request is never retracted for others and may always grow, so it always
// ends.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "scheduler/client_shares.h"
#include "scheduler/growth_estimate.h"
#include "scheduler/prompt_budget.h"
#include "scheduler/prompt_pages.h"
#include "scheduler/request_queue.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace hadal {

struct Scheduler::Impl {
  explicit Impl(const SchedulerOptions& scheduler_options);

  SchedulerOptions options;
  PagePool pool;
  RadixCache cache;
  RequestQueue queue;
  GrowthEstimate growth;
  ClientShares shares;
  PromptTable prompt_table;

  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests;
  std::vector<RequestState*> running;     // in order of admission
  std::vector<RequestState*> by_slot;     // [max_running_requests], null: free
  std::vector<int32_t> free_slots;        // a heap, smallest first
  std::vector<RequestState*> prefilling;  // running, prompt not yet in the tree, worth waiting for
  std::deque<int64_t> in_flight;          // steps in flight, oldest first; at most two
  int64_t last_step = 0;
  uint64_t last_arrival = 0;
  // Increases when something is inserted into the tree, because match lengths may then be longer.
  uint64_t tree_version = 1;
  std::vector<RequestId> retracted_ids;  // not yet named by a plan
  // The request that the latest pass over the queue which refused one refused first, because pages were
  // lacking, and whose client need not leave room. It may have been admitted or aborted since; 0: none.
  RequestId lacks_pages = 0;
  SchedulerStats totals;        // the counters only
  std::vector<int32_t> joined;  // scratch of known_tokens

  PlanRecorder* recorder = nullptr;

  // Generating says which clients have requests that generate and receive a token from this step.
  struct Generating {
    bool any = false;
    bool several = false;  // clients
    uint64_t client = 0;   // one of them
    void add(uint64_t whose);
    // Returns whether work for `whose` delays another client's next token.
    bool others_than(uint64_t whose) const { return several || (any && client != whose); }
  };

  // These are in scheduler.cpp.
  void add(ScheduledRequest request);
  BatchPlan plan(int64_t max_cost, int64_t width);
  SchedulerStats stats() const;
  RequestState* find(RequestId id) const;
  // Returns a request's first `count` known tokens; valid until the next call for another request.
  std::span<const int32_t> known_tokens(const RequestState& request, int64_t count) {
    return request.tokens.first(static_cast<size_t>(count), joined);
  }

  // prompt_turns.cpp defines these. plan_prompts decides how many prompt tokens of which request the step
  // computes, and starts waiting requests if `admits`.
  void plan_prompts(PromptBudget& budget, const Generating& generating, bool admits, BatchPlan& plan);
  // Gives a request in prefill as many more tokens of this step as `budget` allows.
  void advance_prompt(RequestState& request, PromptBudget& budget, const Generating& generating);

  // These are in admission.cpp. After kClientWaits, the later requests of the same client wait, too, and
  // those of other clients may overtake them. After kNoRoom, no request is admitted any more.
  enum class Admission { kAdmitted, kWaitsForPrefix, kClientWaits, kTooLong, kNoRoom };
  // AdmissionPass is shared by all requests that one pass over the queue considers.
  struct AdmissionPass {
    PromptBudget& budget;
    const Generating& generating;
    BatchPlan& plan;
    bool short_only = false;    // requests with long prompts (is_long) are passed over
    int64_t wanted_pages;       // pages expected by running requests, and by those that were passed over
    bool first_prompt = false;  // the step has no prompt yet
    bool has_refused = false;   // a request for which pages were lacking; see lacks_pages
    // The part of wanted_pages that barred_growth() has counted, and for which priority.
    std::optional<int32_t> barred_priority;
    int64_t over_share_growth = 0;
  };
  // Starts waiting requests while `budget` and slots last, and counts them in `plan`.
  void admit(PromptBudget& budget, const Generating& generating, BatchPlan& plan);
  // Returns whether half a step cannot hold what is left of the request's prompt from `begin` on, by tokens
  // or by tokens that are scored.
  bool is_long(const RequestState& request, int64_t begin) const;
  // Does the same as admit() for the first request of each client that is not in `busy`, if its prompt is not
  // long. It looks at the first kMaxLookups waiting requests only.
  void admit_newcomers(PromptBudget& budget, const Generating& generating, std::unordered_set<uint64_t>& busy,
                       BatchPlan& plan);
  // Admits the request, or says why not. Subtracts the tokens of an admitted request from the budget.
  Admission try_admit(RequestState& request, AdmissionPass& pass);
  // Start is what is decided about a request that is admitted.
  struct Start {
    PrefixMatch match;  // its node is locked
    int64_t num_pages = 0;
    int64_t step_tokens = 0;  // prompt tokens that this step computes
    bool delays = false;      // these tokens delay the generation of other clients
  };
  // Decides whether the request is admitted, and fills `start` if so. It assigns no page, slot or tokens yet.
  Admission decide(RequestState& request, AdmissionPass& pass, Start& start);
  // Gives the request its pages: those of the cached prefix and new ones.
  void take_pages(RequestState& request, Start& start, BatchPlan& plan);
  // Gives the request a slot and counts it as running.
  void start_running(RequestState& request, const Start& start, AdmissionPass& pass);
  // Returns the pages that running requests are expected to need.
  int64_t expected_growth() const;
  // Returns how many of pass.wanted_pages running requests will not get while `request` waits, because their
  // clients must leave the kept pages to it.
  int64_t barred_growth(const RequestState& request, AdmissionPass& pass) const;
  // Says that pages are lacking for a request, which needs `num_pages` new ones with its expected growth.
  Admission refuse(const RequestState& request, int64_t num_pages, bool leaves_room, AdmissionPass& pass);
  int64_t available_pages() const { return pool.num_free() + cache.evictable_pages(); }
  // Returns how many of its tokens may come from the cache, which is never all known tokens.
  int64_t match_limit(const RequestState& request) const;
  // Returns how many of the request's tokens are cached and may be used.
  int64_t match_length(RequestState& request);
  // Returns the budget of a step in prompt and recomputed tokens.
  int64_t prefill_budget() const;
  static constexpr int64_t kMaxLookups = 1024;  // admit_newcomers() looks at this many requests
  // If this many requests of a client wait for a prefix, admit() passes over the client's later ones.
  static constexpr int64_t kMaxWaiting = 256;

  // These are in prefix_wait.cpp. waits_for_prefix returns whether the request waits for a prompt in prefill.
  // If that prompt has computed the common pages by now, they are inserted into the tree, and the wait is
  // over.
  bool waits_for_prefix(RequestState& request);
  // Returns whether `request` may wait for this prompt in prefill.
  bool may_wait_for(const RequestState& owner, const RequestState& request) const;
  // Inserts what has been computed of a prompt in prefill, up to the end of a page.
  void cache_computed_pages(RequestState& owner);

  // retraction.cpp defines these. secure_decode_pages gives every decoding request the pages that a step of
  // `width` needs, or retracts a request. A request that still lacks a page afterwards skips this step.
  void secure_decode_pages(int64_t width);
  bool acquire_pages(RequestState& request, int64_t width);
  bool goes_before(const RequestState& a, const RequestState& b) const;
  // Returns the running request that arrived first; there must be one.
  const RequestState& oldest_running() const;
  // Returns whether another client's waiting request, for which pages are lacking, goes before this one.
  bool goes_after_waiting(const RequestState& request) const;
  // Returns whether the request's next page would be one of those that its client must leave to that waiting
  // request. It never would for the oldest running request.
  bool leaves_next_page(const RequestState& request) const;
  // Returns the index in `order` of the request that is retracted so that order[idx] gets a page.
  size_t victim_for(size_t idx, const std::vector<RequestState*>& order) const;
  void retract(RequestState& request, bool isolated);

  // step_builder.cpp defines these. build_items adds the tokens named by RequestState::step_tokens to the
  // plan.
  void build_items(BatchPlan& plan);
  void add_item(RequestState& request, WorkKind kind, int64_t num_tokens, RankPlan& rank);

  // These are in completion.cpp.
  void complete(const BatchPlan& plan, std::span<const ItemOutcome> outcomes);
  std::vector<RequestId> fail(const BatchPlan& plan);
  bool abort(RequestId id);
  void hold(RequestId id, bool held);
  bool defer(RequestId id);
  void step_ended(const BatchPlan& plan);
  void take_tokens(RequestState& request, const WorkItem& item, const ItemOutcome& outcome);
  void cache_prompt(RequestState& request);
  // Inserts the first `count` tokens of a running request's prompt into the tree, and locks them there.
  void insert_prompt(RequestState& request, int64_t count);
  void leave_prefilling(RequestState& request);
  // Removes a running request from its slot: its confirmed tokens are cached if `keep`, and its pages are
  // freed.
  void stop_running(RequestState& request, bool keep);
  void forget(RequestState& request, bool keep);

  // This is in integrity.cpp.
  void check_integrity() const;
};

}  // namespace hadal
