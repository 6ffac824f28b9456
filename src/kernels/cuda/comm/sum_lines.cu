// Adds small parts of all ranks in one kernel that exchanges them itself, in lines (lines.cuh).
//
// Grid: a thread has eight consecutive elements, and adds these elements of all ranks in order of rank.
#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/lines.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 128;
static_assert(kVec * 2 == kOwnLines * kLineBytes);

// kMost is 2, 4 or 8, and at least num_ranks.
template <typename T, int kMost>
__global__ void __launch_bounds__(kThreads) sum_lines_kernel(const __grid_constant__ SumLinesParams params) {
  const ExchangeParams& p = params.exchange;
  if (p.early_dependents) pdl_launch_dependents();
  pdl_wait();
  LinesExchange exchange(p);
  exchange.begin();
  const int64_t vector = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (vector < params.count / kVec) {
    uint4 all[kMost];
    exchange.exchange<kMost>(vector, static_cast<const uint4*>(params.part)[vector], all);
    Floats8 sum{};
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r >= p.num_ranks) break;
      const Floats8 x = widen8<T>(all[r]);
#pragma unroll
      for (int j = 0; j < kVec; ++j) sum.v[j] = r == 0 ? x.v[j] : sum.v[j] + x.v[j];
    }
    store8(static_cast<T*>(params.sums) + vector * kVec, sum);
  }
  exchange.end();
}

template <typename T>
void launch_sum(const SumLinesParams& p, dim3 grid, const Launch& launch) {
  const int num_ranks = p.exchange.num_ranks;
  if (num_ranks <= 2) return launch_kernel<sum_lines_kernel<T, 2>>(launch, grid, kThreads, 0, p);
  if (num_ranks <= 4) return launch_kernel<sum_lines_kernel<T, 4>>(launch, grid, kThreads, 0, p);
  launch_kernel<sum_lines_kernel<T, 8>>(launch, grid, kThreads, 0, p);
}

template <typename T>
void preload_sums() {
  preload<sum_lines_kernel<T, 2>>();
  preload<sum_lines_kernel<T, 4>>();
  preload<sum_lines_kernel<T, 8>>();
}

}  // namespace

void sum_lines(const SumLinesParams& params, const Launch& launch) {
  HADAL_CHECK(params.exchange.num_ranks >= 1 && params.exchange.num_ranks <= kMaxRanks, "{} ranks",
              params.exchange.num_ranks);
  HADAL_CHECK(params.count > 0 && params.count % kVec == 0 && params.count * 2 <= kMaxLinesBytes,
              "a small part has {} elements, allowed are multiples of {} up to {}", params.count, kVec,
              kMaxLinesBytes / 2);
  HADAL_CHECK(on_16_bytes(params.part) && on_16_bytes(params.sums), "parts or sums are not on 16 bytes");
  const dim3 grid(static_cast<unsigned>((params.count / kVec + kThreads - 1) / kThreads));
  if (params.f16) {
    launch_sum<f16>(params, grid, launch);
  } else {
    launch_sum<bf16>(params, grid, launch);
  }
}

void preload_sum_lines() {
  preload_sums<bf16>();
  preload_sums<f16>();
}

}  // namespace hadal::cuda
