#include "comm/in_turns.h"

#include <utility>

#include "base/check.h"

namespace hadal {

InTurns::InTurns(Communicator& host, const DevicePlaces& places,
                 std::function<void(StreamHandle)> synchronize)
    : DeviceCommunicator(host.rank(), host.num_ranks(), places),
      host_(host),
      synchronize_(std::move(synchronize)) {
  HADAL_CHECK(synchronize_ != nullptr, "turns need a function that waits for a stream");
}

void InTurns::begin_turn() {
  for (int i = 0; i < rank(); ++i) host_.barrier();
}

void InTurns::end_turn(const cuda::Launch& launch) {
  synchronize_(launch.stream);
  for (int i = rank(); i < num_ranks(); ++i) host_.barrier();
}

void InTurns::wait_for_all(const cuda::Launch& launch) {
  end_turn(launch);
  begin_turn();
}

}  // namespace hadal
