// RequestState is one request inside the scheduler, from add() until it ends. It is plain data: the rules are
// in the files of Scheduler::Impl (scheduler_impl.h).
//
// The positions of a running request are:
//   [0, confirmed)               computed, and the step's outcome is known: may be cached
//   [confirmed, planned)         in a step that is in flight
//   [planned, tokens.size())     known tokens that no step has computed yet; one for a decoding request
//   [tokens.size(), + unknown)   sampled by a step in flight, not known yet
// A step that verifies drafts may sample up to `surplus` tokens more than `unknown` says. While steps in
// flight have no known outcome, all numbers count the fewest tokens that those steps may sample.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/request_id.h"
#include "base/token_ids.h"
#include "cache/page_pool.h"
#include "cache/radix_cache.h"
#include "scheduler/prompt_pages.h"

namespace hadal {

inline constexpr int64_t num_pages_for(int64_t num_tokens) {
  return (num_tokens + kCachePageSize - 1) / kCachePageSize;
}

struct RequestState {
  RequestId id = 0;
  TokenSequence tokens;  // prompt, then the known generated tokens
  int64_t prompt_len = 0;
  int64_t max_new_tokens = 0;
  int64_t max_cached_tokens = 0;
  int64_t scored_from = 0;  // logits are computed for all known tokens from this position on
  bool speculates = false;  // see SchedulerOptions::max_width
  uint64_t client = 0;      // see ScheduledRequest
  int32_t priority = 0;     // higher goes first, whatever the options say about the caller's values
  uint64_t arrival = 0;     // 1, 2, …; a retraction does not change it
  CacheSalt salt;           // see ScheduledRequest
  PromptPages* prompt_pages = nullptr;  // shared by all requests with the same ids (prompt_pages.h)

  // The next fields are its state in the queue.
  bool queued = false;
  bool retracted = false;  // it has run before
  bool yielded = false;    // it was retracted so that its client leaves pages to others (retraction.cpp)
  bool starved = false;    // overtaken too often: it goes first and does not wait for another prompt's prefix
  int32_t num_overtaken = 0;   // later arrivals that were admitted first
  RequestId prefix_owner = 0;  // the request in prefill whose prompt this one waits for …
  int64_t prefix_end = 0;      // … until that one has computed its tokens up to here
  int64_t match_length = 0;    // how many of its tokens were cached …
  uint64_t match_version = 0;  // … at this version of the tree; 0: never looked up

  // The next fields are its state while running.
  bool running = false;
  int32_t slot = -1;
  std::vector<PageId> pages;     // by block; the request has one reference to each
  int64_t num_pages_sent = 0;    // already in the slot's page table (named by an item)
  CacheNodeId node = kRootNode;  // the node that it locks in the tree
  bool isolated = false;         // neither matched nor cached before its end: it has only pages of its own
  bool starts_slot = false;
  bool catching_up = false;       // not all tokens known at admission are planned yet
  bool prompt_cached = false;     // in the tree since this admission
  bool prefilling = false;        // its prompt will be inserted into the tree: others may wait for it
  int64_t prompt_end_cached = 0;  // the prompt's tokens up to here are in the tree already
  int64_t prompt_step = 0;        // the latest step that computes prompt tokens of this request; 0: none
  int64_t planned = 0;
  int64_t confirmed = 0;
  int64_t step_tokens = 0;     // scratch of plan(): how many of its tokens this step computes
  bool step_absorbed = false;  // scratch of plan(): its prompt tokens take the absorbed path

  // The next fields are its state in both.
  bool held = false;                // see Scheduler::hold
  int64_t sample_step = 0;          // the latest step that samples for this request
  int64_t deferred_step = 0;        // the latest step whose sample for this request is not taken; 0: none
  bool repeats = false;             // its next item computes the last token of that step again
  int32_t unknown = 0;              // least number of tokens sampled by steps in flight
  int32_t surplus = 0;              // how many more they may sample
  int32_t num_items_in_flight = 0;  // work items in steps in flight
  bool prompt_done = false;         // the whole prompt has been computed once, and the outcome is known
  int64_t told_cached_tokens = 0;   // see Scheduler::cached_tokens

  CacheOwner cache_owner() const { return {.salt = salt, .client = client}; }
  int64_t num_known() const { return static_cast<int64_t>(tokens.size()); }
  int64_t length() const { return num_known() + unknown; }
  int64_t num_new_planned() const { return length() - prompt_len; }
  bool decoding() const { return !catching_up && num_new_planned() < max_new_tokens; }
  // Returns true when everything is planned: the outcome of a step in flight ends the request.
  bool draining() const { return !catching_up && num_new_planned() >= max_new_tokens; }
  // Tells whether its next decode item verifies drafts. A request that repeats a token verifies none, because
  // the executor has no drafts after that token.
  bool verifies() const { return speculates && !catching_up && !repeats; }
  // Returns how many tokens a decode step of `width` samples for the request, at most. The last token that it
  // may generate is never computed.
  int64_t step_width(int64_t width) const {
    return verifies() ? std::min(width, prompt_len + max_new_tokens - 1 - planned) : 1;
  }
  // Returns the end of the positions that such a step may write.
  int64_t step_end(int64_t width) const {
    return verifies() ? std::min(planned + surplus + width, prompt_len + max_new_tokens - 1) : planned + 1;
  }
  bool needs_page(int64_t width) const {
    return decoding() && static_cast<int64_t>(pages.size()) * kCachePageSize < step_end(width);
  }
};

}  // namespace hadal
