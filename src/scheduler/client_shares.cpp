#include "scheduler/client_shares.h"

#include "base/check.h"

namespace hadal {

void ClientShares::give_slot(uint64_t client) {
  const auto held = slots_.find(client);
  HADAL_CHECK(held != slots_.end(), "client {} holds no slot", client);
  if (--held->second == 0) slots_.erase(held);
}

void ClientShares::see(uint64_t client, int64_t step) {
  if (client == 0) return;
  if (client != latest_client_) {
    other_step_ = latest_step_;
    latest_client_ = client;
  }
  latest_step_ = step;
}

bool ClientShares::must_leave_room(uint64_t client, int64_t step) const {
  const int64_t company = client == latest_client_ ? other_step_ : latest_step_;
  if (kept_slots_ == 0 || step - company > kCompanySteps) return false;
  const auto held = slots_.find(client);
  return held != slots_.end() && held->second >= kept_slots_;
}

}  // namespace hadal
