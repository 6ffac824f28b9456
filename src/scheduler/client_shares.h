// ClientShares keeps an eighth of the slots and of the pages for clients that have few requests running. So a
// client whose requests take everything does not make another wait until one of them ends. It holds only
// while others are there: a client that has had no company for kCompanySteps may use everything.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace hadal {

class ClientShares {
 public:
  // `num_slots` and `num_pages` are those of the whole engine. With fewer than eight slots nothing is kept.
  ClientShares(int64_t num_slots, int64_t num_pages)
      : kept_slots_(num_slots / kPart), kept_pages_(kept_slots_ == 0 ? 0 : num_pages / kPart) {}

  void take_slot(uint64_t client) { ++slots_[client]; }
  void give_slot(uint64_t client);
  // Notes that a request of `client` runs at `step`; steps do not decrease. Client 0 stands for nobody who is
  // known, such as the server's own probes, and is no company.
  void see(uint64_t client, int64_t step);

  // Returns true if `client` must leave the kept slots and pages free at `step`: another client was seen not
  // long ago, and this one has at least as many slots as are kept.
  bool must_leave_room(uint64_t client, int64_t step) const;
  int64_t kept_slots() const { return kept_slots_; }
  int64_t kept_pages() const { return kept_pages_; }

  // Returns the slots that clients hold, for check_integrity().
  const std::unordered_map<uint64_t, int64_t>& slots() const { return slots_; }

  static constexpr int64_t kPart = 8;
  static constexpr int64_t kCompanySteps = 4096;  // about a minute

 private:
  static constexpr int64_t kNever = -kCompanySteps - 1;

  int64_t kept_slots_;
  int64_t kept_pages_;
  std::unordered_map<uint64_t, int64_t> slots_;  // held, by client; none is 0
  uint64_t latest_client_ = 0;                   // the client seen last …
  int64_t latest_step_ = kNever;                 // … at this step
  int64_t other_step_ = kNever;                  // when a client other than this was last seen
};

}  // namespace hadal
