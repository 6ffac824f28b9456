// QueuePlaces holds places in an engine's queue that belong to one client and that no request uses yet.
// Engine::reserve returns such places, so that a request with many choices is refused before any of them has
// started. Engine::submit uses them one by one; the destructor returns the rest. One thread at a time uses
// the object, and it must not outlive its engine.
#pragma once

#include <cstdint>
#include <utility>

#include "base/result.h"

namespace hadal {

class Gate;  // engine/loop/gate.h

class QueuePlaces {
 public:
  QueuePlaces() = default;  // no places
  QueuePlaces(QueuePlaces&& other) noexcept
      : gate_(other.gate_), client_(other.client_), count_(std::exchange(other.count_, 0)) {}
  QueuePlaces& operator=(QueuePlaces&& other) noexcept;
  ~QueuePlaces() { give_back(); }

  int64_t count() const { return count_; }
  uint64_t client() const { return client_; }

 private:
  friend class Gate;
  QueuePlaces(Gate& gate, uint64_t client, int64_t count) : gate_(&gate), client_(client), count_(count) {}
  void give_back() noexcept;

  Gate* gate_ = nullptr;  // null only if there are no places
  uint64_t client_ = 0;
  int64_t count_ = 0;
};

}  // namespace hadal
