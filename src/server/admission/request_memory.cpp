#include "server/admission/request_memory.h"

#include <algorithm>
#include <limits>

#include "base/printable.h"

namespace hadal::server {
namespace {

constexpr std::array<std::string_view, kNumMemoryKinds> kNames = {
    "connection", "header", "body", "json", "prompt", "choice", "logprob", "output", "grammar"};
// Errors to clients contain these texts.
constexpr std::array<std::string_view, kNumMemoryKinds> kTexts = {
    "its connection",    "its headers", "its body",   "the values of its JSON", "its prompt", "its choices",
    "log-probabilities", "its answer",  "its grammar"};

}  // namespace

std::string_view to_string(MemoryKind kind) {
  return kNames.at(static_cast<size_t>(kind));
}

bool RequestMemory::take(MemoryKind kind, size_t bytes) noexcept {
  return take_within(kind, bytes, std::numeric_limits<size_t>::max()) == Taken::kTaken;
}

RequestMemory::Taken RequestMemory::take_within(MemoryKind kind, size_t bytes, size_t kind_limit) noexcept {
  if (bytes == 0) return Taken::kTaken;
  if (server_ == nullptr) {
    const Taken taken = take_here(kind, bytes, kind_limit);
    if (taken == Taken::kReached) count_refusal(kind);
    return taken;
  }
  if (!take_of_client(kind, bytes)) return Taken::kReached;
  const Taken taken = server_->take_within(kind, bytes, kind_limit);
  if (taken != Taken::kTaken) give_back_here(kind, bytes);
  return taken;
}

RequestMemory::Taken RequestMemory::take_here(MemoryKind kind, size_t bytes, size_t kind_limit) noexcept {
  // Neither sum exceeds its limit even for a moment, because other threads would read bytes that are not
  // held.
  const auto fits = [bytes](size_t sum, size_t limit) { return bytes <= limit && sum <= limit - bytes; };
  const auto add = [&](std::atomic<size_t>& sum, size_t limit) {
    size_t before = sum.load(std::memory_order_relaxed);
    while (fits(before, limit)) {
      if (sum.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed)) return true;
    }
    return false;
  };
  std::atomic<size_t>& of_kind = bytes_[index(kind)];
  if (!fits(of_kind.load(std::memory_order_relaxed), kind_limit)) return Taken::kKindReached;
  if (!add(total_, limit_)) return Taken::kReached;
  if (add(of_kind, kind_limit)) return Taken::kTaken;
  total_.fetch_sub(bytes, std::memory_order_relaxed);
  return Taken::kKindReached;
}

bool RequestMemory::take_of_client(MemoryKind kind, size_t bytes) noexcept {
  if (take_here(kind, bytes, std::numeric_limits<size_t>::max()) == Taken::kTaken) return true;
  count_refusal(kind);
  return false;
}

void RequestMemory::take_always(MemoryKind kind, size_t bytes) noexcept {
  if (server_ != nullptr) server_->take_always(kind, bytes);
  total_.fetch_add(bytes, std::memory_order_relaxed);
  bytes_[index(kind)].fetch_add(bytes, std::memory_order_relaxed);
}

void RequestMemory::give_back(MemoryKind kind, size_t bytes) noexcept {
  give_back_here(kind, bytes);
  if (server_ != nullptr) server_->give_back(kind, bytes);
}

void RequestMemory::give_back_here(MemoryKind kind, size_t bytes) noexcept {
  bytes_[index(kind)].fetch_sub(bytes, std::memory_order_relaxed);
  total_.fetch_sub(bytes, std::memory_order_relaxed);
}

bool RequestMemory::hold_shared(MemoryKind kind, const void* part, size_t bytes) {
  const std::lock_guard lock(shared_mutex_);
  const auto [at, is_new] = shared_.try_emplace(part, SharedPart{kind, bytes});
  // A client's ledger holds the part in the server's as one holder, however many requests of it do.
  const auto hold = [&] {
    if (server_ == nullptr) return take(kind, bytes);
    if (!take_of_client(kind, bytes)) return false;
    if (server_->hold_shared(kind, part, bytes)) return true;
    give_back_here(kind, bytes);
    return false;
  };
  if (is_new && !hold()) {
    shared_.erase(at);
    return false;
  }
  ++at->second.num_holders;
  return true;
}

void RequestMemory::release_shared(const void* part) noexcept {
  const std::lock_guard lock(shared_mutex_);
  const auto at = shared_.find(part);
  if (--at->second.num_holders > 0) return;
  give_back_here(at->second.kind, at->second.bytes);
  if (server_ != nullptr) server_->release_shared(part);
  shared_.erase(at);
}

MemoryCharge& MemoryCharge::operator=(MemoryCharge&& other) noexcept {
  if (this == &other) return *this;
  clear();
  memory_ = std::move(other.memory_);
  bytes_ = std::exchange(other.bytes_, {});
  shared_ = std::exchange(other.shared_, {});
  return *this;
}

RequestMemory::Taken MemoryCharge::add_within(MemoryKind kind, size_t bytes, size_t kind_limit) noexcept {
  using Taken = RequestMemory::Taken;
  if (memory_ == nullptr) return Taken::kTaken;
  const Taken taken = memory_->take_within(kind, bytes, kind_limit);
  if (taken == Taken::kTaken) bytes_[static_cast<size_t>(kind)] += bytes;
  return taken;
}

bool MemoryCharge::try_add(MemoryKind kind, size_t bytes) noexcept {
  return add_within(kind, bytes, std::numeric_limits<size_t>::max()) == RequestMemory::Taken::kTaken;
}

Result<void> MemoryCharge::add(MemoryKind kind, size_t bytes) {
  if (try_add(kind, bytes)) return {};
  return memory_exhausted(*memory_, kind, bytes);
}

void MemoryCharge::set(MemoryKind kind, size_t bytes) noexcept {
  size_t& mine = bytes_[static_cast<size_t>(kind)];
  if (memory_ == nullptr || bytes == mine) return;
  if (bytes > mine) {
    memory_->take_always(kind, bytes - mine);
  } else {
    memory_->give_back(kind, mine - bytes);
  }
  mine = bytes;
}

Result<void> MemoryCharge::add_shared(MemoryKind kind, std::shared_ptr<const void> part, size_t bytes) {
  if (memory_ == nullptr || std::find(shared_.begin(), shared_.end(), part) != shared_.end()) return {};
  shared_.push_back(std::move(part));
  struct Undo {
    std::vector<std::shared_ptr<const void>>* list;
    ~Undo() {
      if (list != nullptr) list->pop_back();
    }
  } undo{&shared_};
  if (!memory_->hold_shared(kind, shared_.back().get(), bytes))
    return memory_exhausted(*memory_, kind, bytes);
  undo.list = nullptr;
  return {};
}

void MemoryCharge::clear() noexcept {
  if (memory_ == nullptr) return;
  for (const auto& part : std::exchange(shared_, {})) memory_->release_shared(part.get());
  for (size_t i = 0; i < kNumMemoryKinds; ++i) {
    if (bytes_[i] != 0) memory_->give_back(static_cast<MemoryKind>(i), std::exchange(bytes_[i], 0));
  }
}

Status memory_exhausted(const RequestMemory& memory, MemoryKind kind, size_t bytes) {
  return make_status(StatusCode::kResourceExhausted,
                     "the memory for {} is in use ({}max-request-memory): this one needs {} for {}, {} "
                     "of {} are free; try again later",
                     memory.is_client_full() ? "this client's requests" : "all requests",
                     memory.is_client_full() ? "7/8 of " : "", shown_bytes(bytes),
                     kTexts.at(static_cast<size_t>(kind)), shown_bytes(memory.free()),
                     shown_bytes(memory.is_client_full() ? memory.limit() : memory.full_limit()));
}

}  // namespace hadal::server
