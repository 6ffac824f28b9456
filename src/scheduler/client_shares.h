// ClientShares keeps an eighth of the slots and of the pages for clients that hold less than an eighth of
// both. So a client whose requests take everything does not make another wait until one of them ends. Only
// admission respects this: requests that run may grow into the kept pages. It holds only while others are
// there: a client that has had no company for kCompanySteps may use everything.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace hadal {

class ClientShares {
 public:
  // `num_slots` and `num_pages` are those of the whole engine. With fewer than eight slots nothing is kept.
  ClientShares(int64_t num_slots, int64_t num_pages)
      : kept_slots_(num_slots / kPart), kept_pages_(kept_slots_ == 0 ? 0 : num_pages / kPart) {}

  // Held is what the running requests of a client have. A page that several of them share counts for each.
  struct Held {
    int64_t slots = 0;
    int64_t pages = 0;
    bool operator==(const Held&) const = default;
  };

  // These note that a request starts with `num_pages` pages, gets one more, or gives all of its own back.
  void start(uint64_t client, int64_t num_pages);
  void grow(uint64_t client) { ++held_[client].pages; }
  void stop(uint64_t client, int64_t num_pages);
  // Notes that a request of `client` runs at `step`; steps do not decrease. Client 0 stands for nobody who is
  // known, such as the server's own probes, and is no company.
  void see(uint64_t client, int64_t step);

  // Returns true if `client` must leave the kept slots and pages free at `step`: another client was seen not
  // long ago, and this one has at least as many slots, or pages, as are kept.
  bool must_leave_room(uint64_t client, int64_t step) const;
  int64_t kept_slots() const { return kept_slots_; }
  int64_t kept_pages() const { return kept_pages_; }

  // Returns what clients hold, for check_integrity().
  const std::unordered_map<uint64_t, Held>& held() const { return held_; }

  static constexpr int64_t kPart = 8;
  static constexpr int64_t kCompanySteps = 4096;  // about a minute

 private:
  static constexpr int64_t kNever = -kCompanySteps - 1;

  int64_t kept_slots_;
  int64_t kept_pages_;
  std::unordered_map<uint64_t, Held> held_;  // by client; none has no slot
  uint64_t latest_client_ = 0;               // the client seen last …
  int64_t latest_step_ = kNever;             // … at this step
  int64_t other_step_ = kNever;              // when a client other than this was last seen
};

}  // namespace hadal
