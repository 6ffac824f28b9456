#include "comm/lone_communicator.h"

namespace hadal {
namespace {

DevicePlaces same_places(std::byte* memory, int64_t place_bytes) {
  DevicePlaces places{.memory = {}, .place_bytes = place_bytes};
  places.memory.fill(memory);
  return places;
}

}  // namespace

LoneCommunicator::LoneCommunicator(int rank, int num_ranks, std::byte* memory, int64_t place_bytes)
    : DeviceCommunicator(rank, num_ranks, same_places(memory, place_bytes)) {}

LoneCommunicator LoneCommunicator::measuring(int rank, int num_ranks) {
  constexpr int64_t kAnySize = int64_t{1} << 40;
  return {rank, num_ranks, reinterpret_cast<std::byte*>(kPlaceAlignment), kAnySize};
}

}  // namespace hadal
