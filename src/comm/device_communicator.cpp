#include "comm/device_communicator.h"

#include <algorithm>

#include "base/check.h"
#include "comm/collective_choice.h"
#include "kernels/cuda/comm/comm.h"

namespace hadal {

DeviceCommunicator::DeviceCommunicator(int rank, int num_ranks, const DevicePlaces& places)
    : rank_(rank), num_ranks_(num_ranks), places_(places) {
  HADAL_CHECK(num_ranks >= 1 && num_ranks <= cuda::kMaxRanks, "{} ranks, allowed are 1 to {}", num_ranks,
              cuda::kMaxRanks);
  HADAL_CHECK(rank >= 0 && rank < num_ranks, "rank {} of {}", rank, num_ranks);
  HADAL_CHECK(places.place_bytes >= 0 && places.place_bytes % kPlaceAlignment == 0,
              "a place of {} bytes, which has to be a multiple of {}", places.place_bytes, kPlaceAlignment);
}

void DeviceCommunicator::begin_step() {
  HADAL_CHECK(!in_step_, "rank {} is in a step", rank_);
  begin_turn();
  in_step_ = true;
  place_ = 0;
  tally_ = {};
}

void DeviceCommunicator::end_step(const cuda::Launch& launch) {
  HADAL_CHECK(in_step_, "rank {} is in no step", rank_);
  if (place_ != 0) exchange(launch, 0);
  end_turn(launch);
  in_step_ = false;
}

void* DeviceCommunicator::partial(int64_t bytes) {
  HADAL_CHECK(bytes >= 0 && bytes <= places_.place_bytes,
              "a part of {} bytes is to be exchanged between ranks, allowed are 0 to {}", bytes,
              places_.place_bytes);
  most_part_bytes_ = std::max(most_part_bytes_, bytes);
  return places_.memory[rank_] + place_ * places_.place_bytes;
}

cuda::ExchangedParts DeviceCommunicator::exchange(const cuda::Launch& launch, int64_t bytes_from_each) {
  HADAL_CHECK(in_step_, "rank {} is in no step", rank_);
  wait_for_all(launch);
  cuda::ExchangedParts exchanged{.parts = {}, .num_ranks = num_ranks_};
  for (int rank = 0; rank < num_ranks_; ++rank) {
    exchanged.parts[rank] = places_.memory[rank] + place_ * places_.place_bytes;
  }
  place_ = 1 - place_;
  count(bytes_from_each);
  return exchanged;
}

const cuda::ExchangeParams* DeviceCommunicator::small_exchange(const cuda::Launch& launch,
                                                               int64_t part_bytes) {
  HADAL_CHECK(in_step_, "rank {} is in no step", rank_);
  const cuda::ExchangeParams* const params = device_params(launch);
  if (params == nullptr || part_bytes == 0 || part_bytes > cuda::kMaxLinesBytes) return nullptr;
  count(2 * part_bytes);  // half of a line is data
  return params;
}

void DeviceCommunicator::count(int64_t bytes_from_each) {
  ++tally_.num_exchanges;
  tally_.bytes_received += (num_ranks_ - 1) * bytes_from_each;
  tally_.modelled_us += exchange_us(bytes_from_each, num_ranks_);
}

}  // namespace hadal
