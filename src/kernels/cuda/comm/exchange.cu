// Brings all ranks together: each writes into every rank's flags how many exchanges it has reached, and waits
// until its own flags show that all others have come to as many.
//
// Grid: one block of one warp; lane r signals rank r and waits for it. The count of exchanges is kept on the
// device, so a graph replays unaided. pdl_wait() comes before the signal, which says that everything before
// it on this stream has ended; a lane's release is cumulative, so whoever acquires the flag sees what those
// kernels wrote. Kernels after this one see it in turn, because they start, or return from pdl_wait(), when
// this one has ended.
//
// Counts only grow: a rank that is ahead has reached this exchange, too, and none can be ahead by more
// than one. When a wait has failed the rank has given up: it goes on signalling, so that the others do not
// wait for it in vain, and waits no more.
#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/comm/waiting.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"

namespace hadal::cuda {
namespace {

__global__ void __launch_bounds__(32) exchange_kernel(const __grid_constant__ ExchangeParams p) {
  if (p.early_dependents) pdl_launch_dependents();
  pdl_wait();
  ExchangeFlags* const own = p.flags[p.rank];
  const int lane = static_cast<int>(threadIdx.x);
  const uint64_t number = load_relaxed_system(&own->num_exchanges) + 1;
  const bool waits = load_relaxed_system(&own->given_up) == 0;
  __syncwarp();  // all lanes have read what is written below
  if (lane < p.num_ranks) {
    store_release_system(&p.flags[lane]->arrived[p.rank], number);
    uint64_t seen = 0;
    const auto came = [&] {
      seen = load_acquire_system(&own->arrived[lane]);
      return seen >= number;
    };
    if (waits) {
      const Waited waited = wait_for_rank(p, came);
      if (waited != Waited::kCame) give_up(p, waited, lane, number, seen);
    }
  }
  __syncwarp();
  if (lane == 0) own->num_exchanges = number;
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
