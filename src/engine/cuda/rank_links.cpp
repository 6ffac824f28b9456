#include "engine/cuda/rank_links.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "comm/in_turns.h"
#include "comm/lone_communicator.h"
#include "comm/peer_group.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "tensor/cuda.h"

namespace hadal {
namespace {

// An exchange fails after waiting this long on the device for another rank. Ranks launch the same work at the
// same time, so a rank that is so late will not arrive.
constexpr std::chrono::seconds kExchangeDeadline{10};

int64_t place_bytes_of(int64_t part_bytes) {
  return (std::max<int64_t>(part_bytes, 1) + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

class PeerLinks final : public RankLinks {
 public:
  PeerLinks(std::span<const int> devices, int64_t place_bytes)
      : group_(devices, place_bytes, kExchangeDeadline) {
    for (const int device : devices) cuda::load_exchanging_norms(device);
  }
  RankEnd end(Communicator& host) override {
    return {.device = &group_.end(host.rank(), &host), .host = &host};
  }

 private:
  PeerGroup group_;
};

class TurnLinks final : public RankLinks {
 public:
  TurnLinks(std::span<const int> devices, int64_t place_bytes) : ends_(devices.size()) {
    cuda_set_device(devices[0]);
    places_.place_bytes = place_bytes;
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      memory_.emplace_back(static_cast<size_t>(2 * place_bytes));
      places_.memory[rank] = memory_.back().data();
    }
  }
  RankEnd end(Communicator& host) override {
    std::unique_ptr<InTurns>& mine = ends_[static_cast<size_t>(host.rank())];
    mine = std::make_unique<InTurns>(host, places_, synchronize_stream);
    return {.device = mine.get(), .host = &host};
  }

 private:
  std::vector<DeviceBuffer> memory_;  // [num_ranks]
  DevicePlaces places_;
  std::vector<std::unique_ptr<InTurns>> ends_;  // [num_ranks]; each is made by its rank's thread
};

class LoneLinks final : public RankLinks {
 public:
  LoneLinks(int rank, int num_ranks, int64_t place_bytes)
      : memory_(static_cast<size_t>(2 * place_bytes)), end_(rank, num_ranks, memory_.data(), place_bytes) {}
  RankEnd end(Communicator& host) override { return {.device = &end_, .host = &host}; }

 private:
  DeviceBuffer memory_;
  LoneCommunicator end_;
};

}  // namespace

std::unique_ptr<RankLinks> lone_links(int rank, int num_ranks, int64_t part_bytes) {
  return std::make_unique<LoneLinks>(rank, num_ranks, place_bytes_of(part_bytes));
}

std::unique_ptr<RankLinks> connect_ranks(std::span<const int> devices, int64_t part_bytes) {
  const int64_t place_bytes = place_bytes_of(part_bytes);
  if (take_turns(devices)) return std::make_unique<TurnLinks>(devices, place_bytes);
  return std::make_unique<PeerLinks>(devices, place_bytes);
}

int64_t link_bytes(int64_t part_bytes) {
  return PeerGroup::bytes_per_rank(place_bytes_of(part_bytes));
}

bool take_turns(std::span<const int> devices) {
  HADAL_CHECK(devices.size() >= 2, "{} devices were given; at least 2 ranks are needed", devices.size());
  return std::all_of(devices.begin(), devices.end(), [&](int device) { return device == devices[0]; });
}

}  // namespace hadal
