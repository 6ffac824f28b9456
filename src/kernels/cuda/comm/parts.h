// ExchangedParts says where the data of all ranks of a group is. It is plain data, passed by value to the
// kernels that read the parts. This header includes no CUDA header.
#pragma once

namespace hadal::cuda {

inline constexpr int kMaxRanks = 8;

// The memory behind parts[r] belongs to rank r, possibly on another device, and this device can read it.
// Sums over ranks are float32, added in ascending order of rank: ((p0 + p1) + p2) + …, so that every rank
// gets the same bits. A kernel reads parts after pdl_wait(), by load_part
// (kernels/cuda/comm/peer_memory.cuh).
struct ExchangedParts {
  const void* parts[kMaxRanks] = {};  // [num_ranks] device pointers on 256 bytes, in order of rank
  int num_ranks = 0;
};

}  // namespace hadal::cuda
