// Orders the columns kernel's tiles. Every block computes the order by itself from the experts' first rows.
#pragma once

#include "kernels/cuda/experts/columns/config.cuh"

namespace hadal::cuda::columns {

// Hides the origin of the value from the compiler. Values derived from it are then computed again, instead of
// being kept in registers beside the products' sums.
__device__ __forceinline__ int afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ int round_up_16(int value) {
  return (value + 15) & ~15;
}

// These return the number of tiles that cover an expert's rows, and the number of tokens in each tile.
template <class C>
__device__ __forceinline__ int tiles_of(int rows) {
  return (rows + C::kMost - 1) / C::kMost;
}
__device__ __forceinline__ int tile_width(int rows, int tiles) {
  return tiles == 0 ? 0 : round_up_16((rows + tiles - 1) / tiles);
}

// Points into shared memory, which holds the experts' first rows [num_experts + 1], then the first tile of
// each place in the order of experts [num_experts + 1], then that order, widest tiles first [num_experts].
struct Tables {
  int* row_starts;
  int* tile_starts;
  uint16_t* order;

  __device__ __forceinline__ Tables(int* memory, int num_experts)
      : row_starts(memory),
        tile_starts(memory + num_experts + 1),
        order(reinterpret_cast<uint16_t*>(memory + 2 * (num_experts + 1))) {}
};

// Iterates over the tiles of one cluster. In every second round the order of the clusters is reversed, so
// that the last cluster gets the first tile of the round. The tile width never increases from one expert
// to the next, so the clusters end at about the same time.
struct Schedule {
  int round = 0;
  int place = 0;

  __device__ __forceinline__ bool next(const Params& p, int* memory, int rank, Tile& tile) {
    const int experts = afresh(p.num_experts);
    const Tables tables(memory, experts);
    const int groups = afresh(p.column_groups);
    const int clusters = static_cast<int>(gridDim.x) / kCluster;
    const int own = static_cast<int>(blockIdx.x) / kCluster;
    const int index = round * clusters + (round % 2 == 0 ? own : clusters - 1 - own);
    if (index >= tables.tile_starts[experts] * groups) return false;
    while (index >= tables.tile_starts[place + 1] * groups) ++place;
    const int first = tables.tile_starts[place];
    const int count = tables.tile_starts[place + 1] - first;
    const int local = index - first * groups;
    const int group = local / count;
    const int number = local - group * count;
    tile.expert = tables.order[place];
    const int begin = tables.row_starts[tile.expert];
    tile.row_end = tables.row_starts[tile.expert + 1];
    const int width = tile_width(tile.row_end - begin, count);
    tile.row_begin = begin + number * width;
    tile.tokens = min(width, round_up_16(tile.row_end - tile.row_begin));
    tile.block = group * kCluster + rank;
    ++round;
    return true;
  }
};

// Fills the tables. All threads call it. It ends with a barrier, after which all threads may read the tables.
template <class C>
__device__ __forceinline__ void make_tables(const Params& p, int* memory) {
  const Tables tables(memory, p.num_experts);
  for (int e = static_cast<int>(threadIdx.x); e <= p.num_experts; e += kThreads) {
    tables.row_starts[e] = p.expert_offsets[e];
  }
  __syncthreads();
  const auto width_of = [&](int e) {
    const int rows = tables.row_starts[e + 1] - tables.row_starts[e];
    return tile_width(rows, tiles_of<C>(rows));
  };
  // Until the order is known, the memory of tile_starts holds the experts' tile widths.
  for (int e = static_cast<int>(threadIdx.x); e < p.num_experts; e += kThreads) {
    tables.tile_starts[e] = width_of(e);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < p.num_experts; e += kThreads) {
    const int width = tables.tile_starts[e];
    int before = 0;
    for (int other = 0; other < p.num_experts; ++other) {
      const int w = tables.tile_starts[other];
      before += w > width || (w == width && other > e) ? 1 : 0;
    }
    tables.order[before] = static_cast<uint16_t>(e);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    int total = 0;
    for (int base = 0; base < p.num_experts; base += 32) {
      const int place = base + lane;
      int own = 0;
      if (place < p.num_experts) {
        const int expert = tables.order[place];
        own = tiles_of<C>(tables.row_starts[expert + 1] - tables.row_starts[expert]);
      }
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffU, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (place < p.num_experts) tables.tile_starts[place] = total + sum - own;
      total += __shfl_sync(0xffffffffU, sum, 31);
    }
    if (lane == 0) tables.tile_starts[p.num_experts] = total;
  }
  __syncthreads();
}

}  // namespace hadal::cuda::columns
