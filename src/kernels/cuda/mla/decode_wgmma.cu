// MLA decode for many query rows (64 a tile), bound by the tensor cores: wgmma over whole pages of a bf16
// cache.
//
// Grid: num_parts × num_tiles persistent blocks of three warpgroups, the tiles of a part next to each other
// (they read the same pages, the second one out of the L2). One thread of warpgroup 2 loads; warpgroups 0
// ("left") and 1 ("right") compute. Pages are taken in pairs: the first of a pair is scored by left, the
// second by right, and each warpgroup keeps half of the output's columns (left 0…255, right 256…511), so each
// needs the other's weights:
//   left                                             right
//   S = Q·K₀ᵀ                                        S = Q·K₁ᵀ
//   m₀ = max(m, S), P₀, a₀ = 2^(m−m₀)  ──(1)──►      m₁ = max(m₀, S), P₁, a₁ = 2^(m₀−m₁)
//   O = a₀·O + P₀·V₀ left               ◄──(2)──     (P₁ into the rope tile of K₁, which is read no more)
//   P₀·a₁ into `weights`               ──(3)──►      O = a₀·a₁·O + P₁·V₁ right
//   O = a₁·O + P₁·V₁ left                            O += P₀·a₁·V₀ right
// The last pair of a piece may lack its second page: right then only rescales, and adds P₀·V₀.
//
// A page is nine tiles of 64 keys × 64 columns (128-byte swizzle, 8 KB; tile 8 is the rope part), loaded and
// freed in two groups. Records beyond the length may hold anything: the page's scorer zeroes them before use.
//
// barrier         arrivals              guards                                         phase
// q_full          1 + bytes             the queries of a piece                         pieces with pages
// q_empty         8 (compute warps)     their last scores are made                     pieces with pages
// full[p][g]      1 + bytes             group g of page p of a pair                    pairs that have page p
// empty[0][0]     4 (left)              tiles 0…3, 8 of the first page                 "
// empty[0][1]     4 (right)             tiles 4…7 of the first page                    "
// empty[1][0]     4 (right)             tiles 4…7 of the second page                   "
// empty[1][1]     4 (left)              tiles 0…3, 8 (now P₁) of the second page       "
// named 1, 2, 3   256                   the hand-overs (1) (2) (3): one side arrives, the other waits
// named 4, 5      256                   row sums of both sides written; read
// named 6, 7      128                   within left; within right
//
// Registers: output 128, scores 32, packed weights 16; 240 of a compute thread, 24 of the loading warpgroup.
#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"

namespace hadal::cuda {
namespace {

constexpr int kRows = 64;
constexpr int kThreads = 384;
constexpr int kComputeThreads = 256;
constexpr int kTiles = kKvRowDim / 64;
constexpr int kTileBytes = kPageSize * 128;
constexpr int kHalfTiles = 4;  // of the output's columns of one warpgroup
constexpr float kLn2 = 0.6931471805599453F;

enum NamedBarrier {
  kFirstScored = 1,
  kSecondScored,
  kFirstWeights,
  kSumsWritten,
  kSumsRead,
  kWithinLeft,
  kWithinRight
};

struct Shared {
  std::byte queries[kTiles * kTileBytes];
  std::byte keys[2][kTiles * kTileBytes];
  std::byte weights[kTileBytes];  // P₀·a₁
  float maximum[kRows];           // base 2
  float rescale[2][kRows];        // a₀, a₁
  float sums[2][kRows];
  Mbarrier q_full, q_empty;
  Mbarrier full[2][2], empty[2][2];
};
constexpr size_t kSharedBytes = (sizeof(Shared) + 1023) / 1024 * 1024;
static_assert(kSharedBytes <= 227 * 1024, "fits a multiprocessor");

__device__ __forceinline__ void load_tiles(Shared& shared, const CUtensorMap* pool, int page_of_pair,
                                           int group, int first, bool rope, int32_t page) {
  Mbarrier* barrier = &shared.full[page_of_pair][group];
  mbarrier_arrive_expect_tx(barrier, (rope ? kHalfTiles + 1 : kHalfTiles) * kTileBytes);
  std::byte* tiles = shared.keys[page_of_pair];
  for (int i = first; i < first + kHalfTiles; ++i) {
    tma_load_2d(tiles + i * kTileBytes, pool, barrier, i * 64, page * kPageSize);
  }
  if (rope) tma_load_2d(tiles + 8 * kTileBytes, pool, barrier, kKvLatentDim, page * kPageSize);
}

__device__ __forceinline__ void produce(const DecodeArgs& args, const CUtensorMap* q, const CUtensorMap* pool,
                                        int part, int first_row, Shared& shared) {
  uint32_t pieces = 0;
  uint32_t uses[2] = {0, 0};
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.begin_page >= piece.end_page) return;
    mbarrier_wait(&shared.q_empty, (pieces & 1U) ^ 1U);
    ++pieces;
    mbarrier_arrive_expect_tx(&shared.q_full, kTiles * kTileBytes);
    for (int i = 0; i < kTiles; ++i) {
      tma_load_2d(shared.queries + i * kTileBytes, q, &shared.q_full, i * 64,
                  piece.seq * args.rows + first_row);
    }
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const bool second = page + 1 < piece.end_page;
      const int32_t first_id = table[page];
      const int32_t second_id = second ? table[page + 1] : 0;
      const uint32_t free0 = (uses[0]++ & 1U) ^ 1U;
      const uint32_t free1 = (uses[1] & 1U) ^ 1U;
      mbarrier_wait(&shared.empty[0][0], free0);
      load_tiles(shared, pool, 0, 0, 0, true, first_id);
      if (second) {
        ++uses[1];
        mbarrier_wait(&shared.empty[1][0], free1);
        load_tiles(shared, pool, 1, 0, kHalfTiles, false, second_id);
      }
      mbarrier_wait(&shared.empty[0][1], free0);
      load_tiles(shared, pool, 0, 1, kHalfTiles, false, first_id);
      if (second) {
        mbarrier_wait(&shared.empty[1][1], free1);
        load_tiles(shared, pool, 1, 1, 0, true, second_id);
      }
    }
  });
}

// Zeroes the records of a loaded page from `valid` on, by the 128 threads of a warpgroup.
__device__ __forceinline__ void zero_records(std::byte* tiles, Mbarrier (&full)[2], uint32_t parity,
                                             int valid, int named_barrier) {
  mbarrier_wait(&full[0], parity);
  mbarrier_wait(&full[1], parity);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int chunks = (kPageSize - valid) * 8;  // of a tile
  for (int i = thread; i < chunks * kTiles; i += 128) {
    *reinterpret_cast<uint4*>(tiles + i / chunks * kTileBytes + valid * 128 + i % chunks * 16) =
        make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async_shared();
  named_barrier_sync(named_barrier, 128);
}

// S = Q · Kᵀ over the page's two groups of tiles, the first group while the second may still be on its way.
template <bool kIsLeft>
__device__ __forceinline__ void make_scores(float (&s)[32], const std::byte* queries, const std::byte* keys,
                                            Mbarrier (&full)[2], uint32_t parity) {
  constexpr int kOrder[kTiles] = {kIsLeft ? 0 : 4, kIsLeft ? 1 : 5, kIsLeft ? 2 : 6,
                                  kIsLeft ? 3 : 7, kIsLeft ? 8 : 0, kIsLeft ? 4 : 1,
                                  kIsLeft ? 5 : 2, kIsLeft ? 6 : 3, kIsLeft ? 7 : 8};
  constexpr int kFirstGroup = kIsLeft ? 5 : 4;
  const uint64_t q = wgmma_k_major(queries);
  const uint64_t k = wgmma_k_major(keys);
  mbarrier_wait(&full[0], parity);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (i == kFirstGroup) {
      mbarrier_wait(&full[1], parity);
      wgmma_fence();
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t at = kOrder[i] * kTileBytes + step * 32;
      wgmma_bf16<64>(s, wgmma_advance(q, at), wgmma_advance(k, at), i + step > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(s);
}

// Scores to weights: masks, takes the maximum with `maximum` (of the thread's two rows, updated), and adds
// the row sums of the thread's columns to `sum` after rescaling it. Returns the rescaling factors.
__device__ __forceinline__ float2 softmax(float (&s)[32], float (&maximum)[2], float (&sum)[2],
                                          const int (&visible)[2], int first_key, float scale_log2) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  float factors[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int limit = visible[h] - first_key - column;
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& value = s[4 * j + 2 * h + c];
        value = 8 * j + c < limit ? value * scale_log2 : -INFINITY;
        top = fmaxf(top, value);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
    const float new_maximum = fmaxf(maximum[h], top);
    const float base = new_maximum == -INFINITY ? 0.0F : new_maximum;
    factors[h] = exp2f(maximum[h] - base);
    maximum[h] = new_maximum;
    float added = 0.0F;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& value = s[4 * j + 2 * h + c];
        value = exp2f(value - base);
        added += value;
      }
    }
    sum[h] = sum[h] * factors[h] + added;
  }
  return {factors[0], factors[1]};
}

__device__ __forceinline__ void rescale(float (&values)[128], float2 factors) {
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    values[4 * j] *= factors.x;
    values[4 * j + 1] *= factors.x;
    values[4 * j + 2] *= factors.y;
    values[4 * j + 3] *= factors.y;
  }
}

// Weights as operand A, four words for each 16 keys.
__device__ __forceinline__ void pack(uint32_t (&a)[16], const float (&s)[32], float2 factors) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    a[2 * j] = pack_bf16(s[4 * j] * factors.x, s[4 * j + 1] * factors.x);
    a[2 * j + 1] = pack_bf16(s[4 * j + 2] * factors.y, s[4 * j + 3] * factors.y);
  }
}
__device__ __forceinline__ void store_weights(std::byte* tile, const uint32_t (&a)[16]) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t row = warp * 16 + (lane / 8) % 2 * 8 + lane % 8;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    store_matrix_x4(shared_address(tile) + swizzle_128(row, j + lane / 16), a[2 * j], a[2 * j + 1],
                    a[2 * j + 2], a[2 * j + 3]);
  }
  fence_proxy_async_shared();
}

// O += P · V over a page: P from registers, or from a tile of shared memory. `values`: the first of four
// column tiles.
__device__ __forceinline__ void add_values(float (&out)[128], uint32_t (&a)[16], const std::byte* values) {
  const uint64_t v = wgmma_mn_major(values, kTileBytes);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t words[4] = {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]};
    wgmma_bf16_rs<256, true>(out, words, wgmma_advance(v, step * 2048), true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(a);
  wgmma_pin(out);
}
__device__ __forceinline__ void add_values(float (&out)[128], const std::byte* weights,
                                           const std::byte* values) {
  const uint64_t p = wgmma_k_major(weights);
  const uint64_t v = wgmma_mn_major(values, kTileBytes);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_bf16<256, false, true>(out, wgmma_advance(p, step * 32), wgmma_advance(v, step * 2048), true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(out);
}

template <bool kIsLeft>
__device__ __forceinline__ void compute(const DecodeArgs& args, int part, int first_row, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int own_row = thread / 32 * 16 + lane / 4;  // and the one 8 further on
  const bool first_of_row = lane % 4 == 0;
  uint32_t pieces = 0;
  uint32_t uses[2] = {0, 0};

  for_each_piece(args, part, [&](const DecodePiece& piece) {
    float out[128];
#pragma unroll
    for (float& value : out) value = 0.0F;
    float sum[2] = {0.0F, 0.0F};
    int visible[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = min((first_row + own_row + 8 * h) / args.num_heads, args.q_len - 1);
      visible[h] = piece.num_keys - args.q_len + 1 + query;
    }
    if (piece.begin_page < piece.end_page) mbarrier_wait(&shared.q_full, pieces++ & 1U);

    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const bool has_second = page + 1 < piece.end_page;
      const bool is_last = page + 2 >= piece.end_page;
      const uint32_t parity0 = uses[0]++ & 1U;
      const uint32_t parity1 = uses[1] & 1U;
      if (has_second) ++uses[1];
      float s[32];
      uint32_t a[16];
      float maximum[2];
      if constexpr (kIsLeft) {
        const int valid = piece.num_keys - page * kPageSize;
        if (valid < kPageSize) zero_records(shared.keys[0], shared.full[0], parity0, valid, kWithinLeft);
        make_scores<true>(s, shared.queries, shared.keys[0], shared.full[0], parity0);
        if (is_last && lane == 0) mbarrier_arrive(&shared.q_empty);

        const bool is_first = page == piece.begin_page;
        maximum[0] = is_first ? -INFINITY : shared.maximum[own_row];
        maximum[1] = is_first ? -INFINITY : shared.maximum[own_row + 8];
        const float2 factors = softmax(s, maximum, sum, visible, page * kPageSize, args.scale_log2);
        if (first_of_row) {
          shared.maximum[own_row] = maximum[0];
          shared.maximum[own_row + 8] = maximum[1];
          shared.rescale[0][own_row] = factors.x;
          shared.rescale[0][own_row + 8] = factors.y;
        }
        named_barrier_arrive(kFirstScored, kComputeThreads);
        pack(a, s, {1.0F, 1.0F});
        rescale(out, factors);
        add_values(out, a, shared.keys[0]);
        if (lane == 0) mbarrier_arrive(&shared.empty[0][0]);

        named_barrier_sync(kSecondScored, kComputeThreads);
        float2 later = {1.0F, 1.0F};
        if (has_second) later = {shared.rescale[1][own_row], shared.rescale[1][own_row + 8]};
        pack(a, s, later);
        store_weights(shared.weights, a);
        named_barrier_arrive(kFirstWeights, kComputeThreads);
        if (has_second) {
          sum[0] *= later.x;
          sum[1] *= later.y;
          rescale(out, later);
          add_values(out, shared.keys[1] + 8 * kTileBytes, shared.keys[1]);
          if (lane == 0) mbarrier_arrive(&shared.empty[1][1]);
        }
      } else {
        if (has_second) {
          const int valid = piece.num_keys - (page + 1) * kPageSize;
          if (valid < kPageSize) zero_records(shared.keys[1], shared.full[1], parity1, valid, kWithinRight);
          make_scores<false>(s, shared.queries, shared.keys[1], shared.full[1], parity1);
          named_barrier_sync(kWithinRight, 128);  // all four warps have read the rope tile
        }
        if (is_last && lane == 0) mbarrier_arrive(&shared.q_empty);
        named_barrier_sync(kFirstScored, kComputeThreads);
        float2 factors = {shared.rescale[0][own_row], shared.rescale[0][own_row + 8]};
        sum[0] *= factors.x;
        sum[1] *= factors.y;
        if (has_second) {
          maximum[0] = shared.maximum[own_row];
          maximum[1] = shared.maximum[own_row + 8];
          const float2 later = softmax(s, maximum, sum, visible, (page + 1) * kPageSize, args.scale_log2);
          if (first_of_row) {
            shared.maximum[own_row] = maximum[0];
            shared.maximum[own_row + 8] = maximum[1];
            shared.rescale[1][own_row] = later.x;
            shared.rescale[1][own_row + 8] = later.y;
          }
          pack(a, s, {1.0F, 1.0F});
          store_weights(shared.keys[1] + 8 * kTileBytes, a);
          factors = {factors.x * later.x, factors.y * later.y};
        }
        named_barrier_arrive(kSecondScored, kComputeThreads);
        rescale(out, factors);
        if (has_second) {
          add_values(out, a, shared.keys[1] + kHalfTiles * kTileBytes);
          if (lane == 0) mbarrier_arrive(&shared.empty[1][0]);
        }
        named_barrier_sync(kFirstWeights, kComputeThreads);
        add_values(out, shared.weights, shared.keys[0] + kHalfTiles * kTileBytes);
        if (lane == 0) mbarrier_arrive(&shared.empty[0][1]);
      }
    }

    // Row sums of both sides; then each writes its columns.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 2);
      if (first_of_row) shared.sums[kIsLeft ? 0 : 1][own_row + 8 * h] = sum[h];
    }
    named_barrier_sync(kSumsWritten, kComputeThreads);
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = shared.sums[0][own_row + 8 * h] + shared.sums[1][own_row + 8 * h];
      inverse[h] = total > 0.0F ? 1.0F / total : 0.0F;
      const float lse = total > 0.0F ? shared.maximum[own_row + 8 * h] + log2f(total) : -INFINITY;
      const int row = first_row + own_row + 8 * h;
      if (kIsLeft && first_of_row && row < args.rows) {
        if (piece.slot >= 0) {
          args.partial_lse[int64_t{piece.slot} * args.rows + row] = lse;
        } else if (args.lse != nullptr) {
          args.lse[int64_t{piece.seq} * args.rows + row] = lse * kLn2;
        }
      }
    }
    named_barrier_sync(kSumsRead, kComputeThreads);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + own_row + 8 * h;
      if (row >= args.rows) continue;
      const int64_t at = (piece.slot >= 0 ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows + row;
      const int64_t offset = at * kKvLatentDim + (kIsLeft ? 0 : kKvLatentDim / 2) + lane % 4 * 2;
      if (piece.slot >= 0) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          *reinterpret_cast<float2*>(args.partial_out + offset + 8 * j) = {
              out[4 * j + 2 * h] * inverse[h], out[4 * j + 2 * h + 1] * inverse[h]};
        }
      } else {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          *reinterpret_cast<uint32_t*>(args.out + offset + 8 * j) =
              pack_bf16(out[4 * j + 2 * h] * inverse[h], out[4 * j + 2 * h + 1] * inverse[h]);
        }
      }
    }
  });
}

__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_wgmma_kernel(const __grid_constant__ DecodeArgs args, const __grid_constant__ CUtensorMap q,
                            const __grid_constant__ CUtensorMap pool) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int part = static_cast<int>(blockIdx.x) / args.num_tiles;
  const int first_row = static_cast<int>(blockIdx.x) % args.num_tiles * kRows;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.q_full, 1);
    mbarrier_init(&shared.q_empty, 8);
    for (int p = 0; p < 2; ++p) {
      for (int g = 0; g < 2; ++g) {
        mbarrier_init(&shared.full[p][g], 1);
        mbarrier_init(&shared.empty[p][g], 4);
      }
    }
    mbarrier_init_fence();
    tma_prefetch_map(&q);
    tma_prefetch_map(&pool);
  }
  __syncthreads();
  pdl_wait();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    set_max_registers_up<240>();
    compute<true>(args, part, first_row, shared);
  } else if (warpgroup == 1) {
    set_max_registers_up<240>();
    compute<false>(args, part, first_row, shared);
  } else {
    set_max_registers_down<24>();
    if (threadIdx.x == kComputeThreads) produce(args, &q, &pool, part, first_row, shared);
  }
  pdl_launch_dependents();
}

}  // namespace

void mla_decode_wgmma(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  const auto* pool = reinterpret_cast<const bf16*>(args.pool);
  // How many pages the pool has, this op is not told; page ids within a sequence's length are valid.
  const CUtensorMap pool_map =
      make_tensor_map<2>(pool, {kKvRowDim, int64_t{1} << 31}, {kKvRowDim}, {64, kPageSize});
  const CUtensorMap q_map =
      make_tensor_map<2>(args.q, {kKvRowDim, int64_t{args.num_seqs} * args.rows}, {kKvRowDim}, {64, kRows});
  const dim3 grid(static_cast<unsigned>(geometry.num_parts * geometry.num_tiles));
  launch_kernel<mla_decode_wgmma_kernel>(launch, grid, dim3(kThreads), kSharedBytes, args, q_map, pool_map);
}

}  // namespace hadal::cuda
