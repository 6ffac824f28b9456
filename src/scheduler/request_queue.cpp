#include "scheduler/request_queue.h"

#include <algorithm>

#include "base/check.h"

namespace hadal {
namespace {

constexpr int32_t kRetractedGroup = 0;
constexpr int32_t kStarvedGroup = 1;
constexpr int32_t kOtherGroup = 2;

}  // namespace

Result<SchedulePolicy> parse_schedule_policy(std::string_view name, std::string_view field) {
  if (name == "fcfs") return SchedulePolicy::kFcfs;
  if (name == "lpm") return SchedulePolicy::kLpm;
  if (name == "priority") return SchedulePolicy::kPriority;
  if (name == "lof") return SchedulePolicy::kLof;
  return invalid_argument("{} is '{}'; allowed are fcfs, lpm, priority, lof", field, name);
}

RequestQueue::Key RequestQueue::key_of(const RequestState& request) const {
  Key key{.group = kOtherGroup, .rank = 0, .arrival = request.arrival};
  if (request.retracted) {
    key.group = kRetractedGroup;
  } else if (request.starved) {
    key.group = kStarvedGroup;
  } else if (policy_ == SchedulePolicy::kPriority) {
    key.rank = -int64_t{request.priority};
  } else if (policy_ == SchedulePolicy::kLof) {
    key.rank = -request.max_new_tokens;
  }
  return key;
}

void RequestQueue::push(RequestState* request) {
  HADAL_CHECK(!request->queued, "request {} is already queued", request->id);
  request->queued = true;
  request->prefix_owner = 0;
  in_order_.emplace(key_of(*request), request);
  by_arrival_.emplace(request->arrival, request);
}

void RequestQueue::remove(RequestState* request) {
  HADAL_CHECK_EQ(in_order_.erase(key_of(*request)), 1U);
  HADAL_CHECK_EQ(by_arrival_.erase(request->arrival), 1U);
  request->queued = false;
}

void RequestQueue::visit_in_order(const std::function<int64_t(RequestState&)>& match_length,
                                  const std::function<bool(RequestState&)>& visit) {
  auto next = in_order_.begin();
  const auto visit_until = [&](auto end) {
    while (next != end) {
      RequestState& request = *(next++)->second;  // visit may remove it
      if (!visit(request)) return false;
    }
    return true;
  };
  if (policy_ == SchedulePolicy::kLpm) {
    const auto others = in_order_.lower_bound(Key{.group = kOtherGroup, .rank = 0, .arrival = 0});
    if (!visit_until(others)) return;
    std::vector<std::pair<int64_t, RequestState*>> longest;  // (minus matched tokens, request)
    for (; next != in_order_.end() && std::ssize(longest) < kMaxPrefixLookups; ++next) {
      longest.emplace_back(-match_length(*next->second), next->second);
    }
    std::stable_sort(longest.begin(), longest.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [rank, request] : longest) {
      if (!visit(*request)) return;
    }
  }
  visit_until(in_order_.end());
}

void RequestQueue::note_admission(const RequestState& request) {
  for (auto it = by_arrival_.begin(); it != by_arrival_.end() && it->first < request.arrival; ++it) {
    RequestState& waiting = *it->second;
    if (++waiting.num_overtaken < kMaxOvertaken || waiting.starved) continue;
    in_order_.erase(key_of(waiting));
    waiting.starved = true;
    in_order_.emplace(key_of(waiting), &waiting);
  }
}

void RequestQueue::check_integrity() const {
  HADAL_CHECK_EQ(in_order_.size(), by_arrival_.size());
  for (const auto& [key, request] : in_order_) {
    HADAL_CHECK(request->queued && key == key_of(*request), "request {} is in the queue under a wrong key",
                request->id);
    const auto it = by_arrival_.find(request->arrival);
    HADAL_CHECK(it != by_arrival_.end() && it->second == request,
                "request {} is missing in the order of arrival", request->id);
  }
}

}  // namespace hadal
