// Computes expand_value for many tokens: y[m, h, 0:128] = o[m, h, 0:512] · W_UV[h]ᵀ on the tensor cores. A
// head's weights (128 KB) stay in the shared memory of a block, and rows of o stream past them.
//
// Grid: x is the head, y the run of tiles of tokens, with one block per multiprocessor. With kHalves a tile
// has 64 tokens, and each of the two consumer warpgroups computes half of their 128 outputs. Otherwise a tile
// has 128 tokens, 64 for each warpgroup; this is used if a block then has one tile instead of two. Warps 0 …
// 7 are the consumers; warp 8 is the producer, one thread of which issues the copies. The copy engine loads
// the weights (all 512 of k) once, before pdl_wait. 16-bit weights arrive in eight parts, and the first tile
// waits for each part separately. FP8 codes arrive in four parts in the second half of the weights' memory,
// and the consumers widen them to bf16 (exactly) while o is being loaded. With FP8, the sum over each 128 of
// k is multiplied by its block's scale and added up in float32. o is loaded in slots of a tile's tokens × 64
// of k.
//
// Barriers    arrivals                   signalled by  waited for by   phase p of slot s
//   weights   1 + bytes per part         copy engine   consumers       one
//   full[s]   1 + bytes                  copy engine   consumers       slot s + kSlots · p of the run
//   empty[s]  8 consumer warps           consumers     producer        slot s + kSlots · p
//   named 1 … 4 (kHalves): warps w and w + 4 have exchanged the largest magnitudes of their rows
//   named 5 (FP8): the consumers, when all have read the codes and when all have widened theirs
// Shared memory holds 128 KB of weights, 80 KB of slots (64 KB with kHalves), and 2 KB per consumer warp to
// turn sums into rows.
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/gemm/absorbed/choice.h"
#include "kernels/cuda/gemm/absorbed/tiled.cuh"
#include "kernels/cuda/gemm/plain_dot.cuh"

namespace hadal::cuda {
namespace {

constexpr int kOutputs = 128;
constexpr int kInputs = 512;
constexpr int kParts = kInputs / 64;
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;
constexpr int kWeightBytes = kOutputs * kInputs * 2;

template <bool kHalves>
struct Plan {
  static constexpr int kTokens = kHalves ? 64 : 128;
  static constexpr int kColumns = kHalves ? 64 : 128;  // outputs of a warpgroup
  static constexpr int kSlots = kHalves ? 8 : 5;
  static constexpr int kSlotBytes = kTokens * 128;
  static constexpr int kStagingOffset = kWeightBytes + kSlots * kSlotBytes;
  static constexpr int kMaximaOffset = kStagingOffset + 8 * 2048;  // [2 tiles][2 halves][64 rows]
  static constexpr int kBarrierOffset = kMaximaOffset + (kHalves ? 2 * 2 * 64 * 4 : 0);
  static constexpr int kSharedBytes = kBarrierOffset + (2 * kSlots + kParts) * 8;
};

// Stores a warp's 16 rows of kColumns outputs, through 2 KB of shared memory of its own. Lanes r and 16 + r
// hold the target of row r, which is its row of y; a row whose target is below 0 is not stored.
template <int kColumns>
struct Rows {
  uint8_t* staging;
  int32_t target;
  int lane;

  __device__ __forceinline__ int32_t target_of(int row) const {
    return __shfl_sync(0xffffffffU, target, row);
  }
  template <typename T>
  __device__ __forceinline__ void store_rows(const ExpandValueParams& p, const float (&sums)[kColumns / 2],
                                             int column) const {
#pragma unroll
    for (int part = 0; part < kColumns / 64; ++part) {
      __syncwarp();  // the previous contents have been read
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* v = &sums[32 * part + 8 * j];
        store_matrix_x4(shared_address(staging) + swizzle_128(lane % 16, 2 * j + lane / 16),
                        pack_two<T>(v[0], v[1]), pack_two<T>(v[2], v[3]), pack_two<T>(v[4], v[5]),
                        pack_two<T>(v[6], v[7]));
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 8 + 4 * i;
        const int64_t to = target_of(row);
        if (to < 0) continue;
        *reinterpret_cast<uint4*>(static_cast<T*>(p.y) + to * p.y_stride + column + part * 64 +
                                  lane % 8 * 8) =
            *reinterpret_cast<const uint4*>(staging + swizzle_128(row, lane % 8));
      }
    }
  }
  // Stores to FP8 rows. `maxima` are the largest magnitudes of rows lane / 4 and 8 + lane / 4 over their
  // whole group.
  __device__ __forceinline__ void store_fp8(const ExpandValueParams& p, const float (&sums)[kColumns / 2],
                                            const float (&maxima)[2], int head, int column) const {
    __syncwarp();  // the previous contents have been read
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = quant_scale(maxima[h], p.y_quantized.power_of_two);
      const float inverse = absorbed::inverse_scale(scale);
      const int row = lane / 4 + 8 * h;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        *reinterpret_cast<uint16_t*>(staging + swizzle_128(row, j / 2) + j % 2 * 8 + lane % 4 * 2) =
            absorbed::quotients_to_e4m3(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1], scale, inverse);
      }
      const int64_t to = target_of(row);
      if (lane % 4 == 0 && column % kOutputs == 0 && to >= 0)
        p.y_quantized.scales[head * p.y_quantized.scale_stride + to] = scale;
    }
    __syncwarp();
    constexpr int kChunks = kColumns / 16;
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int row = lane / kChunks + 32 / kChunks * i;
      const int64_t to = target_of(row);
      if (to < 0) continue;
      *reinterpret_cast<uint4*>(p.y_quantized.codes + to * p.y_quantized.stride + column +
                                lane % kChunks * 16) =
          *reinterpret_cast<const uint4*>(staging + swizzle_128(row, lane % kChunks));
    }
  }
};

// Widens the codes in the second half of the weights' memory: the first two blocks of k into the first half,
// then the other two into the second half. The consumers call this.
__device__ __forceinline__ void widen_in_place(uint8_t* weights, Mbarrier* weights_full, int thread) {
  const uint8_t* codes = weights + kWeightBytes / 2;
  constexpr int kBlockBytes = kOutputs * 128;  // bytes of codes
  constexpr int kEach = kOutputs * 8 / kConsumers;
  uint4 held[2][kEach];
#pragma unroll
  for (int block = 0; block < kInputs / 128; ++block) {
    mbarrier_wait(&weights_full[block], 0);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int piece = thread + i * kConsumers;
      held[block % 2][i] =
          absorbed::load_codes(codes + block * kBlockBytes, piece % kOutputs, piece / kOutputs);
    }
    if (block % 2 == 0) continue;
    if (block == 3) named_barrier_sync(5, kConsumers);  // all codes have been read
#pragma unroll
    for (int of = 0; of < 2; ++of) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int piece = thread + i * kConsumers;
        absorbed::store_widened<kOutputs>(weights + (block - 1 + of) * (2 * kBlockBytes), piece % kOutputs,
                                          piece / kOutputs, held[of][i]);
      }
    }
  }
  fence_proxy_async_shared();  // for the tensor cores, which read them
  named_barrier_sync(5, kConsumers);
}

template <WeightType kType, bool kHalves>
__global__ void __launch_bounds__(kThreads, 1)
    expand_tiled_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap o_map,
                        const ExpandValueParams p, int tiles_a_run) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using P = Plan<kHalves>;
  using T = Row16<kType>;
  constexpr bool kFp8 = kType == WeightType::kFp8Block;
  constexpr int kColumns = P::kColumns;
  if (threadIdx.x == 0 && shared_address(shared) % 1024 != 0) __trap();  // tiles need this alignment
  uint8_t* weights = shared;
  uint8_t* slots = shared + kWeightBytes;
  auto* full = reinterpret_cast<Mbarrier*>(shared + P::kBarrierOffset);
  Mbarrier* empty = full + P::kSlots;
  Mbarrier* weights_full = empty + P::kSlots;
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.x);
  const int first_tile = static_cast<int>(blockIdx.y) * tiles_a_run;
  const int tiles = min(tiles_a_run, static_cast<int>((p.m + P::kTokens - 1) / P::kTokens) - first_tile);

  if (threadIdx.x == kConsumers) {
    tma_prefetch_map(&o_map);
    for (int s = 0; s < P::kSlots; ++s) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], 8);
    }
    for (int part = 0; part < kParts; ++part) mbarrier_init(&weights_full[part], 1);
    mbarrier_init_fence();
    fence_proxy_async_shared();
    const int row = head * 256 + kOutputs;
    if constexpr (kFp8) {
      for (int block = 0; block < kInputs / 128; ++block) {
        mbarrier_arrive_expect_tx(&weights_full[block], kOutputs * 128);
        tma_load_2d(weights + kWeightBytes / 2 + block * (kOutputs * 128), &w_map, &weights_full[block],
                    block * 128, row);
      }
    } else {
      absorbed::load_weights<kOutputs, kInputs, kParts>(weights, &w_map, weights_full, row);
    }
  }
  __syncthreads();  // the barriers are initialised
  float block_scales[4] = {};
  if constexpr (kFp8) {
#pragma unroll
    for (int block = 0; block < 4; ++block)
      block_scales[block] = __ldg(p.kv_b.scales + (head * 2 + 1) * p.kv_b.scale_stride + block);
    if (warp < 8) widen_in_place(weights, weights_full, static_cast<int>(threadIdx.x));
    wgmma_pin(block_scales);  // they must be loaded by now, not between the products
  }
  pdl_wait();
  pdl_launch_dependents();

  RingPosition<P::kSlots> ring;
  if (warp == 8) {
    if (lane == 0) {
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll 1
        for (int k = 0; k < kInputs; k += 64) {
          mbarrier_wait(&empty[ring.slot], ring.producer_parity());
          mbarrier_arrive_expect_tx(&full[ring.slot], P::kSlotBytes);
          tma_load_3d(slots + ring.slot * P::kSlotBytes, &o_map, &full[ring.slot], k, head,
                      (first_tile + tile) * P::kTokens);
          ring.advance();
        }
      }
    }
    return;
  }

  const int consumer = warp / 4;
  Rows<kColumns> rows{.staging = shared + P::kStagingOffset + warp * 2048, .target = -1, .lane = lane};
  auto* maxima = reinterpret_cast<float*>(shared + P::kMaximaOffset);
  const uint64_t w_tiles = wgmma_k_major(weights + (kHalves ? consumer * (64 * 128) : 0));
  const uint64_t o_tiles = wgmma_k_major(slots + (kHalves ? 0 : consumer * (64 * 128)));
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int64_t m0 =
        static_cast<int64_t>(first_tile + tile) * P::kTokens + (kHalves ? 0 : consumer * 64) + warp % 4 * 16;
    const int64_t m = m0 + lane % 16;
    rows.target = m >= p.m ? -1 : p.rows != nullptr ? p.rows[m] : static_cast<int32_t>(m);
    // In 16 bits part[0] is the sum. In FP8 part[b % kSets] is the sum over block b of 128 of k. With two
    // sets, one set is added up while the products of the other set run. (Two sets of 128 columns do not fit
    // into the registers.)
    constexpr int kSets = kFp8 && kHalves ? 2 : 1;
    float part[kSets][kColumns / 2];
    float total[kFp8 ? kColumns / 2 : 1];
#pragma unroll
    for (float& value : total) value = 0.0F;
    const auto add_block = [&](int block) {
      const float scale = block == 0   ? block_scales[0]
                          : block == 1 ? block_scales[1]
                          : block == 2 ? block_scales[2]
                                       : block_scales[3];
      wgmma_pin(part[block % kSets]);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        total[i] = fmaf(part[block % kSets][i], scale, total[i]);
      }
    };
    uint32_t used = 0;
    constexpr int kUnrolled = kFp8 && kSets == 1 ? 2 : kParts;
#pragma unroll 1
    for (int first = 0; first < kParts; first += kUnrolled) {
#pragma unroll
      for (int at = 0; at < kUnrolled; ++at) {
        const int step = first + at;
        float(&sums)[kColumns / 2] = part[at / 2 % kSets];
        if constexpr (!kFp8) mbarrier_wait(&weights_full[step], 0);
        mbarrier_wait(&full[ring.slot], ring.parity());
        const uint64_t o_tile = wgmma_advance(o_tiles, ring.slot * P::kSlotBytes);
        const uint64_t w_tile = wgmma_advance(w_tiles, step * (kOutputs * 128));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          wgmma_16_bit<T, kColumns>(sums, wgmma_advance(o_tile, k * 32), wgmma_advance(w_tile, k * 32),
                                    k > 0 || (kFp8 ? at % 2 : at) > 0);
        }
        wgmma_commit();
        if constexpr (kFp8 && kSets == 1) {
          if (at % 2 == 1) {
            wgmma_wait<0>();
            if (lane < 2) mbarrier_arrive(&empty[lane == 0 ? used : ring.slot]);
            add_block(step / 2);
          }
        } else if (at > 0) {
          wgmma_wait<1>();
          if (lane == 0) mbarrier_arrive(&empty[used]);
          if constexpr (kFp8) {
            if (at % 2 == 0) add_block(at / 2 - 1);
          }
        }
        used = ring.slot;
        ring.advance();
      }
    }
    if constexpr (!kFp8 || kSets > 1) {
      wgmma_wait<0>();
      if (lane == 0) mbarrier_arrive(&empty[used]);
    }
    if constexpr (!kFp8) wgmma_pin(part[0]);
    if constexpr (kSets > 1) add_block(kInputs / 128 - 1);
    const float(&sums)[kColumns / 2] = [&]() -> const float(&)[kColumns / 2] {
      if constexpr (kFp8) {
        return total;
      } else {
        return part[0];
      }
    }();
    if (m0 >= p.m) continue;
    const int column = head * kOutputs + (kHalves ? consumer * 64 : 0);
    if (p.y != nullptr) {
      rows.template store_rows<T>(p, sums, column);
      continue;
    }
    float row_maxima[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float amax = 0.0F;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
        amax = fmaxf(amax, fmaxf(fabsf(sums[4 * j + 2 * h]), fabsf(sums[4 * j + 2 * h + 1])));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, 1));
      row_maxima[h] = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, 2));
    }
    if constexpr (kHalves) {
      // Two places are used in turn, because a warp may write the next tile's maxima while the other warp
      // still reads this tile's.
      float* const exchange = maxima + tile % 2 * 128 + warp % 4 * 16 + lane / 4;
      if (lane % 4 == 0) {
        exchange[consumer * 64] = row_maxima[0];
        exchange[consumer * 64 + 8] = row_maxima[1];
      }
      named_barrier_sync(1 + warp % 4, 64);
      row_maxima[0] = fmaxf(row_maxima[0], exchange[(1 - consumer) * 64]);
      row_maxima[1] = fmaxf(row_maxima[1], exchange[(1 - consumer) * 64 + 8]);
    }
    rows.store_fp8(p, sums, row_maxima, head, column);
  }
}

template <WeightType kType, bool kHalves>
void run(const ExpandValueParams& p, const Launch& launch) {
  using T = Row16<kType>;
  using P = Plan<kHalves>;
  const int tiles = static_cast<int>((p.m + P::kTokens - 1) / P::kTokens);
  const int runs = std::clamp(launch.num_sms / p.num_heads, 1, tiles);
  const int tiles_a_run = (tiles + runs - 1) / runs;
  const CUtensorMap o_map =
      make_tensor_map<3>(static_cast<const T*>(p.o), {kInputs, p.num_heads, p.m},
                         {kInputs, int64_t{kInputs} * p.num_heads}, {64, 1, P::kTokens});
  const int64_t rows = int64_t{256} * p.num_heads;
  const CUtensorMap w_map =
      is_16_bit(kType) ? make_tensor_map<2>(static_cast<const T*>(p.kv_b.data), {kInputs, rows},
                                            {p.kv_b.row_stride}, {64, kOutputs})
                       : make_tensor_map<2, fp8_e4m3>(static_cast<const fp8_e4m3*>(p.kv_b.data),
                                                      {kInputs, rows}, {p.kv_b.row_stride}, {128, kOutputs});
  const dim3 grid(static_cast<unsigned>(p.num_heads),
                  static_cast<unsigned>((tiles + tiles_a_run - 1) / tiles_a_run));
  launch_kernel<expand_tiled_kernel<kType, kHalves>>(launch, grid, dim3(kThreads), P::kSharedBytes, w_map,
                                                     o_map, p, tiles_a_run);
}

template <WeightType kType>
void run(const ExpandValueParams& p, const Launch& launch) {
  if (expand_value_tile(p.m, p.num_heads, launch.num_sms) == 64) return run<kType, true>(p, launch);
  run<kType, false>(p, launch);
}

}  // namespace

void expand_value_tiled(const ExpandValueParams& p, const Launch& launch) {
  HADAL_CHECK(supports_expand_value_tiled(p), "expand_value does not support m {}, y's stride {}", p.m,
              p.y_stride);
  if (p.kv_b.type == WeightType::kFp8Block) return run<WeightType::kFp8Block>(p, launch);
  if (p.kv_b.type == WeightType::kF16) return run<WeightType::kF16>(p, launch);
  run<WeightType::kBF16>(p, launch);
}

}  // namespace hadal::cuda
