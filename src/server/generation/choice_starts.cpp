#include "server/generation/choice_starts.h"

#include <chrono>
#include <memory>
#include <utility>

namespace hadal::server {
namespace {

using Clock = std::chrono::steady_clock;

// Requests that start at the same time have one turn each before the thread serves its sockets.
constexpr std::chrono::milliseconds kStartsTurn{1};

struct Starts {
  IoThread& io;
  size_t count;
  std::function<bool(size_t)> start;
  size_t next = 0;
};

void take_turn(const std::shared_ptr<Starts>& starts) {
  const Clock::time_point end = Clock::now() + kStartsTurn;
  while (starts->next < starts->count) {
    if (!starts->start(starts->next++)) return;
    if (Clock::now() >= end) break;
  }
  if (starts->next < starts->count) starts->io.post([starts] { take_turn(starts); });
}

}  // namespace

void start_choices(IoThread& io, size_t count, std::function<bool(size_t choice)> start) {
  take_turn(std::make_shared<Starts>(Starts{.io = io, .count = count, .start = std::move(start)}));
}

}  // namespace hadal::server
