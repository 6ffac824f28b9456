#include "comm/loopback.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "comm/loopback_call.h"
#include "comm/reason.h"
#include "comm/wait.h"

namespace hadal {

// A call has up to two gates, which are barriers of all ranks. Whether a call succeeds is decided when the
// last rank arrives at the first gate: a failure or the deadline can only close a gate that some rank has not
// yet reached. After the first gate each rank does its part, for which it reads and writes memory of all
// ranks. It then waits at the second gate without a deadline, because a rank that left early would free
// memory that another still reads.
struct LoopbackGroup::Shared {
  Shared(int ranks, std::chrono::milliseconds limit);

  enum class State : uint8_t { kWorking, kFailed, kLost };
  struct Gate {
    int num_arrived = 0;
    std::atomic<uint64_t> num_passed{0};  // how often it has opened
  };
  struct Seen {
    uint64_t number = 0;  // counts calls of the group from 1; 0 means none
    CallKind kind = CallKind::kBarrier;
  };

  void enter(int rank, const LoopbackCall& call);
  void leave() noexcept;
  // The caller of these functions holds the mutex.
  [[noreturn]] void throw_failure() const;
  void lose_missing(int waiting, CallKind kind) noexcept;
  void lose(int rank, int num_lost, std::string_view done) noexcept;

  const int num_ranks;
  const std::chrono::milliseconds deadline;
  const int spins;
  std::mutex mutex;  // guards what is below; atomics are written under it and may be read without it
  std::condition_variable changed;
  std::atomic<State> state{State::kWorking};
  Reason reason;  // of a state other than kWorking
  Gate first_gate;
  Gate second_gate;
  // Between the gates nothing writes `calls` or `misfit`, and all ranks read them without the mutex.
  LoopbackCalls calls;     // [num_ranks]
  Misfit misfit;           // of the last call that all ranks have entered
  std::vector<Seen> seen;  // [num_ranks]
  std::vector<End> ends;   // [num_ranks]
};

class LoopbackGroup::End : public Communicator {
 public:
  End(Shared& shared, int rank) : shared_(shared), rank_(rank) {}

  int rank() const override { return rank_; }
  int num_ranks() const override { return shared_.num_ranks; }

  void all_reduce(std::span<float> data) override {
    const LoopbackCall call{.kind = CallKind::kAllReduce, .data = data};
    shared_.enter(rank_, call);
    if (shared_.num_ranks > 1) do_all_reduce(shared_.calls, rank_);
    shared_.leave();
  }

  void reduce_scatter(std::span<float> data, std::span<float> mine) override {
    const LoopbackCall call{.kind = CallKind::kReduceScatter, .data = data, .sum = mine};
    shared_.enter(rank_, call);
    do_reduce_scatter(shared_.calls, rank_);
    shared_.leave();
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const LoopbackCall call{.kind = CallKind::kAllGather, .mine = mine, .all = all};
    shared_.enter(rank_, call);
    do_all_gather(shared_.calls, rank_);
    shared_.leave();
  }

  void all_to_all(std::span<const std::span<const std::byte>> send,
                  std::span<const std::span<std::byte>> receive) override {
    const LoopbackCall call{.kind = CallKind::kAllToAll, .send = send, .receive = receive};
    shared_.enter(rank_, call);
    do_all_to_all(shared_.calls, rank_);
    shared_.leave();
  }

  void barrier() override { shared_.enter(rank_, {.kind = CallKind::kBarrier}); }

 private:
  Shared& shared_;
  const int rank_;
};

LoopbackGroup::Shared::Shared(int ranks, std::chrono::milliseconds limit)
    : num_ranks(ranks), deadline(limit), spins(spin_limit(ranks)) {
  HADAL_CHECK(ranks >= 1, "a group has {} ranks, and must have at least 1", ranks);
  check_deadline(limit);
  calls.resize(ranks);
  seen.resize(ranks);
  ends.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) ends.emplace_back(*this, rank);
}

// Publishes the rank's call and returns once all ranks have published theirs. Throws if the calls do not fit
// together, or if the group has failed.
void LoopbackGroup::Shared::enter(int rank, const LoopbackCall& call) {
  std::unique_lock lock(mutex);
  if (state.load(std::memory_order_relaxed) != State::kWorking) throw_failure();
  const uint64_t number = first_gate.num_passed.load(std::memory_order_relaxed) + 1;
  calls[rank] = &call;
  seen[rank] = {number, call.kind};
  if (++first_gate.num_arrived == num_ranks) {
    misfit = find_misfit(calls);
    first_gate.num_arrived = 0;
    first_gate.num_passed.store(number, std::memory_order_release);
    lock.unlock();
    changed.notify_all();
  } else {
    lock.unlock();
    const auto passed = [&] { return first_gate.num_passed.load(std::memory_order_acquire) == number; };
    const auto decided = [&] { return passed() || state.load(std::memory_order_acquire) != State::kWorking; };
    if (!spin_until(spins, decided)) {
      lock.lock();
      auto left = deadline;
      while (!decided() && left > std::chrono::milliseconds::zero()) {
        const auto slice = std::min(left, kWaitSlice);
        if (!changed.wait_for(lock, slice, decided)) left -= slice;
      }
      if (!decided()) lose_missing(rank, call.kind);
      lock.unlock();
    }
    if (!passed()) {
      lock.lock();
      throw_failure();
    }
  }
  // `misfit` stays as it is until this rank enters its next call.
  HADAL_CHECK(misfit.pattern == nullptr, "{}", describe(misfit));
}

// Returns once no rank uses the memory of another rank any more.
void LoopbackGroup::Shared::leave() noexcept {
  std::unique_lock lock(mutex);
  const uint64_t number = second_gate.num_passed.load(std::memory_order_relaxed) + 1;
  if (++second_gate.num_arrived == num_ranks) {
    second_gate.num_arrived = 0;
    second_gate.num_passed.store(number, std::memory_order_release);
    lock.unlock();
    changed.notify_all();
    return;
  }
  lock.unlock();
  const auto passed = [&] { return second_gate.num_passed.load(std::memory_order_acquire) == number; };
  if (spin_until(spins, passed)) return;
  lock.lock();
  changed.wait(lock, passed);
}

void LoopbackGroup::Shared::throw_failure() const {
  if (state.load(std::memory_order_relaxed) == State::kLost) throw RankLost(std::string(reason.text()));
  throw RankFailed(std::string(reason.text()));
}

void LoopbackGroup::Shared::lose_missing(int waiting, CallKind kind) noexcept {
  const uint64_t number = first_gate.num_passed.load(std::memory_order_relaxed) + 1;
  int first = -1;
  for (int rank = num_ranks - 1; rank >= 0; --rank) {
    if (seen[rank].number != number) first = rank;
  }
  Reason done;
  done.append("made call {} ({}), as rank {} has", number, to_string(kind), waiting);
  lose(first, num_ranks - first_gate.num_arrived, done.text());
}

void LoopbackGroup::Shared::lose(int rank, int num_lost, std::string_view done) noexcept {
  const State before = state.load(std::memory_order_relaxed);
  if (before == State::kLost) return;
  Reason lost;
  lost.append("rank {} is lost", rank);
  if (num_lost > 1) lost.append(", and {} more", num_lost - 1);
  lost.append(": within {} ms it has not {}; ", deadline.count(), done);
  if (seen[rank].number == 0) {
    lost.append("it has made no call");
  } else {
    lost.append("the last call seen of it is {} ({})", seen[rank].number, to_string(seen[rank].kind));
  }
  if (before == State::kFailed) lost.append("; before that, {}", reason.text());
  reason = lost;
  state.store(State::kLost, std::memory_order_release);
  changed.notify_all();
}

LoopbackGroup::LoopbackGroup(int num_ranks, std::chrono::milliseconds deadline)
    : shared_(std::make_unique<Shared>(num_ranks, deadline)) {}
LoopbackGroup::~LoopbackGroup() = default;

int LoopbackGroup::num_ranks() const {
  return shared_->num_ranks;
}

Communicator& LoopbackGroup::end(int rank) {
  HADAL_CHECK(rank >= 0 && rank < shared_->num_ranks, "rank {} of {}", rank, shared_->num_ranks);
  return shared_->ends[rank];
}

void LoopbackGroup::fail(int rank, std::string_view why) noexcept {
  std::lock_guard lock(shared_->mutex);
  if (shared_->state.load(std::memory_order_relaxed) != Shared::State::kWorking) return;
  shared_->reason = {};
  shared_->reason.append("rank {}: {}", rank, why);
  shared_->state.store(Shared::State::kFailed, std::memory_order_release);
  shared_->changed.notify_all();
}

void LoopbackGroup::lose(int rank, int num_lost, std::string_view done) noexcept {
  std::lock_guard lock(shared_->mutex);
  shared_->lose(rank, num_lost, done);
}

void LoopbackGroup::recover() {
  std::lock_guard lock(shared_->mutex);
  if (shared_->state.load(std::memory_order_relaxed) == Shared::State::kLost) shared_->throw_failure();
  // A call that only some ranks have entered keeps its number, so that the number of the next call is new to
  // all ranks.
  if (shared_->first_gate.num_arrived > 0) shared_->first_gate.num_passed.fetch_add(1);
  shared_->first_gate.num_arrived = 0;
  shared_->state.store(Shared::State::kWorking, std::memory_order_release);
}

}  // namespace hadal
