// Counts the memory that requests hold before it is taken, and bounds it by one limit (--max-request-memory).
//
// A request carries a MemoryCharge from the first byte of its headers to the end of its answer. Memory that
// it will hold is added before it is allocated, by the estimates of server/admission/memory_costs.h. Whatever
// has not been given back before is given back when the charge is destroyed. So the ledger of a server
// without connections contains zeros.
//
// Each client has a ledger of its own, which is a part of the server's: what it counts, the server's counts,
// too. Its limit is 7/8 of the server's, so that one client's requests leave memory to others.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal::server {

enum class MemoryKind {
  kConnection,  // open connections themselves (server/http/http_ledger.h)
  kHeader,      // request lines and headers, and bytes that wait to be parsed (server/http/http_ledger.h)
  kBody,        // bodies that arrive or are being parsed
  kJson,        // their values, while they are read
  kPrompt,      // texts and token ids of prompts, and what tokenising them takes
  kChoice,      // what choices need besides: their prompt in the engine, their state, their rids
  kLogprob,     // log-probabilities, as numbers and as JSON
  kOutput,      // tokens and texts of answers, and answers that wait for their client
  kGrammar,     // grammars in use, their matchers and masks
};
inline constexpr size_t kNumMemoryKinds = 9;
std::string_view to_string(MemoryKind kind);  // "connection", "header", …

// This is the ledger of one server, or of one client. Any thread may call; the counters are exact.
class RequestMemory {
 public:
  explicit RequestMemory(size_t limit) : limit_(limit) {}
  // Makes the ledger of a client of `server`.
  explicit RequestMemory(std::shared_ptr<RequestMemory> server)
      : limit_(server->limit() - server->limit() / 8), server_(std::move(server)) {}
  RequestMemory(const RequestMemory&) = delete;
  RequestMemory& operator=(const RequestMemory&) = delete;

  // Counts `bytes` more. If the limit forbids that, nothing changes but the number of refusals.
  bool take(MemoryKind kind, size_t bytes) noexcept;
  enum class Taken { kTaken, kKindReached, kReached };
  // Does the same if this kind also stays within `kind_limit`. A refusal because of `kind_limit` is not
  // counted in this ledger.
  Taken take_within(MemoryKind kind, size_t bytes, size_t kind_limit) noexcept;
  // Counts a refusal by a limit that is not this ledger's.
  void count_refusal(MemoryKind kind) noexcept {
    if (server_ != nullptr) return server_->count_refusal(kind);
    refused_[index(kind)].fetch_add(1, std::memory_order_relaxed);
  }
  // Counts bytes whatever the limit says, because they exist already.
  void take_always(MemoryKind kind, size_t bytes) noexcept;
  void give_back(MemoryKind kind, size_t bytes) noexcept;

  // Count memory that several requests share: the first holder of `part` takes its bytes, and the last one
  // gives them back. The part lives as long as it has holders. Like take(), hold_shared() returns false and
  // changes nothing if the limit does not allow the bytes.
  bool hold_shared(MemoryKind kind, const void* part, size_t bytes);
  void release_shared(const void* part) noexcept;

  // Says whether the limit would allow `bytes` more now.
  bool has_room(size_t bytes) const {
    return total() <= limit_ && bytes <= limit_ - total() && (server_ == nullptr || server_->has_room(bytes));
  }
  // Returns how many more bytes the limit allows.
  size_t free() const {
    const size_t here = limit_ - std::min(limit_, total());
    return server_ == nullptr ? here : std::min(here, server_->free());
  }
  // Returns true if this ledger's own limit, not the server's, allows the fewest bytes.
  bool is_client_full() const { return server_ != nullptr && free() < server_->free(); }

  size_t limit() const { return limit_; }
  size_t full_limit() const { return server_ == nullptr ? limit_ : server_->limit(); }  // of the server
  size_t total() const { return total_.load(std::memory_order_relaxed); }
  size_t bytes(MemoryKind kind) const { return bytes_[index(kind)].load(std::memory_order_relaxed); }
  int64_t refused(MemoryKind kind) const { return refused_[index(kind)].load(std::memory_order_relaxed); }

 private:
  static size_t index(MemoryKind kind) { return static_cast<size_t>(kind); }
  // Count in this ledger alone.
  Taken take_here(MemoryKind kind, size_t bytes, size_t kind_limit) noexcept;
  bool take_of_client(MemoryKind kind, size_t bytes) noexcept;  // counts a refusal
  void give_back_here(MemoryKind kind, size_t bytes) noexcept;

  const size_t limit_;
  const std::shared_ptr<RequestMemory> server_;  // null: this is the server's
  std::atomic<size_t> total_{0};
  std::array<std::atomic<size_t>, kNumMemoryKinds> bytes_{};
  std::array<std::atomic<int64_t>, kNumMemoryKinds> refused_{};

  struct SharedPart {
    MemoryKind kind = MemoryKind::kGrammar;
    size_t bytes = 0;
    int64_t num_holders = 0;
  };
  std::mutex shared_mutex_;  // guards shared_
  std::unordered_map<const void*, SharedPart> shared_;
};

// Holds what one request, or one part of it, has counted. One thread may call it at a time.
class MemoryCharge {
 public:
  // A null `memory` counts nothing and refuses nothing.
  explicit MemoryCharge(std::shared_ptr<RequestMemory> memory = nullptr) : memory_(std::move(memory)) {}
  ~MemoryCharge() { clear(); }
  MemoryCharge(MemoryCharge&& other) noexcept
      : memory_(std::move(other.memory_)),
        bytes_(std::exchange(other.bytes_, {})),
        shared_(std::exchange(other.shared_, {})) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept;

  // Counts `bytes` more for this charge. Beyond the limit nothing changes, and the error is
  // kResourceExhausted.
  Result<void> add(MemoryKind kind, size_t bytes);
  // Does the same as add() but builds no error.
  bool try_add(MemoryKind kind, size_t bytes) noexcept;
  // Does the same as RequestMemory::take_within.
  RequestMemory::Taken add_within(MemoryKind kind, size_t bytes, size_t kind_limit) noexcept;
  // Counts exactly `bytes` of this kind from now on, whatever the limit says, because they exist already.
  void set(MemoryKind kind, size_t bytes) noexcept;
  // Holds memory that other charges may share, which is counted once for all of them, and keeps it alive. A
  // second call for the same part changes nothing. The error is that of add().
  Result<void> add_shared(MemoryKind kind, std::shared_ptr<const void> part, size_t bytes);
  // Gives everything back.
  void clear() noexcept;

  // Returns what this charge has counted alone.
  size_t bytes(MemoryKind kind) const { return bytes_[static_cast<size_t>(kind)]; }
  const std::shared_ptr<RequestMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<RequestMemory> memory_;
  std::array<size_t, kNumMemoryKinds> bytes_{};
  std::vector<std::shared_ptr<const void>> shared_;
};

// Returns the error of a request for `bytes` more of this kind, which the limit does not allow.
Status memory_exhausted(const RequestMemory& memory, MemoryKind kind, size_t bytes);

}  // namespace hadal::server
