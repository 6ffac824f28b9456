// RequestQueue holds the waiting requests in the order in which they are to be admitted.
//
// Retracted requests come first (by arrival), then starved ones (except under fcfs, which starves none), then
// the others by policy. Requests of equal standing share the engine between clients (fair_line.h). A request
// counts as starved once kMaxOvertaken later arrivals were admitted before it. A later arrival of the same
// client counts for each waiting request of that client. An arrival of another client counts only for the
// client's first waiting request, so that a client with many requests does not become starved as a whole. The
// policy "longest prefix first" considers only the first kMaxPrefixLookups waiting requests; the others
// follow.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "scheduler/fair_line.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace hadal {

class RequestQueue {
 public:
  static constexpr int32_t kMaxOvertaken = 256;
  static constexpr int64_t kMaxPrefixLookups = 128;

  explicit RequestQueue(SchedulePolicy policy) : policy_(policy) {}

  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }

  void push(RequestState* request);
  // Costs O(log n). `served` says that the request was admitted, not aborted.
  void remove(RequestState* request, bool served);

  // Visit says how a walk over the queue goes on after a request. With kSkipClient, the client's further
  // requests of the same standing are left out where that is cheap; the others are visited all the same.
  enum class Visit { kNext, kSkipClient, kStop };

  // Calls `visit` in order of admission until it returns kStop. `match_length` returns how many tokens of a
  // request are cached (used by kLpm only). `visit` may remove the request that it receives, but no other.
  void visit_in_order(const std::function<int64_t(RequestState&)>& match_length,
                      const std::function<Visit(RequestState&)>& visit);

  // Counts that `request`, which has already been removed, was admitted before waiting requests that arrived
  // earlier. Over all calls, each waiting request is visited at most kMaxOvertaken times.
  void note_admission(const RequestState& request);

  // Proves that the two orders contain the same, queued requests. It throws otherwise.
  void check_integrity() const;

 private:
  struct Standing {
    int32_t group = 0;  // retracted, starved, others
    int64_t rank = 0;   // from the policy; lower first
    auto operator<=>(const Standing&) const = default;
  };
  using Waiting = std::map<uint64_t, RequestState*>;  // by arrival
  Standing standing_of(const RequestState& request) const;
  void enter_line(RequestState& request);
  void leave_line(RequestState& request, bool served);
  // Counts an overtaking. A request that this makes starved leaves `patient_`.
  void overtake(RequestState& request);
  void leave_patient(const RequestState& request);

  SchedulePolicy policy_;
  int64_t size_ = 0;
  std::map<Standing, FairLine> lines_;             // none is empty
  std::unordered_map<uint64_t, Waiting> patient_;  // requests by client that are not starved
  Waiting first_;                                  // the first of each client in patient_
};

}  // namespace hadal
