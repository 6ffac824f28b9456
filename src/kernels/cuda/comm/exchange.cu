// Brings all ranks together: each writes into every rank's flags to how many exchanges it has come, and waits
// until its own flags show that all others have come to as many.
//
// Grid: one block of one warp; lane r signals rank r and waits for it. The count of exchanges is kept on the
// device, so a graph replays unaided. pdl_wait() comes before the signal, which says that everything before
// it on this stream has ended; a lane's release is cumulative, so who acquires the flag sees what those
// kernels wrote. Kernels after this one see it in turn, because they start, or return from pdl_wait(), when
// this one has ended.
//
// Counts only grow: a rank that is ahead has come to this exchange as well, and none can be ahead by more
// than one. A wait ends at its deadline, or when the host stops the group; then the rank has given up: it
// goes on signalling, so that the others do not wait for it in vain, and waits no more.
#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"

namespace hadal::cuda {
namespace {

constexpr unsigned kWholeWarp = 0xffffffffU;
constexpr int kLooksPerCheck = 256;  // how often a wait looks at the flag before it looks at clock and host

enum class Waited : uint32_t { kCame, kLate, kStopped };

struct Wait {
  Waited result = Waited::kCame;
  uint64_t seen = 0;
};

__device__ Wait wait_for(const uint64_t* arrived, uint64_t number, const ExchangeParams& p) {
  Wait wait;
  const int64_t begin = global_nanoseconds();
  while (true) {
    for (int look = 0; look < kLooksPerCheck; ++look) {
      wait.seen = load_acquire_system(arrived);
      if (wait.seen >= number) return wait;
    }
    if (load_relaxed_system(p.stop) != 0) {
      wait.result = Waited::kStopped;
      return wait;
    }
    if (global_nanoseconds() - begin > p.deadline_ns) {
      wait.result = Waited::kLate;
      return wait;
    }
  }
}

__global__ void __launch_bounds__(32) exchange_kernel(const __grid_constant__ ExchangeParams p) {
  if (p.early_dependents) pdl_launch_dependents();
  pdl_wait();
  ExchangeFlags* const own = p.flags[p.rank];
  const int lane = static_cast<int>(threadIdx.x);
  const uint64_t number = load_relaxed_system(&own->num_exchanges) + 1;
  const bool waits = load_relaxed_system(&own->given_up) == 0;
  __syncwarp();  // all lanes have read what lane 0 writes below
  Wait wait;
  if (lane < p.num_ranks) {
    store_release_system(&p.flags[lane]->arrived[p.rank], number);
    if (waits) wait = wait_for(&own->arrived[lane], number, p);
  }
  const unsigned late = __ballot_sync(kWholeWarp, wait.result == Waited::kLate);
  const unsigned failed = __ballot_sync(kWholeWarp, wait.result != Waited::kCame);
  if (late != 0 && lane == __ffs(static_cast<int>(late)) - 1) {
    p.report->missing = lane;
    p.report->expected = number;
    p.report->seen = wait.seen;
    __threadfence_system();
    *static_cast<volatile uint32_t*>(&p.report->is_late) = 1;
  }
  if (lane == 0) {
    own->num_exchanges = number;
    if (failed != 0) own->given_up = 1;
  }
}

}  // namespace

void exchange_flags(const ExchangeParams& params, const Launch& launch) {
  HADAL_CHECK(params.num_ranks >= 1 && params.num_ranks <= kMaxRanks, "{} ranks", params.num_ranks);
  launch_kernel<exchange_kernel>(launch, dim3(1), dim3(32), 0, params);
}

void preload_exchange() {
  preload<exchange_kernel>();
}

}  // namespace hadal::cuda
