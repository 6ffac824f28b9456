// Counts answers by endpoint and status, for /metrics. Any thread may call it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace hadal::server {

class AnswerCounts {
 public:
  using Key =
      std::pair<int, int>;  // the route's index (-1: no route was found, or its use was refused), status

  void count(int route, int status) {
    const std::lock_guard lock(mutex_);
    ++counts_[{route, status}];
  }
  std::map<Key, int64_t> counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<Key, int64_t> counts_;  // guarded by mutex_; bounded by the table of routes times the statuses
};

}  // namespace hadal::server
