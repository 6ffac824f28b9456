// LoopbackGroup connects ranks that are threads of one process and share its memory: a rank publishes the
// addresses of its data, and the other ranks read the data there.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace hadal {

class LoopbackGroup {
 public:
  // If a rank does not enter a call within `deadline` (at most 24 hours) after another rank has entered it,
  // the rank is lost (RankLost). Once all ranks have entered a call, they wait for each other without a
  // deadline while they move data, because a rank that gave up would free memory that another rank reads.
  LoopbackGroup(int num_ranks, std::chrono::milliseconds deadline);
  ~LoopbackGroup();
  LoopbackGroup(const LoopbackGroup&) = delete;
  LoopbackGroup& operator=(const LoopbackGroup&) = delete;

  int num_ranks() const;
  // Returns the end of a rank, which lives as long as the group.
  Communicator& end(int rank);

  // Makes every call that is yet to come, or that some rank has not entered yet, throw RankFailed with "rank
  // R: why". A call that all ranks have entered still returns on all of them. Failures after the first are
  // ignored. Any thread may call it; it allocates nothing.
  void fail(int rank, std::string_view why) noexcept;

  // Makes these calls throw RankLost instead, for `num_lost` ranks of which `rank` is the first. The message
  // is "rank R is lost: within D ms it has not <done>; …", followed by the last call that the rank was seen
  // to enter. A loss replaces a failure. A call that exceeds the deadline calls this itself.
  void lose(int rank, int num_lost, std::string_view done) noexcept;

  // Makes the group usable again after a failure. No rank may be in a call. Throws RankLost if a rank is
  // lost, because such a group stays unusable.
  void recover();

 private:
  struct Shared;
  class End;
  std::unique_ptr<Shared> shared_;
};

}  // namespace hadal
