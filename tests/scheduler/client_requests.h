// Runs requests of several clients, whose prompts share nothing unless a test gives them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "scheduler/scheduler.h"

namespace hadal::testing {

class ClientRequests {
 public:
  explicit ClientRequests(const SchedulerOptions& options) : scheduler_(options) {}

  struct Request {
    uint64_t client = 0;
    int64_t prompt_len = 0;
    int64_t max_new_tokens = 0;
    int32_t priority = 0;
  };
  RequestId add(const Request& request) {
    std::vector<int32_t> prompt(static_cast<size_t>(request.prompt_len));
    std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(last_id_ + 1) * 100'000);
    return add(request, prompt);
  }
  RequestId add(const Request& request, const TokenIds& prompt) {
    const RequestId id = ++last_id_;
    scheduler_.add({.id = id,
                    .prompt = prompt,
                    .max_new_tokens = request.max_new_tokens,
                    .max_cached_tokens = static_cast<int64_t>(prompt.size()) - 1,
                    .priority = request.priority,
                    .client = request.client});
    left_[id] = std::max<int64_t>(request.max_new_tokens, 1);
    return id;
  }
  std::vector<RequestId> add_many(int count, const Request& request) {
    std::vector<RequestId> ids;
    for (int i = 0; i < count; ++i) ids.push_back(add(request));
    return ids;
  }

  // Plans and completes a step.
  BatchPlan step() {
    BatchPlan plan = scheduler_.plan();
    scheduler_.check_integrity();
    if (plan.empty()) return plan;
    for (const RequestId id : plan.retracted) ++num_retractions_[id];
    std::vector<ItemOutcome> outcomes;
    for (const WorkItem& item : plan.ranks[0].items) {
      if (item.ends_request) left_[item.request_id] = 0;
      if (!item.samples) continue;
      // Each request generates other tokens.
      const auto token = static_cast<int32_t>(item.request_id) * 100'000 + 50'000 + ++num_tokens_ % 40'000;
      outcomes.push_back({.request_id = item.request_id, .token = token});
      --left_[item.request_id];
    }
    scheduler_.complete(plan, outcomes);
    scheduler_.check_integrity();
    return plan;
  }
  // Steps until the request runs or has ended, or `most` steps have been made. Returns how many were.
  int steps_until_start(RequestId id, int most) {
    int steps = 0;
    while (steps < most && !has_started(id)) {
      step();
      ++steps;
    }
    return steps;
  }
  // Steps until some request is retracted, and returns the first one; 0 if `most` steps retract none.
  RequestId first_retracted(int most) {
    for (int i = 0; i < most; ++i) {
      if (const BatchPlan plan = step(); !plan.retracted.empty()) return plan.retracted.front();
    }
    return 0;
  }
  void run_to_the_end(int most_steps) {
    while (!scheduler_.idle() && --most_steps > 0) step();
    EXPECT_TRUE(scheduler_.idle()) << scheduler_.stats().num_running << " run, "
                                   << scheduler_.stats().num_queued << " wait";
  }

  bool is_running(RequestId id) const { return scheduler_.is_running(id); }
  bool has_ended(RequestId id) const { return left_.at(id) == 0; }
  bool has_started(RequestId id) const { return is_running(id) || has_ended(id); }
  int num_retractions(RequestId id) const {
    const auto found = num_retractions_.find(id);
    return found == num_retractions_.end() ? 0 : found->second;
  }
  int64_t num_available() const {
    return scheduler_.stats().num_free_pages + scheduler_.stats().num_cached_pages;
  }
  Scheduler& scheduler() { return scheduler_; }

 private:
  Scheduler scheduler_;
  RequestId last_id_ = 0;
  int32_t num_tokens_ = 0;
  std::map<RequestId, int64_t> left_;  // tokens that the request will still generate
  std::map<RequestId, int> num_retractions_;
};

}  // namespace hadal::testing
