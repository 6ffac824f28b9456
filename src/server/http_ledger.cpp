#include "server/http_ledger.h"

namespace hadal::server {

std::string_view to_string(Refusal refusal) {
  constexpr std::array<std::string_view, kNumRefusals> kNames = {
      "key",         "origin",           "path",    "method",    "body_size", "bodies",     "client_bodies",
      "connections", "peer_connections", "timeout", "malformed", "starting",  "rate_limit", "memory"};
  return kNames.at(static_cast<size_t>(refusal));
}

std::shared_ptr<ClientAccount> HttpLedger::account(const std::string& client) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = accounts_.find(client);
    if (at != accounts_.end()) {
      if (auto found = at->second.lock()) return found;
    }
  }
  // The account is made without the lock, because its deleter takes the lock, also where there is no memory
  // for the pointer.
  auto made = std::shared_ptr<ClientAccount>(new ClientAccount(client),
                                             [ledger = shared_from_this()](const ClientAccount* account) {
                                               {
                                                 const std::lock_guard again(ledger->mutex_);
                                                 const auto at = ledger->accounts_.find(account->name);
                                                 // Another thread may have made a new account of this name in
                                                 // the meantime.
                                                 if (at != ledger->accounts_.end() && at->second.expired())
                                                   ledger->accounts_.erase(at);
                                               }
                                               delete account;
                                             });
  const std::lock_guard lock(mutex_);
  std::weak_ptr<ClientAccount>& entry = accounts_[client];
  if (auto found = entry.lock()) return found;
  entry = made;
  return made;
}

size_t HttpLedger::num_accounts() const {
  const std::lock_guard lock(mutex_);
  return accounts_.size();
}

BodyCharge::~BodyCharge() {
  account_->body_bytes -= bytes_;
  ledger_->body_bytes_ -= bytes_;
}

BodyCharge::Outcome BodyCharge::grow_to(size_t bytes, size_t total_limit, size_t client_limit) {
  if (bytes <= bytes_) return Outcome::kGranted;
  const size_t more = bytes - bytes_;
  if (account_->body_bytes.fetch_add(more) + more > client_limit) {
    account_->body_bytes -= more;
    return Outcome::kClientReached;
  }
  if (ledger_->body_bytes_.fetch_add(more) + more > total_limit) {
    ledger_->body_bytes_ -= more;
    account_->body_bytes -= more;
    return Outcome::kTotalReached;
  }
  if (!memory_.try_add(MemoryKind::kBody, more)) {
    ledger_->body_bytes_ -= more;
    account_->body_bytes -= more;
    return Outcome::kMemoryReached;
  }
  bytes_ = bytes;
  return Outcome::kGranted;
}

}  // namespace hadal::server
