#include "server/http/http_ledger.h"

#include <limits>

namespace hadal::server {

std::string_view to_string(Refusal refusal) {
  constexpr std::array<std::string_view, kNumRefusals> kNames = {
      "key",         "origin",           "path",    "method",    "body_size", "bodies",     "client_bodies",
      "connections", "peer_connections", "timeout", "malformed", "starting",  "rate_limit", "memory"};
  return kNames.at(static_cast<size_t>(refusal));
}

HttpLedger::HttpLedger(std::shared_ptr<RequestMemory> memory)
    : memory_(memory != nullptr ? std::move(memory)
                                : std::make_shared<RequestMemory>(std::numeric_limits<size_t>::max())) {}

std::shared_ptr<ClientAccount> HttpLedger::account(const std::string& client) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = accounts_.find(client);
    if (at != accounts_.end()) {
      if (auto found = at->second.lock()) return found;
    }
  }
  // The account is made before the lock is taken: if there is no memory for the pointer, the deleter runs at
  // once, and it takes the lock itself.
  auto made = std::shared_ptr<ClientAccount>(new ClientAccount(client, memory_),
                                             [ledger = shared_from_this()](const ClientAccount* account) {
                                               {
                                                 const std::lock_guard again(ledger->mutex_);
                                                 const auto at = ledger->accounts_.find(account->name);
                                                 // Another thread may have made a new account meanwhile.
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

bool HeadCharge::grow_to(size_t bytes) noexcept {
  const size_t blocks = (bytes + kBlock - 1) / kBlock * kBlock;
  if (memory_.bytes(MemoryKind::kHeader) == 0) memory_.set(MemoryKind::kHeader, kBlock);
  const size_t counted = memory_.bytes(MemoryKind::kHeader);
  if (blocks <= counted || memory_.memory() == nullptr) return true;
  using Taken = RequestMemory::Taken;
  const Taken taken = memory_.add_within(MemoryKind::kHeader, blocks - counted, limit(*memory_.memory()));
  if (taken == Taken::kKindReached) memory_.memory()->count_refusal(MemoryKind::kHeader);
  return taken == Taken::kTaken;
}

BodyCharge::Outcome BodyCharge::grow_to(size_t wanted, size_t total_limit, size_t client_limit) {
  if (wanted <= bytes()) return Outcome::kGranted;
  const size_t more = wanted - bytes();
  Outcome outcome = Outcome::kClientReached;
  if (account_->body_bytes.fetch_add(more) + more <= client_limit) {
    switch (memory_.add_within(MemoryKind::kBody, more, total_limit)) {
      case RequestMemory::Taken::kTaken:
        return Outcome::kGranted;
      case RequestMemory::Taken::kKindReached:
        outcome = Outcome::kTotalReached;
        break;
      case RequestMemory::Taken::kReached:
        outcome = Outcome::kMemoryReached;
        break;
    }
  }
  account_->body_bytes -= more;
  return outcome;
}

}  // namespace hadal::server
