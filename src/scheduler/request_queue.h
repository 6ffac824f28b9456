// The waiting requests, in the order in which they are to be admitted.
//
// Order: retracted requests (by arrival), then starved ones (by arrival), then by policy. A request counts as
// starved once kMaxOvertaken later arrivals were admitted before it, whatever the policy. Longest prefix
// first considers only the first kMaxPrefixLookups waiting requests (by arrival); the others follow in order
// of arrival.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace hadal {

class RequestQueue {
 public:
  static constexpr int32_t kMaxOvertaken = 256;
  static constexpr int64_t kMaxPrefixLookups = 128;

  explicit RequestQueue(SchedulePolicy policy) : policy_(policy) {}

  bool empty() const { return by_arrival_.empty(); }
  int64_t size() const { return static_cast<int64_t>(by_arrival_.size()); }

  void push(RequestState* request);
  void remove(RequestState* request);

  // Calls `visit` in order of admission until it returns false. `match_length` returns how much of a request
  // is cached (kLpm only). `visit` may remove the request it is given, but no other.
  void visit_in_order(const std::function<int64_t(RequestState&)>& match_length,
                      const std::function<bool(RequestState&)>& visit);

  // `request`, already removed, was admitted: every waiting request that arrived earlier was overtaken.
  void note_admission(const RequestState& request);

  // Proves that the two orders contain the same, queued requests. Throws otherwise.
  void check_integrity() const;

 private:
  struct Key {
    int32_t group = 0;  // retracted, starved, others
    int64_t rank = 0;   // from the policy; lower first
    uint64_t arrival = 0;
    auto operator<=>(const Key&) const = default;
  };
  Key key_of(const RequestState& request) const;

  SchedulePolicy policy_;
  std::map<Key, RequestState*> in_order_;
  std::map<uint64_t, RequestState*> by_arrival_;
};

}  // namespace hadal
