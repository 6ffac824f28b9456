// Adds 16-bit parts of up to eight ranks.
//
// Grid: any number of blocks; a thread has eight consecutive elements at a time. It loads them from all ranks
// before it adds the first, so that the loads from peers overlap. This kernel does not wait for other ranks.
#include <algorithm>

#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

// kMost is 2, 4 or 8, and at least num_ranks.
template <typename T, int kMost>
__global__ void __launch_bounds__(kThreads) sum_parts_kernel(const SumPartsParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t num_vectors = p.count / kVec;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_vectors; i += stride) {
    uint4 loaded[kMost];
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r < p.parts.num_ranks) {
        loaded[r] = load_part(static_cast<const uint4*>(p.parts.parts[r]) + p.first / kVec + i);
      }
    }
    Floats8 sum = widen8<T>(loaded[0]);
#pragma unroll
    for (int r = 1; r < kMost; ++r) {
      if (r >= p.parts.num_ranks) break;
      const Floats8 x = widen8<T>(loaded[r]);
#pragma unroll
      for (int j = 0; j < kVec; ++j) sum.v[j] += x.v[j];
    }
    store8(static_cast<T*>(p.sums) + i * kVec, sum);
  }
}

template <typename T>
void launch_sum(const SumPartsParams& p, dim3 grid, const Launch& launch) {
  if (p.parts.num_ranks <= 2) return launch_kernel<sum_parts_kernel<T, 2>>(launch, grid, kThreads, 0, p);
  if (p.parts.num_ranks <= 4) return launch_kernel<sum_parts_kernel<T, 4>>(launch, grid, kThreads, 0, p);
  launch_kernel<sum_parts_kernel<T, 8>>(launch, grid, kThreads, 0, p);
}

template <typename T>
void preload_sums() {
  preload<sum_parts_kernel<T, 2>>();
  preload<sum_parts_kernel<T, 4>>();
  preload<sum_parts_kernel<T, 8>>();
}

}  // namespace

void sum_parts(const SumPartsParams& params, const Launch& launch) {
  HADAL_CHECK(params.parts.num_ranks >= 1 && params.parts.num_ranks <= kMaxRanks, "{} ranks",
              params.parts.num_ranks);
  HADAL_CHECK(params.first % kVec == 0 && params.count % kVec == 0 && params.count >= 0,
              "sums of elements {} to {}, which must be multiples of {}", params.first,
              params.first + params.count, kVec);
  HADAL_CHECK(on_16_bytes(params.sums), "sums are not on 16 bytes");
  const int64_t blocks = (params.count / kVec + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, launch.num_sms * kBlocksPerSm)));
  if (params.f16) {
    launch_sum<f16>(params, grid, launch);
  } else {
    launch_sum<bf16>(params, grid, launch);
  }
}

void preload_sum_parts() {
  preload_sums<bf16>();
  preload_sums<f16>();
}

}  // namespace hadal::cuda
