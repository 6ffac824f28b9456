// Connects the ranks on GPUs of one executor. Where every rank has a GPU of its own they read each other's
// memory (PeerGroup); where they share one they take turns (InTurns), which shows that they compute the right
// thing, but not how fast. Nothing else differs between the two. A lone rank has no others: it is measured.
//
// One thread makes and destroys the links, while no rank runs; each rank's thread uses its end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "comm/device_communicator.h"

namespace hadal {

// Holds what a rank uses to exchange data with the others; both are null with one rank.
struct RankEnd {
  DeviceCommunicator* device = nullptr;
  Communicator* host = nullptr;  // barriers between the ranks' threads
};

class RankLinks {
 public:
  virtual ~RankLinks() = default;
  // Returns the end of rank host.rank(), which lives as long as the links; its thread calls this once. `host`
  // must outlive every use of the end.
  virtual RankEnd end(Communicator& host) = 0;
};

// devices [num_ranks] has each rank's GPU. A rank exchanges up to `part_bytes` at once. Throws hadal::Error
// if GPUs do not reach each other or have too little memory.
std::unique_ptr<RankLinks> connect_ranks(std::span<const int> devices, int64_t part_bytes);

// Returns the links of rank `rank` of `num_ranks` that runs alone on the current GPU, without the others.
std::unique_ptr<RankLinks> lone_links(int rank, int num_ranks, int64_t part_bytes);

// Returns the device memory that the links need for each rank.
int64_t link_bytes(int64_t part_bytes);

// Returns true if ranks on these GPUs take turns.
bool take_turns(std::span<const int> devices);

}  // namespace hadal
