#include "scheduler/client_shares.h"

#include "base/check.h"

namespace hadal {

void ClientShares::start(uint64_t client, int64_t num_pages) {
  Held& held = held_[client];
  ++held.slots;
  held.pages += num_pages;
}

void ClientShares::stop(uint64_t client, int64_t num_pages) {
  const auto held = held_.find(client);
  HADAL_CHECK(held != held_.end() && held->second.pages >= num_pages, "client {} does not hold {} pages",
              client, num_pages);
  held->second.pages -= num_pages;
  if (--held->second.slots == 0) held_.erase(held);
}

void ClientShares::see(uint64_t client, int64_t step) {
  if (client == 0) return;
  if (client != latest_client_) {
    other_step_ = latest_step_;
    latest_client_ = client;
  }
  latest_step_ = step;
}

int64_t ClientShares::pages_of(uint64_t client) const {
  const auto held = held_.find(client);
  return held == held_.end() ? 0 : held->second.pages;
}

bool ClientShares::must_leave_room(uint64_t client, int64_t step) const {
  const int64_t company = client == latest_client_ ? other_step_ : latest_step_;
  if (kept_slots_ == 0 || step - company > kCompanySteps) return false;
  const auto held = held_.find(client);
  return held != held_.end() && (held->second.slots >= kept_slots_ || held->second.pages >= kept_pages_);
}

}  // namespace hadal
