// Counts the memory that requests hold before it is taken, and bounds it by one limit (--max-request-memory).
//
// A request carries a MemoryCharge from the first byte of its headers to the end of its answer. Memory that
// it will hold is added before it is allocated, by the estimates of server/admission/memory_costs.h. Whatever
// has not been given back before is given back when the charge is destroyed. So the ledger of an idle server
// contains zeros.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace hadal::server {

enum class MemoryKind {
  kHeader,   // request lines and headers, and bytes that wait to be parsed (server/http/http_ledger.h)
  kBody,     // bodies that arrive or are being parsed
  kJson,     // their values, while they are read
  kPrompt,   // texts and token ids of prompts, and what tokenising them takes
  kChoice,   // what choices need besides: their prompt in the engine, their state, their rids
  kLogprob,  // log-probabilities, as numbers and as JSON
  kOutput,   // tokens and texts of answers, and answers that wait for their client
  kGrammar,  // grammars in use, their matchers and masks
};
inline constexpr size_t kNumMemoryKinds = 8;
std::string_view to_string(MemoryKind kind);  // "header", "body", …

// This is the ledger of one server. Any thread may call; the counters are exact.
class RequestMemory {
 public:
  explicit RequestMemory(size_t limit) : limit_(limit) {}
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
    refused_[index(kind)].fetch_add(1, std::memory_order_relaxed);
  }
  // Counts bytes whatever the limit says, because they exist already.
  void take_always(MemoryKind kind, size_t bytes) noexcept;
  void give_back(MemoryKind kind, size_t bytes) noexcept;

  // Says whether the limit would allow `bytes` more now.
  bool has_room(size_t bytes) const { return total() <= limit_ && bytes <= limit_ - total(); }

  size_t limit() const { return limit_; }
  size_t total() const { return total_.load(std::memory_order_relaxed); }
  size_t bytes(MemoryKind kind) const { return bytes_[index(kind)].load(std::memory_order_relaxed); }
  int64_t refused(MemoryKind kind) const { return refused_[index(kind)].load(std::memory_order_relaxed); }

 private:
  static size_t index(MemoryKind kind) { return static_cast<size_t>(kind); }

  const size_t limit_;
  std::atomic<size_t> total_{0};
  std::array<std::atomic<size_t>, kNumMemoryKinds> bytes_{};
  std::array<std::atomic<int64_t>, kNumMemoryKinds> refused_{};
};

// Holds what one request, or one part of it, has counted. One thread may call it at a time.
class MemoryCharge {
 public:
  // A null `memory` counts nothing and refuses nothing.
  explicit MemoryCharge(std::shared_ptr<RequestMemory> memory = nullptr) : memory_(std::move(memory)) {}
  ~MemoryCharge() { clear(); }
  MemoryCharge(MemoryCharge&& other) noexcept
      : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, {})) {}
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
  // Gives everything back.
  void clear() noexcept;

  size_t bytes(MemoryKind kind) const { return bytes_[static_cast<size_t>(kind)]; }
  const std::shared_ptr<RequestMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<RequestMemory> memory_;
  std::array<size_t, kNumMemoryKinds> bytes_{};
};

// Returns the error of a request for `bytes` more of this kind, which the limit does not allow.
Status memory_exhausted(const RequestMemory& memory, MemoryKind kind, size_t bytes);

}  // namespace hadal::server
