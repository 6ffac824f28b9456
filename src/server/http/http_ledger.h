// Counts the resources of the server that clients hold at this moment, and how often their requests were
// refused. Any thread may call everything but the charges, each of which belongs to one thread at a time. The
// counters are exact. Bytes are counted in RequestMemory; a client's account only repeats how many of them
// are bodies of that client.
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

#include "server/admission/request_memory.h"

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
  ClientAccount(std::string client, std::shared_ptr<RequestMemory> server)
      : name(std::move(client)), memory(std::move(server)) {}
  const std::string name;  // "peer:127.0.0.1", "key:alice"
  RequestMemory memory;    // what the client's requests hold once the client is known
  std::atomic<size_t> body_bytes{0};
  std::atomic<int> connections{0};
};

// Returns the client's ledger, with which the account lives on.
inline std::shared_ptr<RequestMemory> memory_of(std::shared_ptr<ClientAccount> account) {
  RequestMemory* const memory = &account->memory;
  return {std::move(account), memory};
}

class HttpLedger : public std::enable_shared_from_this<HttpLedger> {
 public:
  // Without `memory` the ledger has one of its own, without a limit.
  explicit HttpLedger(std::shared_ptr<RequestMemory> memory);

  // Returns the account of this name, which exists as long as anything holds the pointer.
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
  size_t body_bytes() const { return memory_->bytes(MemoryKind::kBody); }
  const std::shared_ptr<RequestMemory>& memory() const { return memory_; }  // never null

 private:
  const std::shared_ptr<RequestMemory> memory_;
  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<ClientAccount>, std::less<>> accounts_;  // guarded by mutex_
  std::array<std::atomic<int64_t>, kNumRefusals> refused_{};
  std::atomic<int64_t> idle_cuts_{0};
};

// These are upper estimates in bytes for the head of a request; server/admission/memory_costs.h has those for
// the rest of the request. A test compares them with what is really allocated.
//
// The request line is kept by the request and, for the log, by its exchange.
inline size_t request_line_bytes(size_t method, size_t target) {
  return 2 * (method + target) + 128;
}
// A header is a pair of strings in a list. While the list grows, its old and its new array both exist, so
// each header may take up to three entries.
inline size_t header_field_bytes(size_t name, size_t value) {
  return name + value + 3 * sizeof(std::pair<std::string, std::string>) + 64;
}
// Bytes that wait to be parsed are in a string. While it grows, its old and its new buffer both exist.
inline size_t waiting_bytes(size_t size) {
  return 3 * size;
}

// Anybody who can connect may open connections and send headers. They must not use up the memory that clients
// with a key need, so all connections together have this much, and so have all heads.
inline size_t share_of_strangers(const RequestMemory& memory) {
  return memory.limit() / 8;
}

// These are upper estimates in bytes for a connection without a request, with the two buffers that it keeps
// between two answers, and for what TLS adds: OpenSSL's state, and records of which only a part has arrived
// or has been sent. Tests compare them with what a process really uses.
inline constexpr size_t kConnectionBytes = size_t{8} << 10;
inline constexpr size_t kTlsBytes = size_t{128} << 10;
inline constexpr size_t kKeptBufferBytes = size_t{2} << 10;  // the most that each of the two buffers keeps

// HeadCharge is the memory of one request's line and headers, or of bytes that wait to be parsed. It is
// counted in blocks. The first block is granted whatever the limit says, because a server without memory must
// still answer small requests: /health, and errors that say that memory is missing.
class HeadCharge {
 public:
  static constexpr size_t kBlock = size_t{8} << 10;
  static size_t limit(const RequestMemory& memory) { return share_of_strangers(memory); }
  // Returns true if all heads together may take `bytes` more now.
  static bool has_room(const RequestMemory& memory, size_t bytes) {
    const size_t taken = memory.bytes(MemoryKind::kHeader);
    return memory.has_room(bytes) && taken <= limit(memory) && bytes <= limit(memory) - taken;
  }

  explicit HeadCharge(std::shared_ptr<RequestMemory> memory) : memory_(std::move(memory)) {}

  // Counts at least `bytes` in all. If a limit forbids that, it returns false and keeps at least the first
  // block.
  bool grow_to(size_t bytes) noexcept;
  void clear() noexcept { memory_.clear(); }

 private:
  MemoryCharge memory_;
};

// BodyCharge is the memory of one request's body, counted for its client and in the total from before it is
// allocated until this object is destroyed.
class BodyCharge {
 public:
  explicit BodyCharge(std::shared_ptr<ClientAccount> account)
      : account_(std::move(account)), memory_(memory_of(account_)) {}
  ~BodyCharge() { account_->body_bytes -= bytes(); }
  BodyCharge(const BodyCharge&) = delete;
  BodyCharge& operator=(const BodyCharge&) = delete;

  enum class Outcome { kGranted, kTotalReached, kClientReached, kMemoryReached };
  // Counts `bytes` in all, which is at least what was counted before. If a limit forbids that, nothing
  // changes.
  Outcome grow_to(size_t bytes, size_t total_limit, size_t client_limit);

 private:
  size_t bytes() const { return memory_.bytes(MemoryKind::kBody); }

  const std::shared_ptr<ClientAccount> account_;
  MemoryCharge memory_;
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
