// ClientShares keeps an eighth of the slots and an eighth of the pages for clients that hold less than an
// eighth of both. So a client whose requests fill the engine does not make another one wait until a request
// ends. Admission respects this (admission.cpp), and so does the growth of running requests while another
// client waits for pages (retraction.cpp). A client may use everything when no other client has had a request
// that ran or asked for admission for kCompanySteps steps.
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
  // Notes that a request of `client` runs or asks for admission at `step`; steps do not decrease.
  // Client 0 stands for all unknown clients, such as the server's own probes, and does not count as another
  // client.
  void see(uint64_t client, int64_t step);

  // Returns true if `client` must leave the kept slots and pages free at `step`: another client was seen in
  // the last kCompanySteps steps, and this one has at least as many slots, or pages, as are kept.
  bool must_leave_room(uint64_t client, int64_t step) const;
  // Returns how many pages the running requests of `client` have.
  int64_t pages_of(uint64_t client) const;
  int64_t kept_slots() const { return kept_slots_; }
  int64_t kept_pages() const { return kept_pages_; }

  // Returns what clients hold, for check_integrity().
  const std::unordered_map<uint64_t, Held>& held() const { return held_; }

  static constexpr int64_t kPart = 8;
  static constexpr int64_t kCompanySteps = 4096;  // steps; about a minute

 private:
  static constexpr int64_t kNever = -kCompanySteps - 1;

  int64_t kept_slots_;
  int64_t kept_pages_;
  std::unordered_map<uint64_t, Held> held_;  // by client; only clients that hold a slot
  uint64_t latest_client_ = 0;               // the client seen last
  int64_t latest_step_ = kNever;             // the step at which it was last seen
  int64_t other_step_ = kNever;              // when a client other than latest_client_ was last seen
};

}  // namespace hadal
