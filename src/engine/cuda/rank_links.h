// Connects the ranks on GPUs of one executor. If every rank has a GPU of its own, the ranks read each other's
// memory (PeerGroup). If they share one GPU, they take turns (InTurns), which shows that they compute correct
// results but not how fast they are. Nothing else differs between the two. A rank that runs alone, to be
// measured, has links without other ranks.
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
  // Returns the end of rank host.rank(), which lives as long as the links. The rank's thread calls this once.
  // `host` must outlive every use of the end.
  virtual RankEnd end(Communicator& host) = 0;
};

// Connects the ranks; devices [num_ranks] has each rank's GPU. A rank exchanges up to `part_bytes` at once.
// Throws hadal::Error if the GPUs cannot access each other's memory or have too little memory.
std::unique_ptr<RankLinks> connect_ranks(std::span<const int> devices, int64_t part_bytes);

// Returns the links of rank `rank` of `num_ranks` that runs alone on the current GPU, without the others.
std::unique_ptr<RankLinks> lone_links(int rank, int num_ranks, int64_t part_bytes);

// Returns the device memory in bytes that the links need for each rank.
int64_t link_bytes(int64_t part_bytes);

// Returns true if ranks on these GPUs take turns.
bool take_turns(std::span<const int> devices);

}  // namespace hadal
