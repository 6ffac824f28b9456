// Walks the tiles of gemm/tiled/kernel.cuh in order, for one cluster. The producer's one thread does this.
//
// Tiles are ordered by expert. Within an expert, kGroupM row tiles at a time are computed for all columns, so
// that the tiles in flight share rows and weights in the L2. The row tiles of an expert start at its first
// row.
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/gemm/tiled/config.cuh"

namespace hadal::cuda::wgmma_gemm {

// Walks a cluster's tiles. `row_starts` and `tile_starts` [num_experts + 1], in shared memory, are the first
// row and the first row tile of each expert.
template <class C>
struct TileSchedule {
  int index = static_cast<int>(blockIdx.x) / C::kCluster;
  int expert = 0;
  int helped = 0;  // kShares: the number of steps of tails that the block has been given so far

  // Sets the next tile and those of its steps that this block computes; returns false if there is no next
  // tile.
  __device__ __forceinline__ bool next(const WgmmaGemmParams& p, const int* row_starts, Tile& tile,
                                       Steps& steps) {
    const int* tile_starts = row_starts + p.num_experts + 1;
    constexpr int kColumns = C::kBlockN * C::kCluster;
    const int column_groups = (p.n + kColumns - 1) / kColumns;
    const int all = tile_starts[p.num_experts] * column_groups;
    steps = {.first = 0, .count = p.num_k_steps};
    int at = index;
    const RestCut& rest = p.rest.cut;
    if (C::kShares && rest.tiles > 0 && index >= all - rest.tiles) {
      steps = {.first = 0,
               .count = rest.steps - rest.tail,
               .kind = Steps::kOwn,
               .number = index - (all - rest.tiles)};
      if (index >= all) {
        const int helper = static_cast<int>(blockIdx.x) / C::kCluster - rest.tiles;
        if (helper < 0) return false;
        const int begin = rest.begin(helper) + helped;
        const int end = rest.begin(helper + 1);
        if (begin == end) return false;
        const int number = begin / rest.tail;
        const int inside = begin - number * rest.tail;
        steps = {.first = rest.steps - rest.tail + inside,
                 .count = min(end - begin, rest.tail - inside),
                 .kind = Steps::kTail,
                 .number = number};
        helped += steps.count;
        at = all - rest.tiles + number;
      }
    }
    if (at >= all) return false;
    while (at >= tile_starts[expert + 1] * column_groups) ++expert;
    const int first = tile_starts[expert];
    const int row_tiles = tile_starts[expert + 1] - first;
    const int local = at - first * column_groups;
    const int group = local / (C::kGroupM * column_groups);
    const int inside = local - group * C::kGroupM * column_groups;
    const int height = min(C::kGroupM, row_tiles - group * C::kGroupM);
    const int column_group = inside / height;
    const int row_tile = group * C::kGroupM + inside - column_group * height;
    const int rank = C::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
    tile.expert = expert;
    tile.row_begin = row_starts[expert] + row_tile * C::kBlockM;
    tile.row_end = row_starts[expert + 1];
    tile.n_begin = (column_group * C::kCluster + rank) * C::kBlockN;
    if (at == index) index += static_cast<int>(gridDim.x) / C::kCluster;
    return true;
  }
};

// Returns the number of tiles, or parts of tiles, that this thread's cluster computes.
template <class C>
__device__ __forceinline__ int num_tiles(const WgmmaGemmParams& p, const int* row_starts) {
  constexpr int kColumns = C::kBlockN * C::kCluster;
  const int column_groups = (p.n + kColumns - 1) / kColumns;
  const int all = row_starts[2 * p.num_experts + 1] * column_groups;
  const int clusters = static_cast<int>(gridDim.x) / C::kCluster;
  const int cluster = static_cast<int>(blockIdx.x) / C::kCluster;
  const RestCut& rest = p.rest.cut;
  if (C::kShares && rest.tiles > 0)
    return (all - rest.tiles) / clusters + (cluster < rest.tiles ? 1 : rest.num_parts(cluster - rest.tiles));
  return (all - cluster + clusters - 1) / clusters;
}

// All threads call this. It fills the tables and ends with a barrier, after which every thread may read them.
template <class C>
__device__ __forceinline__ void make_tables(const WgmmaGemmParams& p, int* row_starts, int* tile_starts) {
  if (p.expert_offsets == nullptr) {
    if (threadIdx.x == 0) {
      row_starts[0] = 0;
      row_starts[1] = p.rows;
      tile_starts[0] = 0;
      tile_starts[1] = (p.rows + C::kBlockM - 1) / C::kBlockM;
    }
    __syncthreads();
    return;
  }
  for (int e = threadIdx.x; e <= p.num_experts; e += C::kThreads) row_starts[e] = p.expert_offsets[e];
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int total = 0;
    for (int base = 0; base < p.num_experts; base += 32) {
      const int e = base + lane;
      const int own =
          e < p.num_experts ? (row_starts[e + 1] - row_starts[e] + C::kBlockM - 1) / C::kBlockM : 0;
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffU, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (e < p.num_experts) tile_starts[e] = total + sum - own;
      total += __shfl_sync(0xffffffffU, sum, 31);
    }
    if (lane == 0) tile_starts[p.num_experts] = total;
  }
  __syncthreads();
}

}  // namespace hadal::cuda::wgmma_gemm
