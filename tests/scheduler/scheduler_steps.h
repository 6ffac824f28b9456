// Holds the texts, options and steps that the tests of the scheduler's rules share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/simulator.h"

namespace hadal::testing {

// Returns `count` tokens that occur in no other `stream`.
inline std::vector<int32_t> text(int32_t stream, int64_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), stream * 100'000);
  return tokens;
}

inline std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline SimulatorOptions small(int64_t num_pages = 64) {
  SimulatorOptions options;
  options.scheduler.num_pages = num_pages;
  options.scheduler.max_running_requests = 8;
  options.check_always = true;
  return options;
}

inline std::vector<WorkItem> items_of(const BatchPlan& plan, RequestId id) {
  std::vector<WorkItem> result;
  for (const WorkItem& item : plan.ranks[0].items) {
    if (item.request_id == id) result.push_back(item);
  }
  return result;
}

// Plans and completes a step.
inline const BatchPlan& step(Simulator& simulator) {
  EXPECT_TRUE(simulator.plan());
  simulator.complete_oldest();
  return simulator.last_plan();
}

}  // namespace hadal::testing
