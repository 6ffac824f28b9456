// Lets a thread wait for another rank, and report a rank that does not arrive in time.
#pragma once

#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/peer_memory.cuh"

namespace hadal::cuda {

enum class Waited : uint32_t { kCame, kLate, kStopped };

inline constexpr int kLooksPerCheck = 256;  // polls between two checks of the deadline and of stops

// Polls until came() is true. It returns earlier if the deadline has passed, if the host stops the group, or
// if another thread of this rank has given up.
template <typename Came>
__device__ __forceinline__ Waited wait_for_rank(const ExchangeParams& p, const Came& came) {
  const int64_t begin = global_nanoseconds();
  while (true) {
    for (int look = 0; look < kLooksPerCheck; ++look) {
      if (came()) return Waited::kCame;
    }
    if (load_relaxed_system(p.stop) != 0 || load_relaxed_system(&p.flags[p.rank]->given_up) != 0) {
      return Waited::kStopped;
    }
    if (global_nanoseconds() - begin > p.deadline_ns) return Waited::kLate;
  }
}

// Makes later waits of this rank end at once. Only the first thread of this rank that gives up writes a
// report, and only if its deadline has passed.
__device__ __forceinline__ void give_up(const ExchangeParams& p, Waited why, int missing, uint64_t expected,
                                        uint64_t seen) {
  const bool is_first = atomicExch(&p.flags[p.rank]->given_up, 1U) == 0;
  if (!is_first || why != Waited::kLate) return;
  p.report->missing = missing;
  p.report->expected = expected;
  p.report->seen = seen;
  __threadfence_system();
  *static_cast<volatile uint32_t*>(&p.report->is_late) = 1;
}

}  // namespace hadal::cuda
