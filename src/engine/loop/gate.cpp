#include "engine/loop/gate.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace hadal {
namespace {

constexpr int64_t kShareOf = 8;  // a client has at most 7/8 of the places

// Returns what a refusal says about the places that were asked for.
std::string needs(int64_t count) {
  return count == 1 ? std::string() : fmt::format(", and this one needs {} places", count);
}

}  // namespace

QueuePlaces& QueuePlaces::operator=(QueuePlaces&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  gate_ = other.gate_;
  client_ = other.client_;
  count_ = std::exchange(other.count_, 0);
  return *this;
}

void QueuePlaces::give_back() noexcept {
  if (count_ > 0) gate_->give_back(std::exchange(count_, 0), client_);
}

int64_t Gate::places_of(uint64_t client) const {
  if (client == 0 || max_waiting_ < kShareOf) return max_waiting_;
  return max_waiting_ - (max_waiting_ + kShareOf - 1) / kShareOf;
}

Result<QueuePlaces> Gate::enter(int64_t count, uint64_t client) {
  HADAL_CHECK_GE(count, 1);
  const int64_t allowed = places_of(client);
  const bool has_share = allowed < max_waiting_;
  const std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  if (max_waiting_ > 0 && count > allowed) {
    return invalid_argument(
        "the request has {} generations (prompts × n); allowed: {}, because all of them must find a place in "
        "the "
        "queue{} of {} (max-queued-requests)",
        count, allowed, has_share ? ", one client in at most 7/8" : "", max_waiting_);
  }
  const auto found = by_client_.find(client);
  const int64_t own = found == by_client_.end() ? 0 : found->second;
  if (has_share && own + count > allowed) {
    return make_status(
        StatusCode::kResourceExhausted,
        "the queue is full for this client: {} of its requests are waiting{}; allowed: {}, which is "
        "7/8 of {} (max-queued-requests)",
        own, needs(count), allowed, max_waiting_);
  }
  if (max_waiting_ > 0 && waiting_ + count > max_waiting_) {
    return make_status(StatusCode::kResourceExhausted,
                       "the queue is full: {} requests are waiting{}; allowed: {} (max-queued-requests)",
                       waiting_, needs(count), max_waiting_);
  }
  if (has_share) by_client_[client] += count;
  waiting_ += count;
  return QueuePlaces(*this, client, count);
}

Result<void> Gate::use(QueuePlaces& places) {
  HADAL_CHECK(places.gate_ == this && places.count_ > 0, "no place of this queue is reserved");
  const std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  --places.count_;
  ++inside_;
  return {};
}

void Gate::admitted(uint64_t client) {
  give_back(1, client);
}

void Gate::left(bool was_admitted, uint64_t client) {
  const std::lock_guard lock(mutex_);
  if (!was_admitted) free_places(1, client);
  if (--inside_ == 0) empty_.notify_all();
}

void Gate::close(Status why) {
  const std::lock_guard lock(mutex_);
  if (!closed_) closed_ = std::move(why);
}

bool Gate::wait_empty(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return empty_.wait_for(lock, timeout, [&] { return inside_ == 0; });
}

void Gate::give_back(int64_t count, uint64_t client) {
  const std::lock_guard lock(mutex_);
  free_places(count, client);
}

void Gate::free_places(int64_t count, uint64_t client) {
  waiting_ -= count;
  const auto own = by_client_.find(client);
  if (own == by_client_.end()) return;
  own->second -= count;
  if (own->second == 0) by_client_.erase(own);
}

}  // namespace hadal
