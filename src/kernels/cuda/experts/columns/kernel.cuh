// yᵀ = W[e] · xᵀ over the experts of a layer for many rows, bf16 or float16: the weights' rows are the M of
// the tensor cores' instructions and tokens their N, which goes in steps of 16. An expert of 390 rows is then
// two tiles of 208 and 192 tokens and computes 400 of them, where tiles of 128 rows compute 512.
//
// Grid: persistent; clusters of two blocks, one block a multiprocessor. A cluster's tiles are two
// neighbouring blocks of 128 rows of W × up to kMost tokens; block r of it has the r-th 128 rows of W, and
// loads the r-th half of the tokens into both. An expert's rows are cut into equal tiles, multiples of 16,
// but for the last. Tiles go expert by expert, those with the widest tiles first, tokens before rows of W;
// clusters take them in turns, forth and back.
//
// Activated: a block's 128 rows are 64 features, 8 rows of gate and 8 of up in turn: one five-dimensional box
// brings them so.
//
// Warpgroups: 0: warp 0 the producer (one thread), warps 1 to 3 writers; 1 and 2 consumers. Consumer c has
// the rows 64·c … + 63 of the block's 128 and all of the tile's tokens, and leaves its sums in 16 bits for
// the writers, who turn them into y (activated: silu(gate) ⊙ up) while the next tile's products run. Steps of
// k: 64.
//
// Barriers       arrivals                       signalled by      waited for by
//   full[stage]  1 + bytes of W and x           producer, TMA     consumers
//   empty[stage] 8 warps · 2 blocks             consumer warps    producers of the cluster
//   staged       8 warps                        consumer warps    writers
//   written      3 warps                        writers           consumers
// Phases: round i of a slot is phase i of its barriers; who fills it waits for parity i ^ 1 (round 0: at
// once), who reads it for parity i. `staged` and `written` are a ring of one slot, a round a tile.
// Registers: producer and writers 88, consumers 208 (sums: tokens / 2).
// Shared memory: stages of 16 KB W and 128 B a token of x, 256 B a token of results, barriers, the experts'
// first rows and first tiles.
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/columns/columns.h"

namespace hadal::cuda::columns {

constexpr int kBlockW = 128;  // rows of W
constexpr int kTokenStep = 16;
constexpr int kStepK = 64;
constexpr int kCluster = 2;
constexpr int kThreads = 384;
constexpr int kWriters = 3;  // warps
constexpr int kMaxExperts = 512;

// See Tables.
constexpr size_t table_bytes(int num_experts) {
  return static_cast<size_t>(8 * (num_experts + 1) + 2 * num_experts);
}

// T: bf16 or f16. kMost tokens a tile.
template <typename T_, bool kActivated_, int kMost_, int kStages_>
struct Config {
  using T = T_;
  static constexpr bool kActivated = kActivated_;
  static constexpr int kMost = kMost_;
  static constexpr int kStages = kStages_;
  static constexpr int kHeights = kMost / kTokenStep;
  static_assert(kMost % kTokenStep == 0 && kMost <= 256);
  static constexpr int kWBytes = kBlockW * 128;
  static constexpr int kXBytes = kMost * 128;
  static constexpr int kXOffset = kStages * kWBytes;
  static constexpr int kStagingOffset = kXOffset + kStages * kXBytes;
  static constexpr int kBarrierOffset = kStagingOffset + kMost * 256;
  static constexpr int kExpertOffset = kBarrierOffset + 2 * (kStages + 1) * 8;
  static_assert(kExpertOffset + table_bytes(kMaxExperts) + 1024 <= 232448);

  // With the slack that aligns the start to 1024.
  static constexpr size_t shared_bytes(int num_experts) {
    return static_cast<size_t>(kExpertOffset) + table_bytes(num_experts) + 1024;
  }
};

// Whether an instantiation is what experts/choice.h says.
template <class C>
constexpr bool is(const GroupedChoice& choice) {
  return choice.kernel == ProductKernel::kColumns && choice.block_m == C::kMost &&
         choice.block_n == kBlockW && choice.stages == C::kStages && choice.cluster == kCluster &&
         kMaxExperts == kMaxTiledExperts;
}

// x[h], tokens[h]: boxes of 8·(h + 1) rows, half a tile.
template <class C>
struct Maps {
  CUtensorMap x[C::kHeights];
  CUtensorMap tokens[C::kHeights];
  CUtensorMap w;
};

struct Params {
  void* y = nullptr;  // [rows, n] dense
  int n = 0;
  int rows = 0;
  int num_k_steps = 0;
  int column_groups = 0;  // pairs of blocks of W's rows
  int num_experts = 0;
  int direct_from = 0;
  const int32_t* expert_offsets = nullptr;
};

struct Tile {
  int expert = 0;
  int row_begin = 0;
  int row_end = 0;  // of the expert
  int tokens = 0;   // a multiple of 16
  int block = 0;    // of W's rows
};

// A value that the compiler must take as new here: what follows from it is computed again instead of being
// kept in registers beside the products' sums.
__device__ __forceinline__ int afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ int round_up_16(int value) {
  return (value + 15) & ~15;
}

// Tiles of an expert's rows, and their tokens.
template <class C>
__device__ __forceinline__ int tiles_of(int rows) {
  return (rows + C::kMost - 1) / C::kMost;
}
__device__ __forceinline__ int tile_width(int rows, int tiles) {
  return tiles == 0 ? 0 : round_up_16((rows + tiles - 1) / tiles);
}

// In shared memory: first rows of experts [num_experts + 1]; the first tile of each place of their order
// [num_experts + 1]; the experts in that order, widest tiles first [num_experts].
struct Tables {
  int* row_starts;
  int* tile_starts;
  uint16_t* order;

  __device__ __forceinline__ Tables(int* memory, int num_experts)
      : row_starts(memory),
        tile_starts(memory + num_experts + 1),
        order(reinterpret_cast<uint16_t*>(memory + 2 * (num_experts + 1))) {}
};

// The tiles of one cluster: in every second round of all clusters the last one takes the first tile. As tiles
// only become smaller, the clusters then end at about the same time.
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

// All threads; ends with every thread seeing the tables.
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
  // Widths are first kept where the order's tiles will stand.
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

template <class C>
struct Shared {
  uint8_t* base;

  __device__ __forceinline__ uint8_t* w(uint32_t stage) const { return base + stage * C::kWBytes; }
  __device__ __forceinline__ uint8_t* x(uint32_t stage) const {
    return base + C::kXOffset + stage * C::kXBytes;
  }
  // [token][16 chunks of 8 rows of W], chunk c of token t at place c ^ (t % 8).
  __device__ __forceinline__ uint8_t* staging() const { return base + C::kStagingOffset; }
  __device__ __forceinline__ Mbarrier* full(uint32_t stage) const {
    return reinterpret_cast<Mbarrier*>(base + C::kBarrierOffset) + stage;
  }
  __device__ __forceinline__ Mbarrier* empty(uint32_t stage) const { return full(stage) + C::kStages; }
  __device__ __forceinline__ Mbarrier* staged() const { return full(2 * C::kStages); }
  __device__ __forceinline__ Mbarrier* written() const { return staged() + 1; }
  __device__ __forceinline__ int* tables() const { return reinterpret_cast<int*>(base + C::kExpertOffset); }
};

__device__ __forceinline__ uint32_t staging_place(int token, int chunk) {
  return static_cast<uint32_t>(token * 256 + ((chunk ^ (token & 7)) << 4));
}

template <class C>
__device__ __forceinline__ void release(const Shared<C>& shared, uint32_t stage, int lane) {
  __syncwarp();
  mbarrier_arrive_cluster<kCluster>(shared.empty(stage), lane);
}

// What a consumer warp is.
struct Consumer {
  int rank;      // of the block
  int consumer;  // 0, 1
  int warp;      // of the consumer
  int lane;
};

// One tile of kN tokens: sums over all steps of k, then into `staging`. `tile` is the next one afterwards,
// false where there is none.
template <class C, int kN>
__device__ __forceinline__ bool consume_tile(const Params& p, const Shared<C>& shared, const Consumer& own,
                                             Schedule& schedule, Tile& tile, RingPosition<C::kStages>& ring,
                                             RingPosition<1>& staging_ring) {
  // Zeros, though the first product might overwrite them: read before written, the sums of every width would
  // be live through the whole loop over tiles.
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = 0.0F;
  uint32_t previous = 0;
  for (int step = 0; step < p.num_k_steps; ++step) {
    mbarrier_wait(shared.full(ring.slot), ring.parity());
    const uint64_t w = wgmma_k_major(shared.w(ring.slot) + own.consumer * 8192);
    const uint64_t x = wgmma_k_major(shared.x(ring.slot));
    wgmma_pin(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_16_bit<typename C::T, kN>(sums, wgmma_advance(w, i * 32), wgmma_advance(x, i * 32), true);
    }
    wgmma_commit();
    wgmma_pin(sums);
    wgmma_wait<1>();  // the products of the step before are done
    if (step > 0) release(shared, previous, own.lane);
    previous = ring.slot;
    ring.advance();
  }
  const bool more = schedule.next(p, shared.tables(), own.rank, tile);
  mbarrier_wait(shared.written(), staging_ring.producer_parity());
  wgmma_wait<0>();
  wgmma_pin(sums);
  release(shared, previous, own.lane);
  // Matrices: tokens 0 … 7 with the warp's first 8 rows of W and its last 8, then tokens 8 … 15.
  using T = typename C::T;
  const int lane = afresh(own.lane);
  const int token = 8 * (lane / 16) + lane % 8;
  const int chunk = 2 * (4 * own.consumer + own.warp) + lane / 8 % 2;
  const uint32_t address = shared_address(shared.staging()) + staging_place(token, chunk);
#pragma unroll
  for (int i = 0; i < kN / 16; ++i) {
    const float* v = &sums[8 * i];
    store_matrix_x4_transposed(address + 4096 * i, pack_two<T>(v[0], v[1]), pack_two<T>(v[2], v[3]),
                               pack_two<T>(v[4], v[5]), pack_two<T>(v[6], v[7]));
  }
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared.staged());
  staging_ring.advance();
  return more;
}

// The same for tile.tokens in kLow … kHigh, by halves.
template <class C, int kLow, int kHigh>
__device__ __forceinline__ bool consume_any(const Params& p, const Shared<C>& shared, const Consumer& own,
                                            Schedule& schedule, Tile& tile, RingPosition<C::kStages>& ring,
                                            RingPosition<1>& staging_ring) {
  if constexpr (kLow == kHigh) {
    return consume_tile<C, kLow>(p, shared, own, schedule, tile, ring, staging_ring);
  } else {
    constexpr int kMiddle = kLow + (kHigh - kLow) / (2 * kTokenStep) * kTokenStep;
    if (tile.tokens <= kMiddle)
      return consume_any<C, kLow, kMiddle>(p, shared, own, schedule, tile, ring, staging_ring);
    return consume_any<C, kMiddle + kTokenStep, kHigh>(p, shared, own, schedule, tile, ring, staging_ring);
  }
}

// Two neighbouring features, as silu_mul has them.
template <typename T>
__device__ __forceinline__ uint32_t silu_pair(uint32_t gate, uint32_t up) {
  const float2 g = unpack_two<T>(gate);
  const float2 u = unpack_two<T>(up);
  return pack_two<T>(silu_times(g.x, u.x), silu_times(g.y, u.y));
}

// Of one tile by writer warp 0, 1 or 2: whole lines of y, 128 bytes a token (activated), else 256.
template <class C>
__device__ __forceinline__ void write_tile(const Params& p, const Shared<C>& shared, const Tile& tile,
                                           int writer, int lane) {
  const int tokens = min(tile.tokens, tile.row_end - tile.row_begin);
  const uint8_t* staging = shared.staging();
  constexpr int kLanes = C::kActivated ? 8 : 16;  // a token
  constexpr int kAtOnce = 32 / kLanes;            // tokens
  const int part = lane % kLanes;
  const int feature = 8 * (kLanes * tile.block + part);
  if (feature >= p.n) return;
  int token = kAtOnce * writer + lane / kLanes;
  using T = typename C::T;
  T* y = static_cast<T*>(p.y) + static_cast<int64_t>(tile.row_begin + token) * p.n + feature;
#pragma unroll 2
  for (; token < tokens; token += kAtOnce * kWriters) {
    uint4 out;
    if constexpr (C::kActivated) {
      const uint4 gate = *reinterpret_cast<const uint4*>(staging + staging_place(token, 2 * part));
      const uint4 up = *reinterpret_cast<const uint4*>(staging + staging_place(token, 2 * part + 1));
      out = {silu_pair<T>(gate.x, up.x), silu_pair<T>(gate.y, up.y), silu_pair<T>(gate.z, up.z),
             silu_pair<T>(gate.w, up.w)};
    } else {
      out = *reinterpret_cast<const uint4*>(staging + staging_place(token, part));
    }
    *reinterpret_cast<uint4*>(y) = out;
    y += static_cast<int64_t>(kAtOnce * kWriters) * p.n;
  }
}

// The producer's thread.
template <class C>
__device__ __forceinline__ void produce_tile(const Params& p, const Shared<C>& shared, const Maps<C>& maps,
                                             const Tile& tile, int expert_begin, int rank,
                                             RingPosition<C::kStages>& ring) {
  const int half = tile.tokens / 2;
  const bool direct = tile.expert >= p.direct_from;
  const CUtensorMap* x_map = (direct ? maps.tokens : maps.x) + (half / 8 - 1);
  const int row = tile.row_begin - (direct ? expert_begin : 0) + rank * half;
  const uint32_t bytes = static_cast<uint32_t>(C::kWBytes + tile.tokens * 128);
  for (int step = 0; step < p.num_k_steps; ++step) {
    mbarrier_wait(shared.empty(ring.slot), ring.producer_parity());
    Mbarrier* full = shared.full(ring.slot);
    mbarrier_arrive_expect_tx(full, bytes);
    const int k = step * kStepK;
    if constexpr (C::kActivated) {
      tma_load_5d(shared.w(ring.slot), &maps.w, full, k, 0, 0, 8 * tile.block, tile.expert);
    } else {
      tma_load_3d(shared.w(ring.slot), &maps.w, full, k, kBlockW * tile.block, tile.expert);
    }
    tma_load_2d_multicast(shared.x(ring.slot) + rank * half * 128, x_map, full, k, row, 3);
    ring.advance();
  }
}

template <class C>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    expert_columns_kernel(const __grid_constant__ Maps<C> maps, const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  const Shared<C> shared{raw_shared + ((1024 - (shared_address(raw_shared) & 1023U)) & 1023U)};
  const int warp_idx = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = static_cast<int>(cluster_rank());
  int* tables = shared.tables();
  if (threadIdx.x == 0) {
    tma_prefetch_map(&maps.w);
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(shared.full(s), 1);
      mbarrier_init(shared.empty(s), 8 * kCluster);
    }
    mbarrier_init(shared.staged(), 8);
    mbarrier_init(shared.written(), kWriters);
    mbarrier_init_fence();
  }
  pdl_wait();
  make_tables<C>(p, tables);
  cluster_sync();  // the barriers of the whole cluster are ready
  Schedule schedule;
  Tile tile;

  if (warp_idx < 4) {
    set_max_registers_down<88>();
    if (warp_idx == 0) {
      if (elect_one()) {
        RingPosition<C::kStages> ring;
        while (schedule.next(p, tables, rank, tile)) {
          produce_tile(p, shared, maps, tile, tables[tile.expert], rank, ring);
        }
        pdl_launch_dependents();
      }
      __syncwarp();
    } else {
      RingPosition<1> ring;
      while (schedule.next(p, tables, rank, tile)) {
        mbarrier_wait(shared.staged(), ring.parity());
        write_tile(p, shared, tile, warp_idx - 1, lane);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared.written());
        ring.advance();
      }
    }
  } else {
    set_max_registers_up<208>();
    const Consumer own{rank, warp_idx / 4 - 1, warp_idx % 4, lane};
    RingPosition<C::kStages> ring;
    RingPosition<1> staging_ring;
    bool more = schedule.next(p, tables, rank, tile);
    while (more) {
      more = consume_any<C, kTokenStep, C::kMost>(p, shared, own, schedule, tile, ring, staging_ring);
    }
  }
  cluster_sync();  // nobody leaves while another block may still write to it
}

template <class C>
void launch_columns(const ExpertColumnsParams& o, const Launch& launch) {
  using T = typename C::T;
  const T* const x = static_cast<const T*>(o.x);
  const T* const tokens = static_cast<const T*>(o.tokens);
  const T* const w = static_cast<const T*>(o.w);
  Params p;
  p.y = o.y;
  p.n = static_cast<int>(o.n);
  p.rows = static_cast<int>(o.num_rows);
  p.num_k_steps = static_cast<int>((o.k + kStepK - 1) / kStepK);
  const int64_t w_rows = C::kActivated ? 2 * o.n : o.n;
  p.column_groups = static_cast<int>((w_rows + kBlockW * kCluster - 1) / (kBlockW * kCluster));
  p.num_experts = o.num_experts;
  p.direct_from = o.tokens == nullptr ? o.num_experts : o.direct_from;
  p.expert_offsets = o.expert_offsets;
  Maps<C> maps;
  for (int h = 0; h < C::kHeights; ++h) {
    maps.x[h] = make_tensor_map<2>(x, {o.k, o.num_x_rows}, {o.x_stride}, {kStepK, 8 * (h + 1)});
    maps.tokens[h] = o.tokens == nullptr ? maps.x[h]
                                         : make_tensor_map<2>(tokens, {o.k, o.num_tokens}, {o.tokens_stride},
                                                              {kStepK, 8 * (h + 1)});
  }
  if constexpr (C::kActivated) {
    maps.w = make_tensor_map<5>(w, {o.k, 8, 2, o.n / 8, o.num_experts},
                                {o.w_row_stride, o.n * o.w_row_stride, 8 * o.w_row_stride, o.expert_stride},
                                {kStepK, 8, 2, 8, 1});
  } else {
    maps.w = make_tensor_map<3>(w, {o.k, o.n, o.num_experts}, {o.w_row_stride, o.expert_stride},
                                {kStepK, kBlockW, 1});
  }
  const int blocks = launch.num_sms / kCluster * kCluster;
  launch_kernel<expert_columns_kernel<C>>(launch, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                                          C::shared_bytes(p.num_experts), maps, p);
}

template <bool kF16, bool kActivated>
void run(const ExpertColumnsParams& p, const Launch& launch) {
  using C = Config<std::conditional_t<kF16, f16, bf16>, kActivated, 208, 4>;
  static_assert(is<C>(kColumnsTile));
  launch_columns<C>(p, launch);
}

}  // namespace hadal::cuda::columns
