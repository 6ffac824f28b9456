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

RequestQueue::Standing RequestQueue::standing_of(const RequestState& request) const {
  if (request.retracted) return {.group = kRetractedGroup, .rank = 0};
  if (request.starved && policy_ != SchedulePolicy::kFcfs) return {.group = kStarvedGroup, .rank = 0};
  if (policy_ == SchedulePolicy::kPriority) return {.group = kOtherGroup, .rank = -int64_t{request.priority}};
  if (policy_ == SchedulePolicy::kLof) return {.group = kOtherGroup, .rank = -request.max_new_tokens};
  return {.group = kOtherGroup, .rank = 0};
}

// Retracted requests are in one queue, whichever client sent them.
void RequestQueue::enter_line(RequestState& request) {
  lines_[standing_of(request)].add(request.retracted ? 0 : request.client, request.arrival, &request);
}

void RequestQueue::leave_line(RequestState& request, bool served) {
  const auto line = lines_.find(standing_of(request));
  HADAL_CHECK(line != lines_.end(), "request {} is not in the queue", request.id);
  line->second.remove(request.retracted ? 0 : request.client, request.arrival, served);
  if (line->second.empty()) lines_.erase(line);
}

void RequestQueue::push(RequestState* request) {
  HADAL_CHECK(!request->queued, "request {} is already queued", request->id);
  request->queued = true;
  request->prefix_owner = 0;
  ++size_;
  enter_line(*request);
  if (request->starved) return;
  Waiting& waiting = patient_[request->client];
  if (waiting.empty() || request->arrival < waiting.begin()->first) {
    if (!waiting.empty()) first_.erase(waiting.begin()->first);
    first_.emplace(request->arrival, request);
  }
  waiting.emplace_hint(waiting.end(), request->arrival, request);
}

void RequestQueue::leave_patient(const RequestState& request) {
  const auto at = patient_.find(request.client);
  HADAL_CHECK(at != patient_.end() && at->second.erase(request.arrival) == 1,
              "request {} is not among the patient ones", request.id);
  const bool was_first = first_.erase(request.arrival) == 1;
  if (at->second.empty()) {
    patient_.erase(at);
  } else if (was_first) {
    first_.insert(*at->second.begin());
  }
}

void RequestQueue::remove(RequestState* request, bool served) {
  leave_line(*request, served);
  if (!request->starved) leave_patient(*request);
  request->queued = false;
  --size_;
}

void RequestQueue::visit_in_order(const std::function<int64_t(RequestState&)>& match_length,
                                  const std::function<Visit(RequestState&)>& visit) {
  for (auto line = lines_.begin(); line != lines_.end();) {
    const auto following = std::next(line);  // visit may remove the line with its last request
    const bool by_match = policy_ == SchedulePolicy::kLpm && line->first.group == kOtherGroup;
    // Retracted requests are in the line as if they were one client's.
    const bool by_client = line->first.group != kRetractedGroup;
    int64_t left = line->second.size();
    FairLine::Walk walk(line->second);
    if (by_match) {
      std::vector<std::pair<int64_t, RequestState*>> longest;  // (minus matched tokens, request)
      while (left > 0 && std::ssize(longest) < kMaxPrefixLookups) {
        RequestState* request = walk.next();
        longest.emplace_back(-match_length(*request), request);
        --left;
      }
      std::stable_sort(longest.begin(), longest.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& [rank, request] : longest) {
        if (visit(*request) == Visit::kStop) return;
      }
    }
    while (RequestState* request = left > 0 ? walk.next() : nullptr) {
      --left;
      const Visit how = visit(*request);
      if (how == Visit::kStop) return;
      if (how == Visit::kSkipClient && by_client) walk.skip_client();
    }
    line = following;
  }
}

void RequestQueue::overtake(RequestState& request) {
  if (++request.num_overtaken < kMaxOvertaken) return;
  leave_patient(request);
  leave_line(request, /*served=*/false);
  request.starved = true;
  enter_line(request);
}

void RequestQueue::note_admission(const RequestState& request) {
  // overtake() may remove the request that it is given, and may make the same client's next one the first.
  if (const auto own = patient_.find(request.client); own != patient_.end()) {
    std::vector<RequestState*> earlier;
    for (const auto& [arrival, waiting] : own->second) {
      if (arrival >= request.arrival) break;
      earlier.push_back(waiting);
    }
    for (RequestState* waiting : earlier) overtake(*waiting);
  }
  std::vector<RequestState*> others;
  for (const auto& [arrival, waiting] : first_) {
    if (arrival >= request.arrival) break;
    if (waiting->client != request.client) others.push_back(waiting);
  }
  for (RequestState* waiting : others) overtake(*waiting);
}

void RequestQueue::check_integrity() const {
  int64_t count = 0;
  for (const auto& [standing, line] : lines_) count += line.check_integrity();
  HADAL_CHECK_EQ(count, size_);
  HADAL_CHECK_EQ(first_.size(), patient_.size());
  for (const auto& [client, waiting] : patient_) {
    HADAL_CHECK(!waiting.empty() && first_.contains(waiting.begin()->first), "client {} is not consistent",
                client);
    for (const auto& [arrival, request] : waiting) {
      HADAL_CHECK(
          request->queued && !request->starved && request->arrival == arrival && request->client == client,
          "request {} waits under a wrong name", request->id);
    }
  }
}

}  // namespace hadal
