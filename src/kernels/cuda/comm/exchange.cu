// Synchronises all ranks: each rank writes into every rank's flags how many exchanges it has reached, and
// waits until its own flags show that all other ranks have reached the same exchange.
//
// Grid: one block of one warp; lane r signals rank r and waits for it. The count of exchanges is kept on the
// device, so a graph can be replayed without the host. pdl_wait() comes before the signal, which says that
// all earlier kernels on this stream have ended. A lane's release is cumulative, so the results of those
// kernels are visible to a lane that acquires the flag. They are also visible to the kernels after that
// lane's kernel, because these start, or return from pdl_wait(), when it has ended.
//
// Counts only grow: a rank that is ahead has also reached this exchange, and no rank can be ahead by more
// than one. If a wait has failed, the rank has given up: it still signals, so that the other ranks do not
// wait for it in vain, but it no longer waits.
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
  __syncwarp();  // all lanes have read the fields that are written below
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
