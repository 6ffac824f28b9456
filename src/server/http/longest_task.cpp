#include "server/http/longest_task.h"

#include <algorithm>

namespace hadal::server {

void LongestTask::note(Clock::time_point end, Clock::duration duration) {
  const int64_t number = number_of(end);
  Window& window = windows_[static_cast<size_t>(number) % windows_.size()];
  const bool is_new = window.number.load(std::memory_order_relaxed) != number;
  if (!is_new && duration.count() <= window.longest.load(std::memory_order_relaxed)) return;
  window.longest.store(duration.count(), std::memory_order_relaxed);
  // A reader of the new number also reads the new duration, not that of two minutes ago.
  if (is_new) window.number.store(number, std::memory_order_release);
}

LongestTask::Clock::duration LongestTask::longest(Clock::time_point now) const {
  Clock::rep longest = 0;
  for (const Window& window : windows_) {
    const int64_t age = number_of(now) - window.number.load(std::memory_order_acquire);
    if (age == 0 || age == 1) longest = std::max(longest, window.longest.load(std::memory_order_relaxed));
  }
  return Clock::duration(longest);
}

}  // namespace hadal::server
