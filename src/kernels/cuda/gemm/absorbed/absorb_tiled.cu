// Computes absorb_query for many tokens: y[m, h, 0:512] = q[m, h, 0:128] · W_UK[h] on the tensor cores. The
// weights stay in shared memory.
//
// Grid: x is the head and the half of its outputs (256 each), y the run of tiles of 64 tokens. Two blocks run
// on a multiprocessor at once, so that one block multiplies while the other stores. Warps 0 … 3 are the
// consumers, with one wgmma of 64 tokens × 256 outputs per step of k. Warp 4 copies tiles of q: as one box if
// its rows are consecutive, otherwise row by row through the map of rows (zeros for rows that do not exist).
// Warps 4 and 5 rotate the RoPE part, each for every fourth token. The copy engine loads the block's 256 rows
// of W_UK (all 128 of k) once, before pdl_wait. FP8 codes are loaded into the second half of the weights'
// memory. The consumers widen them in place to bf16 (exactly) while q is being loaded; the scale of a block
// of codes multiplies the float32 sum.
//
// Barriers    arrivals                       signalled by   waited for by           phase p of stage s
//   weights   1 + bytes                      copy engine    consumers               one
//   full[s]   32 of warp 4, with its copies  copies         consumers               tile s + 2 · p of the run
//   empty[s]  4 consumer warps               consumers      warp 4                  tile s + 2 · p
//   named 1 (FP8): the consumers, when all have read the codes and when all have widened theirs
// Shared memory holds 64 KB of weights, two stages of 16 KB of q, and 4 KB per consumer warp for the output.
// A thread has at most 168 registers (128 of them are sums).
#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/gemm/absorbed/tiled.cuh"

namespace hadal::cuda {
namespace {

constexpr int kTokens = 64;
constexpr int kOutputs = 256;
constexpr int kInputs = 128;
constexpr int kStages = 2;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 64;
constexpr int kTileBytes = kTokens * kInputs * 2;
constexpr int kWeightBytes = kOutputs * kInputs * 2;
constexpr int kStagingParts = 2;  // parts of 16 rows × 64 outputs that a warp stages at once
constexpr int kStagingOffset = kWeightBytes + kStages * kTileBytes;
constexpr int kBarrierOffset = kStagingOffset + 4 * kStagingParts * 2048;
constexpr int64_t kManyRows = 24 << 10;  // (token, head) rows of y, 27 MB
constexpr int kSharedBytes = kBarrierOffset + (2 * kStages + 1) * 8;

// Loads warp 4's tile of q: row r holds token m0 + r, in two tiles of 64 of k. `low` and `high` are the rows
// of q of the lane's tokens m0 + lane and m0 + 32 + lane.
struct QueryRows {
  int32_t low, high;

  __device__ __forceinline__ void load(const AbsorbQueryParams& p, int64_t m0, int lane) {
    const auto row = [&](int64_t m) { return m < p.m ? p.rows[m] : -1; };
    low = row(m0 + lane);
    high = row(m0 + 32 + lane);
  }
  // Returns true if the tile's rows are first … first + 63 and all of them exist.
  __device__ __forceinline__ bool follow(int lane) const {
    const int32_t first = __shfl_sync(0xffffffffU, low, 0);
    return __all_sync(0xffffffffU, first >= 0 && low == first + lane && high == first + 32 + lane);
  }
  // Copies row by row; a lane copies one of the 16 chunks, of two rows at once.
  __device__ __forceinline__ void copy(const AbsorbQueryParams& p, uint8_t* stage, int head, int lane) const {
    const int chunk = lane % 16;
    uint8_t* tile = stage + chunk / 8 * (kTokens * 128);
    const auto* q = static_cast<const uint16_t*>(p.q) + head * p.q_head_stride + chunk * 8;
#pragma unroll 4
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = 2 * i + lane / 16;
      const int32_t row = __shfl_sync(0xffffffffU, i < 16 ? low : high, token % 32);
      copy_async_16(shared_address(tile) + swizzle_128(token, chunk % 8),
                    q + int64_t{max(row, 0)} * p.q_row_stride, row >= 0);
    }
  }
};

// Applies RoPE to a warp's quarter of a tile, which is the tokens 4 · j + share, in whole 128-byte lines.
// (Each of a head's two blocks has two such warps.) Lane p has chunk p % 8 (eight values) of the tokens 4 ·
// (p / 8 + 4 · i) + share. A warp has two of these objects, one for even and one for odd tiles. Operands are
// loaded two tiles ahead, rows and positions four tiles ahead.
struct Turns {
  static constexpr int kEach = kTokens / 4 * 8 / 32;
  int32_t rows[kEach], next_rows[kEach], next_positions[kEach];
  uint4 values[kEach];
  float4 cosines[kEach], sines[kEach];

  static __device__ __forceinline__ int64_t token(int64_t m0, int share, int thread, int i) {
    return m0 + 4 * (thread / 8 + 4 * i) + share;
  }
  __device__ __forceinline__ void load_positions(const AbsorbQueryParams& p, int share, int64_t m0,
                                                 int thread) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t m = min(token(m0, share, thread, i), p.m - 1);
      next_rows[i] = p.rows != nullptr ? p.rows[m] : static_cast<int32_t>(m);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) next_positions[i] = p.positions[max(next_rows[i], 0)];
  }
  __device__ __forceinline__ void load_angles(const AbsorbQueryParams& p, int thread) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float* table = p.cos_sin + int64_t{next_positions[i]} * 64 + thread % 8 * 4;
      rows[i] = next_rows[i];
      cosines[i] = *reinterpret_cast<const float4*>(table);
      sines[i] = *reinterpret_cast<const float4*>(table + 32);
    }
  }
  __device__ __forceinline__ void load_values(const AbsorbQueryParams& p, int head, int thread) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const auto* q = static_cast<const uint16_t*>(p.q) + int64_t{max(rows[i], 0)} * p.q_row_stride +
                      head * p.q_head_stride + kInputs;
      values[i] = *reinterpret_cast<const uint4*>(q + thread % 8 * 8);
    }
  }
  template <typename T>
  __device__ __forceinline__ void store(const AbsorbQueryParams& p, int head, int share, int64_t m0,
                                        int thread) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t m = token(m0, share, thread, i);
      if (m >= p.m) continue;
      const uint4 turned = rotate8<T>(values[i], cosines[i], sines[i]);
      *reinterpret_cast<uint4*>(static_cast<T*>(p.y) + (m * p.num_heads + head) * 576 + 512 +
                                thread % 8 * 8) = rows[i] < 0 ? uint4{0, 0, 0, 0} : turned;
    }
  }
};

// Widens the codes in the second half of the weights' memory: the first 64 of k into the first half, then the
// other 64 into the second half. The consumers call this.
__device__ __forceinline__ void widen_in_place(uint8_t* weights, int thread) {
  const uint8_t* codes = weights + kWeightBytes / 2;
  constexpr int kEach = kOutputs * 4 / kConsumers;
  uint4 held[kEach];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int piece = thread + i * kConsumers;
      held[i] = absorbed::load_codes(codes, piece % kOutputs, part * 4 + piece / kOutputs);
    }
    if (part == 1) named_barrier_sync(1, kConsumers);  // all have read the codes that they widen
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int piece = thread + i * kConsumers;
      absorbed::store_widened<kOutputs>(weights, piece % kOutputs, part * 4 + piece / kOutputs, held[i]);
    }
  }
  fence_proxy_async_shared();  // for the tensor cores, which read them
  named_barrier_sync(1, kConsumers);
}

template <WeightType kType>
__global__ void __launch_bounds__(kThreads, 2)
    absorb_tiled_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap y_map,
                        const __grid_constant__ CUtensorMap q_map, const AbsorbQueryParams p,
                        int tiles_a_run) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using T = Row16<kType>;
  constexpr bool kFp8 = kType == WeightType::kFp8Block;
  if (threadIdx.x == 0 && shared_address(shared) % 1024 != 0) __trap();  // tiles need this alignment
  uint8_t* weights = shared;
  uint8_t* stages = shared + kWeightBytes;
  auto* full = reinterpret_cast<Mbarrier*>(shared + kBarrierOffset);
  Mbarrier* empty = full + kStages;
  Mbarrier* weights_full = empty + kStages;
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.x) / 2;
  const int half = static_cast<int>(blockIdx.x) % 2;
  const int first_tile = static_cast<int>(blockIdx.y) * tiles_a_run;
  const int tiles = min(tiles_a_run, static_cast<int>((p.m + kTokens - 1) / kTokens) - first_tile);

  if (threadIdx.x == 0) {
    tma_prefetch_map(&q_map);
    tma_prefetch_map(&y_map);
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(&full[s], 32);
      mbarrier_init(&empty[s], 4);
    }
    mbarrier_init(weights_full, 1);
    mbarrier_init_fence();
    fence_proxy_async_shared();
    const int row = head * 512 + half * kOutputs;
    if constexpr (kFp8) {
      mbarrier_arrive_expect_tx(weights_full, kWeightBytes / 2);
      tma_load_2d(weights + kWeightBytes / 2, &w_map, weights_full, 0, row);
    } else {
      absorbed::load_weights<kOutputs, kInputs, 1>(weights, &w_map, weights_full, row);
    }
  }
  __syncthreads();  // the barriers are initialised
  const auto begin = [] {
    pdl_wait();
    pdl_launch_dependents();
  };

  const int64_t first_m = static_cast<int64_t>(first_tile) * kTokens;
  RingPosition<kStages> ring;
  if (warp >= 4) {
    const bool copies = warp == 4;
    const bool turns = p.positions != nullptr;
    const int share = (warp - 4) * 2 + half;
    Turns even;
    Turns odd;
    if (turns && p.settled) {
      even.load_positions(p, share, first_m, lane);
      even.load_angles(p, lane);
    }
    begin();
    QueryRows rows;
    if (copies && p.rows != nullptr) rows.load(p, first_m, lane);
    const auto copy = [&](int tile) {
      const int64_t m0 = first_m + static_cast<int64_t>(tile) * kTokens;
      uint8_t* stage = stages + ring.slot * kTileBytes;
      Mbarrier* barrier = &full[ring.slot];
      const bool follow = p.rows == nullptr || rows.follow(lane);
      mbarrier_wait(&empty[ring.slot], ring.producer_parity());
      if (follow) {
        const int row = p.rows == nullptr ? static_cast<int>(m0) : rows.low;
        if (lane == 0) {
          mbarrier_arrive_expect_tx(barrier, kTileBytes);
          tma_load_3d(stage, &q_map, barrier, 0, head, row);
          tma_load_3d(stage + kTokens * 128, &q_map, barrier, 64, head, row);
        } else {
          mbarrier_arrive(barrier);
        }
      } else {
        rows.copy(p, stage, head, lane);
        copy_async_arrive(barrier);
      }
      ring.advance();
      if (p.rows != nullptr && tile + 1 < tiles) rows.load(p, m0 + kTokens, lane);
    };
    if (copies) copy(0);
    if (turns) {
      if (!p.settled) {
        even.load_positions(p, share, first_m, lane);
        odd.load_positions(p, share, first_m + kTokens, lane);
        even.load_angles(p, lane);
      } else {
        odd.load_positions(p, share, first_m + kTokens, lane);
      }
      even.load_values(p, head, lane);
      if (tiles > 1) {
        odd.load_angles(p, lane);
        odd.load_values(p, head, lane);
        even.load_positions(p, share, first_m + 2 * kTokens, lane);
        odd.load_positions(p, share, first_m + 3 * kTokens, lane);
      }
    }
    const auto step = [&](int tile, Turns& turn) {
      if (copies && tile + 1 < tiles) copy(tile + 1);
      if (!turns) return;
      const int64_t m0 = first_m + static_cast<int64_t>(tile) * kTokens;
      turn.template store<T>(p, head, share, m0, lane);
      if (tile + 2 >= tiles) return;
      turn.load_angles(p, lane);
      turn.load_values(p, head, lane);
      turn.load_positions(p, share, m0 + 4 * kTokens, lane);
    };
    if (!copies && !turns) return;
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile += 2) {
      step(tile, even);
      if (tile + 1 < tiles) step(tile + 1, odd);
    }
    return;
  }

  float scales[2] = {1.0F, 1.0F};
  mbarrier_wait(weights_full, 0);
  if constexpr (kFp8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[i] = p.w_uk.scales[(head * 4 + half * 2 + i) * p.w_uk.scale_stride];
    widen_in_place(weights, static_cast<int>(threadIdx.x));
  }
  begin();
  // Outputs that the L2 cannot keep should go to memory as soon as possible.
  const L2Policy policy = p.m * p.num_heads >= kManyRows ? L2Policy::kEvictFirst : L2Policy::kNormal;
  uint8_t* staging = shared + kStagingOffset + warp * (kStagingParts * 2048);
  const uint64_t w_tile = wgmma_k_major(weights);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int64_t m0 = static_cast<int64_t>(first_tile + tile) * kTokens;
    mbarrier_wait(&full[ring.slot], ring.parity());
    fence_proxy_async_shared();  // cp.async wrote q, the tensor cores read it
    float sums[kOutputs / 2];
    const uint64_t x_tile = wgmma_k_major(stages + ring.slot * kTileBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kInputs / 16; ++step) {
      wgmma_16_bit<T, kOutputs>(sums, wgmma_advance(x_tile, step / 4 * (kTokens * 128) + step % 4 * 32),
                                wgmma_advance(w_tile, step / 4 * (kOutputs * 128) + step % 4 * 32), step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(sums);
    if (lane == 0) mbarrier_arrive(&empty[ring.slot]);
    ring.advance();
    // The outputs pass through shared memory of the warp's own, 16 rows × 64 outputs at a time. Sums of empty
    // rows are zeros of either sign; adding +0 makes them +0.
#pragma unroll
    for (int part = 0; part < kOutputs / 64; ++part) {
      uint8_t* buffer = staging + part % kStagingParts * 2048;
      if (lane == 0) bulk_store_wait_read<kStagingParts - 1>();
      __syncwarp();
      const float scale = scales[part / 2];
      const auto pair = [&](float a, float b) {
        return kFp8 ? pack_two<T>(fmaf(a, scale, 0.0F), fmaf(b, scale, 0.0F))
                    : pack_two<T>(a + 0.0F, b + 0.0F);
      };
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* v = &sums[32 * part + 8 * j];
        store_matrix_x4(shared_address(buffer) + swizzle_128(lane % 16, 2 * j + lane / 16), pair(v[0], v[1]),
                        pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7]));
      }
      fence_proxy_async_shared();
      __syncwarp();
      if (lane == 0) {
        tma_store_3d(&y_map, buffer, half * kOutputs + part * 64, head, static_cast<int>(m0) + warp * 16,
                     policy);
        bulk_store_commit();
      }
    }
  }
  if (lane == 0) bulk_store_wait<0>();
}

// Returns a map of q as [rows, heads, 128], in boxes of 64 tokens × 64 of k. The values for RoPE lie between
// the boxes, so the L2 should fetch 128 bytes at a time and no neighbouring lines.
template <typename T>
CUtensorMap query_map(const AbsorbQueryParams& p, int64_t rows) {
  const cuuint64_t sizes[] = {kInputs, static_cast<cuuint64_t>(p.num_heads), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(p.q_head_stride) * sizeof(T),
                                static_cast<cuuint64_t>(p.q_row_stride) * sizeof(T)};
  const cuuint32_t box[] = {64, 1, kTokens};
  const cuuint32_t element_strides[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      tensor_map_encoder()(&map, tensor_map_type<T>(), 3, const_cast<void*>(p.q), sizes, strides, box,
                           element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HADAL_CHECK(result == CUDA_SUCCESS, "absorb_query: map of q: driver error {}; strides {} and {}",
              static_cast<int>(result), p.q_head_stride, p.q_row_stride);
  return map;
}

template <WeightType kType>
void run(const AbsorbQueryParams& p, const Launch& launch) {
  using T = Row16<kType>;
  const int tiles = static_cast<int>((p.m + kTokens - 1) / kTokens);
  const int runs = std::clamp(launch.num_sms * 2 / (p.num_heads * 2), 1, tiles);
  const int tiles_a_run = (tiles + runs - 1) / runs;
  const CUtensorMap y_map = make_tensor_map<3>(static_cast<const T*>(p.y), {576, p.num_heads, p.m},
                                               {576, int64_t{576} * p.num_heads}, {64, 1, 16});
  // If p.rows is set, the number of rows of q is not known here; this bound exceeds every row's index.
  const int64_t q_rows = p.rows == nullptr ? p.m : int64_t{1} << 24;
  const CUtensorMap q_map = query_map<T>(p, q_rows);
  const int64_t rows = int64_t{512} * p.num_heads;
  const CUtensorMap w_map =
      is_16_bit(kType)
          ? make_tensor_map<2>(static_cast<const T*>(p.w_uk.data), {kInputs, rows}, {p.w_uk.row_stride},
                               {64, kOutputs})
          : make_tensor_map<2, fp8_e4m3>(static_cast<const fp8_e4m3*>(p.w_uk.data), {kInputs, rows},
                                         {p.w_uk.row_stride}, {kInputs, kOutputs});
  const dim3 grid(static_cast<unsigned>(p.num_heads * 2),
                  static_cast<unsigned>((tiles + tiles_a_run - 1) / tiles_a_run));
  launch_kernel<absorb_tiled_kernel<kType>>(launch, grid, dim3(kThreads), kSharedBytes, w_map, y_map, q_map,
                                            p, tiles_a_run);
}

}  // namespace

void absorb_query_tiled(const AbsorbQueryParams& p, const Launch& launch) {
  HADAL_CHECK(supports_absorb_query(p), "absorb_query does not support m {}, strides {} and {}", p.m,
              p.q_row_stride, p.q_head_stride);
  if (p.w_uk.type == WeightType::kFp8Block) return run<WeightType::kFp8Block>(p, launch);
  if (p.w_uk.type == WeightType::kF16) return run<WeightType::kF16>(p, launch);
  run<WeightType::kBF16>(p, launch);
}

}  // namespace hadal::cuda
