// Counts what clients hold of a server at this moment, and how often it refused them. Any thread may call
// everything here; the counters are exact.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "server/request_memory.h"

namespace hadal::server {

// Refusal says why the transport or the router answered a request without running its handler.
enum class Refusal {
  kKey,              // no key, or a wrong one
  kOrigin,           // a page of another origin, or a Host that is not allowed
  kPath,             // no such path
  kMethod,           // the path has other methods
  kBodySize,         // the body is larger than its path allows
  kBodies,           // the limit for bodies of all requests
  kClientBodies,     // one client's share of that limit
  kConnections,      // too many connections
  kPeerConnections,  // too many connections from one peer
  kTimeout,          // the request did not arrive in time
  kMalformed,        // not HTTP, or headers that are too long
  kStarting,         // the model is being loaded
  kRateLimit,        // the client's requests or tokens (--rate-limit)
  kMemory,           // the limit for the memory of all requests
};
inline constexpr size_t kNumRefusals = 14;
std::string_view to_string(Refusal refusal);  // "key", "origin", …

// ClientAccount counts what one client holds.
struct ClientAccount {
  explicit ClientAccount(std::string client) : name(std::move(client)) {}
  const std::string name;  // "peer:127.0.0.1", "key:alice"
  std::atomic<size_t> body_bytes{0};
  std::atomic<int> connections{0};
};

class HttpLedger : public std::enable_shared_from_this<HttpLedger> {
 public:
  // Returns the account of this name; it exists as long as somebody holds it.
  std::shared_ptr<ClientAccount> account(const std::string& client);
  size_t num_accounts() const;

  void count(Refusal refusal) {
    refused_[static_cast<size_t>(refusal)].fetch_add(1, std::memory_order_relaxed);
  }
  int64_t refused(Refusal refusal) const {
    return refused_[static_cast<size_t>(refusal)].load(std::memory_order_relaxed);
  }
  // Counts an idle connection that was closed for a new one.
  void count_idle_cut() { idle_cuts_.fetch_add(1, std::memory_order_relaxed); }
  int64_t idle_cuts() const { return idle_cuts_.load(std::memory_order_relaxed); }
  size_t body_bytes() const { return body_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class BodyCharge;

  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<ClientAccount>, std::less<>> accounts_;  // guarded by mutex_
  std::atomic<size_t> body_bytes_{0};
  std::array<std::atomic<int64_t>, kNumRefusals> refused_{};
  std::atomic<int64_t> idle_cuts_{0};
};

// BodyCharge is the memory of one request's body, counted for its client and in the total from before it is
// allocated until this object is destroyed.
class BodyCharge {
 public:
  BodyCharge(std::shared_ptr<HttpLedger> ledger, std::shared_ptr<ClientAccount> account,
             std::shared_ptr<RequestMemory> memory = nullptr)
      : ledger_(std::move(ledger)), account_(std::move(account)), memory_(std::move(memory)) {}
  ~BodyCharge();
  BodyCharge(const BodyCharge&) = delete;
  BodyCharge& operator=(const BodyCharge&) = delete;

  enum class Outcome { kGranted, kTotalReached, kClientReached, kMemoryReached };
  // Counts `bytes` in all, which is at least what was counted before. If a limit forbids that, nothing
  // changes.
  Outcome grow_to(size_t bytes, size_t total_limit, size_t client_limit);

 private:
  const std::shared_ptr<HttpLedger> ledger_;
  const std::shared_ptr<ClientAccount> account_;
  MemoryCharge memory_;
  size_t bytes_ = 0;
};

// ConnectionSlot is one connection of a client, counted while this object holds the account.
class ConnectionSlot {
 public:
  ConnectionSlot() = default;
  explicit ConnectionSlot(std::shared_ptr<ClientAccount> account) : account_(std::move(account)) {
    account_->connections.fetch_add(1, std::memory_order_relaxed);
  }
  ~ConnectionSlot() { release(); }
  ConnectionSlot(ConnectionSlot&& other) noexcept : account_(std::move(other.account_)) {}
  ConnectionSlot& operator=(ConnectionSlot&&) = delete;

  const std::shared_ptr<ClientAccount>& account() const { return account_; }
  void release() {
    if (account_) account_->connections.fetch_sub(1, std::memory_order_relaxed);
    account_.reset();
  }

 private:
  std::shared_ptr<ClientAccount> account_;
};

}  // namespace hadal::server
