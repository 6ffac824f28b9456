// Un-absorbed prefill attention on the tensor cores of sm_90a.
//
// An item is 128 queries of one head against the keys that they see, in tiles of 128 keys from the last one
// down, so that the tiles that need a mask come first. The grid is one block for each multiprocessor; blocks
// take items as prefill_schedule.h says.
//
// Warpgroup 0 is the producer (one warp works): TMA loads straight from the strided tensors. A key tile is
// three boxes of [128 keys][64 columns] with the 128-byte swizzle: two of the head's k_nope and the shared
// k_rope; a value tile is two. Warpgroups 1 and 2 are consumers with 64 queries each: S = Q·Kᵀ (wgmma, both
// operands in shared memory), softmax in registers, O += P·V (P from registers, V as the transposed operand).
//
// Overlap: a consumer issues S of the next tile and P·V of this one together, and two named barriers let the
// consumers issue in turn, so that the softmax of one runs beside the products of the other.
//
// Barriers (mbarrier): q_full/q_empty, k_full/k_empty and v_full/v_empty for each of two stages; `full` by
// the bytes of the copies, `empty` by one arrival of each consumer warp (q: a pair for each consumer). Values
// past the run's end are another run's memory: 0 · NaN would leak, so the producer waits for such a tile
// itself (v_landed), zeroes those rows and only then arrives at v_full.
//
// Shared memory: Q 48 KB, K 2 × 48 KB, V 2 × 32 KB: 208 KB. Registers: 232 for consumers (S 64, O 64, P 32),
// 40 for the producer.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/prefill.h"
#include "kernels/cuda/mla/prefill_schedule.cuh"

namespace hadal::cuda {
namespace {

static_assert(kPrefillQueryTile == 128, "two warpgroups of 64");
constexpr int kKeyTile = kPrefillKeyTile;
constexpr int kStages = 2;
constexpr int kConsumerThreads = 256;
constexpr int kConsumerWarps = kConsumerThreads / 32;
constexpr int kThreads = 128 + kConsumerThreads;
constexpr int kBoxColumns = 64;    // 128 bytes of bf16
constexpr int kGroupQueries = 64;  // of a consumer warpgroup
constexpr int kQueryBox = kGroupQueries * 128;
constexpr int kKeyBox = kKeyTile * 128;
constexpr int kQkBoxes = kPrefillQk / kBoxColumns;
constexpr int kValueBoxes = kPrefillValue / kBoxColumns;
constexpr int kScores = kKeyTile / 2;        // accumulators of S a thread
constexpr int kOutputs = kPrefillValue / 2;  // accumulators of O a thread
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

struct SharedStorage {
  alignas(1024) std::byte q[2][kQkBoxes * kQueryBox];
  alignas(1024) std::byte k[kStages][kQkBoxes * kKeyBox];
  alignas(1024) std::byte v[kStages][kValueBoxes * kKeyBox];
  Mbarrier q_full[2], q_empty[2], v_landed;
  Mbarrier k_full[kStages], k_empty[kStages];
  Mbarrier v_full[kStages], v_empty[kStages];
};
constexpr size_t kSharedBytes = sizeof(SharedStorage) + 1024;  // dynamic memory is aligned to 1024 by hand
static_assert(kSharedBytes <= 227 * 1024);

struct KernelParams {
  PrefillSchedule schedule;
  int num_keys = 0;
  float scale_log2 = 0.0F;  // softmax_scale · log2(e)
  bf16* out = nullptr;
  int64_t out_stride = 0;
  float* lse = nullptr;
  bool accumulate = false;
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ void produce(const KernelParams& p, SharedStorage& shared, const CUtensorMap* q_map,
                        const CUtensorMap* kv_map, const CUtensorMap* rope_map) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<kStages> k_ring;
  RingPosition<kStages> v_ring;
  uint32_t q_phase = 0;
  uint32_t landed_phase = 0;
  const auto load_keys = [&](const PrefillItem& item, int tile) {
    mbarrier_wait(&shared.k_empty[k_ring.slot], k_ring.producer_parity());
    if (lane == 0) {
      Mbarrier* full = &shared.k_full[k_ring.slot];
      std::byte* to = shared.k[k_ring.slot];
      const int row = item.k_row + tile * kKeyTile;
      mbarrier_arrive_expect_tx(full, kQkBoxes * kKeyBox);
      tma_load_3d(to, kv_map, full, 0, item.head, row);
      tma_load_3d(to + kKeyBox, kv_map, full, kBoxColumns, item.head, row);
      tma_load_2d(to + 2 * kKeyBox, rope_map, full, 0, row);
    }
    __syncwarp();
    k_ring.advance();
  };
  const auto load_values = [&](const PrefillItem& item, int tile) {
    mbarrier_wait(&shared.v_empty[v_ring.slot], v_ring.producer_parity());
    std::byte* to = shared.v[v_ring.slot];
    const int row = item.k_row + tile * kKeyTile;
    const int valid = item.k_len - tile * kKeyTile;
    // Past the last key of all the copies themselves write zeros.
    const bool ragged = valid < kKeyTile && item.k_row + item.k_len < p.num_keys;
    Mbarrier* full = &shared.v_full[v_ring.slot];
    if (lane == 0) {
      Mbarrier* landed = ragged ? &shared.v_landed : full;
      mbarrier_arrive_expect_tx(landed, kValueBoxes * kKeyBox);
      tma_load_3d(to, kv_map, landed, kPrefillNope, item.head, row);
      tma_load_3d(to + kKeyBox, kv_map, landed, kPrefillNope + kBoxColumns, item.head, row);
    }
    __syncwarp();
    if (ragged) {
      mbarrier_wait(&shared.v_landed, landed_phase);
      landed_phase ^= 1U;
      for (int i = valid * 8 + lane; i < kKeyTile * 8; i += 32) {
        *reinterpret_cast<uint4*>(to + i * 16) = uint4{0, 0, 0, 0};
        *reinterpret_cast<uint4*>(to + kKeyBox + i * 16) = uint4{0, 0, 0, 0};
      }
      fence_proxy_async_shared();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(full);
      __syncwarp();
    }
    v_ring.advance();
  };

  const int halves = p.schedule.pairs ? 2 : 1;
  for (int i = 0; prefill_unit_index(i / halves) < p.schedule.num_units; ++i) {
    const PrefillItem item = prefill_item(p.schedule, prefill_unit_index(i / halves), i % halves);
    if (item.num_key_tiles == 0) continue;
    load_keys(item, item.num_key_tiles - 1);
    for (int group = 0; group < 2; ++group) {
      mbarrier_wait(&shared.q_empty[group], q_phase ^ 1U);
      if (lane == 0) {
        Mbarrier* full = &shared.q_full[group];
        mbarrier_arrive_expect_tx(full, kQkBoxes * kQueryBox);
        for (int box = 0; box < kQkBoxes; ++box) {
          tma_load_3d(shared.q[group] + box * kQueryBox, q_map, full, box * kBoxColumns, item.head,
                      item.q_row + group * kGroupQueries, L2Policy::kEvictFirst);
        }
      }
      __syncwarp();
    }
    q_phase ^= 1U;
    for (int tile = item.num_key_tiles - 1; tile >= 0; --tile) {
      if (tile > 0) load_keys(item, tile - 1);
      load_values(item, tile);
    }
  }
}

// One row of the tile's scores lies in the four threads of a quad; a thread has two rows, h = 0 and 1.
struct RowState {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0F, 0.0F};  // of this thread's columns
};

// S becomes P (unscaled, relative to the new maximum); rescale[h] is what older sums and outputs are
// multiplied with. kMasked: columns from limit[h] on (counted from the thread's first column) are hidden.
template <bool kMasked>
__device__ __forceinline__ void softmax_tile(float (&s)[kScores], RowState& rows, float (&rescale)[2],
                                             float scale_log2, const int (&limit)[2]) {
  if constexpr (kMasked) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int column = i / 4 * 8 + i % 2;
      if (column >= limit[i / 2 % 2]) s[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float maximum = rows.maximum[h];
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j)
      maximum = fmaxf(maximum, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 2));
    // A row that has seen no key yet: any finite reference will do.
    const float reference = (kMasked && maximum == -INFINITY ? 0.0F : maximum) * scale_log2;
    rescale[h] = exp2_fast(rows.maximum[h] * scale_log2 - reference);
    rows.maximum[h] = maximum;
    float sum = rows.sum[h] * rescale[h];
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& element = s[4 * j + 2 * h + c];
        element = exp2_fast(fmaf(element, scale_log2, -reference));
        sum += element;
      }
    }
    rows.sum[h] = sum;
  }
}

template <int kColumns = kKeyTile>
__device__ __forceinline__ void multiply_qk(float (&s)[kColumns / 2], const std::byte* q,
                                            const std::byte* k) {
  const uint64_t a = wgmma_k_major(q);
  const uint64_t b = wgmma_k_major(k);
#pragma unroll
  for (int step = 0; step < kPrefillQk / 16; ++step) {
    const int box = step / 4;
    const int inside = step % 4 * 32;
    wgmma_bf16<kColumns>(s, wgmma_advance(a, box * kQueryBox + inside),
                         wgmma_advance(b, box * kKeyBox + inside), step != 0);
  }
}

__device__ __forceinline__ void multiply_pv(float (&o)[kOutputs], const uint32_t (&p)[kScores / 8][4],
                                            const std::byte* v) {
  const uint64_t b = wgmma_mn_major(v, kKeyBox);
#pragma unroll
  for (int step = 0; step < kKeyTile / 16; ++step) {
    wgmma_bf16_rs<kPrefillValue, true>(o, p[step], wgmma_advance(b, step * 2048), true);
  }
}

__device__ __forceinline__ void pack_p(const float (&s)[kScores], uint32_t (&p)[kScores / 8][4]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) p[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ void arrive_warp(Mbarrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// 4×4 words across a quad: word i of thread t becomes word t of thread i.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = (threadIdx.x & 1U) != 0;
  const bool high = (threadIdx.x & 2U) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffU, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffU, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

// Queries of a tile that sees no key.
__device__ void store_nothing(const KernelParams& p, const PrefillItem& item, int thread) {
  if (p.accumulate) return;
  constexpr int kChunks = kPrefillValue / 8;
  for (int i = thread; i < item.num_queries * kChunks; i += kConsumerThreads) {
    const int64_t row = item.q_row + i / kChunks;
    *reinterpret_cast<uint4*>(p.out + row * p.out_stride + item.head * kPrefillValue + i % kChunks * 8) =
        uint4{0, 0, 0, 0};
  }
  if (p.lse != nullptr && thread < item.num_queries) {
    p.lse[(int64_t{item.q_row} + thread) * p.schedule.num_heads + item.head] = -INFINITY;
  }
}

__device__ __forceinline__ void store_tile(const KernelParams& p, const PrefillItem& item, int first_row,
                                           float (&o)[kOutputs], RowState& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    const int row = first_row + 8 * h;
    const bool valid = row < item.num_queries;
    const int64_t q_row = int64_t{item.q_row} + row;
    bf16* out = p.out + q_row * p.out_stride + item.head * kPrefillValue;
    float* lse = p.lse != nullptr ? p.lse + q_row * p.schedule.num_heads + item.head : nullptr;
    const bool seen = sum > 0.0F;
    const float own_lse = seen ? (rows.maximum[h] * p.scale_log2 + log2f(sum)) * kLn2 : -INFINITY;
    float factor = seen ? __fdividef(1.0F, sum) : 0.0F;
    if (p.accumulate) {
      const float old_lse = valid ? *lse : -INFINITY;
      const float top = fmaxf(old_lse, own_lse);
      const float old_weight = top == -INFINITY ? 0.0F : exp2_fast((old_lse - top) * kLog2E);
      const float own_weight = top == -INFINITY ? 0.0F : exp2_fast((own_lse - top) * kLog2E);
      const float total = old_weight + own_weight;
      const float part_of_total = total > 0.0F ? __fdividef(1.0F, total) : 0.0F;
      const float keep = old_weight * part_of_total;
      factor *= own_weight * part_of_total;
      const bool has_old = valid && keep > 0.0F;
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        const uint32_t old = has_old ? *reinterpret_cast<const uint32_t*>(out + 8 * j + 2 * (lane % 4)) : 0U;
        const float2 part = unpack_bf16(old);
        o[4 * j + 2 * h] = o[4 * j + 2 * h] * factor + part.x * keep;
        o[4 * j + 2 * h + 1] = o[4 * j + 2 * h + 1] * factor + part.y * keep;
      }
      factor = 1.0F;
      __syncwarp();  // the quad has read its row
      if (valid && lane % 4 == 0 && total > 0.0F) *lse = top + log2f(total) * kLn2;
    } else if (lse != nullptr && valid && lane % 4 == 0) {
      *lse = own_lse;
    }
#pragma unroll
    for (int g = 0; g < kOutputs / 16; ++g) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (4 * g + i) + 2 * h;
        words[i] = pack_bf16(o[at] * factor, o[at + 1] * factor);
      }
      transpose_quad(words);
      if (valid) {
        *reinterpret_cast<uint4*>(out + 32 * g + 8 * (lane % 4)) =
            uint4{words[0], words[1], words[2], words[3]};
      }
    }
  }
}

__device__ void consume(const KernelParams& p, SharedStorage& shared) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int group = warp_uniform(thread / 128);
  const int lane = thread % 32;
  // Row in the tile of this thread's h = 0.
  const int first_row = group * 64 + thread % 128 / 32 * 16 + lane / 4;
  const std::byte* q = shared.q[group];
  const int own_turn = 1 + group;
  const int other_turn = 2 - group;
  RingPosition<kStages> k_ring;
  RingPosition<kStages> v_ring;
  uint32_t q_phase = 0;
  if (group == 1) named_barrier_arrive(other_turn, kConsumerThreads);  // group 0 begins

  const int halves = p.schedule.pairs ? 2 : 1;
  for (int i = 0; prefill_unit_index(i / halves) < p.schedule.num_units; ++i) {
    const PrefillItem item = prefill_item(p.schedule, prefill_unit_index(i / halves), i % halves);
    if (item.num_key_tiles == 0) {
      store_nothing(p, item, thread);
      continue;
    }
    // Keys that this thread's rows see, counted from its first column of tile 0.
    const int sees[2] = {min(item.k_len, item.first_limit + first_row) - 2 * (lane % 4),
                         min(item.k_len, item.first_limit + first_row + 8) - 2 * (lane % 4)};
    // Tiles below this one are seen whole by all rows of the warpgroup.
    const int whole_tiles = max(0, min(item.k_len, item.first_limit + group * 64)) / kKeyTile;

    float s[kScores];
    float o[kOutputs];
    uint32_t probabilities[kScores / 8][4];
    RowState rows;
    float rescale[2];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.0F;

    int tile = item.num_key_tiles - 1;
    mbarrier_wait(&shared.q_full[group], q_phase);
    q_phase ^= 1U;
    mbarrier_wait(&shared.k_full[k_ring.slot], k_ring.parity());
    // The first warpgroup sees half of a tile on the diagonal.
    const bool half = min(item.k_len, item.first_limit + group * 64 + 63) - tile * kKeyTile <= kKeyTile / 2;
    if (half) {
      float left[kScores / 2];  // an array of its own: in `s` the compiler runs out of registers
      wgmma_pin(left);
      wgmma_fence();
      multiply_qk<kKeyTile / 2>(left, q, shared.k[k_ring.slot]);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(left);
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = i < kScores / 2 ? left[i] : -INFINITY;
    } else {
      wgmma_pin(s);
      wgmma_fence();
      multiply_qk(s, q, shared.k[k_ring.slot]);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(s);
    }
    arrive_warp(&shared.k_empty[k_ring.slot]);
    k_ring.advance();
    {
      const int limit[2] = {sees[0] - tile * kKeyTile, sees[1] - tile * kKeyTile};
      softmax_tile<true>(s, rows, rescale, p.scale_log2, limit);
    }
    pack_p(s, probabilities);

    // S of `tile` together with P·V of the tile above it.
    const auto step = [&](auto masked) {
      mbarrier_wait(&shared.k_full[k_ring.slot], k_ring.parity());
      named_barrier_sync(own_turn, kConsumerThreads);
      wgmma_pin(s);
      wgmma_pin(o);
      wgmma_fence();
      multiply_qk(s, q, shared.k[k_ring.slot]);
      wgmma_commit();
      mbarrier_wait(&shared.v_full[v_ring.slot], v_ring.parity());
      wgmma_fence();
      multiply_pv(o, probabilities, shared.v[v_ring.slot]);
      wgmma_commit();
      named_barrier_arrive(other_turn, kConsumerThreads);
      wgmma_wait<1>();
      wgmma_pin(s);
      arrive_warp(&shared.k_empty[k_ring.slot]);
      k_ring.advance();
      const int limit[2] = {sees[0] - tile * kKeyTile, sees[1] - tile * kKeyTile};
      softmax_tile<decltype(masked)::value>(s, rows, rescale, p.scale_log2, limit);
      wgmma_wait<0>();
      wgmma_pin(o);
      arrive_warp(&shared.v_empty[v_ring.slot]);
      v_ring.advance();
      pack_p(s, probabilities);
      // Once the maxima have settled there is nothing to rescale.
      if (__any_sync(0xffffffffU, rescale[0] != 1.0F || rescale[1] != 1.0F)) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) o[i] *= rescale[i / 2 % 2];
      }
    };
    for (--tile; tile >= whole_tiles; --tile) step(std::true_type{});
    for (; tile >= 0; --tile) step(std::false_type{});
    arrive_warp(&shared.q_empty[group]);

    mbarrier_wait(&shared.v_full[v_ring.slot], v_ring.parity());
    wgmma_pin(o);
    wgmma_fence();
    multiply_pv(o, probabilities, shared.v[v_ring.slot]);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    arrive_warp(&shared.v_empty[v_ring.slot]);
    v_ring.advance();
    store_tile(p, item, first_row, o, rows);
  }
  if (group == 0) named_barrier_sync(own_turn, kConsumerThreads);  // takes the arrival that is left over
}

__global__ void __launch_bounds__(kThreads, 1)
    mla_prefill_kernel(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap q_map,
                       const __grid_constant__ CUtensorMap kv_map,
                       const __grid_constant__ CUtensorMap rope_map) {
  extern __shared__ std::byte dynamic_shared[];
  auto& shared = *reinterpret_cast<SharedStorage*>(dynamic_shared +
                                                   (1024 - shared_address(dynamic_shared) % 1024) % 1024);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&q_map);
    tma_prefetch_map(&kv_map);
    tma_prefetch_map(&rope_map);
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&shared.q_full[i], 1);
      mbarrier_init(&shared.q_empty[i], kConsumerWarps / 2);
    }
    mbarrier_init(&shared.v_landed, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&shared.k_full[i], 1);
      mbarrier_init(&shared.k_empty[i], kConsumerWarps);
      mbarrier_init(&shared.v_full[i], 1);
      mbarrier_init(&shared.v_empty[i], kConsumerWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  pdl_wait();
  if (threadIdx.x < 128) {
    set_max_registers_down<40>();
    if (threadIdx.x < 32) produce(p, shared, &q_map, &kv_map, &rope_map);
  } else {
    set_max_registers_up<232>();
    consume(p, shared);
    pdl_launch_dependents();
  }
}

bool aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

bool prefill_sm90_takes(const MlaPrefillParams& p) {
  constexpr int64_t kMaxStride = int64_t{1} << 38;  // elements: strides of tensor maps are below 2^40 bytes
  return p.num_keys > 0 && p.m > 0 && aligned(p.q) && aligned(p.kv) && aligned(p.k_rope) && aligned(p.out) &&
         p.q_row_stride % 8 == 0 && p.q_head_stride % 8 == 0 && p.out_stride % 8 == 0 && p.q_row_stride > 0 &&
         p.q_head_stride > 0 && p.q_row_stride < kMaxStride && p.q_head_stride < kMaxStride;
}

void prefill_sm90(const MlaPrefillParams& p, const Launch& launch) {
  KernelParams params;
  params.num_keys = static_cast<int>(p.num_keys);
  params.scale_log2 = p.softmax_scale * kLog2E;
  params.out = p.out;
  params.out_stride = p.out_stride;
  params.lse = p.lse;
  params.accumulate = p.accumulate;
  params.schedule = prefill_schedule(p, launch.num_sms);
  const CUtensorMap q_map =
      make_tensor_map<3>(p.q, {kPrefillQk, p.num_heads, p.m}, {p.q_head_stride, p.q_row_stride},
                         {kBoxColumns, 1, kGroupQueries});
  const CUtensorMap kv_map =
      make_tensor_map<3>(p.kv, {kPrefillKvRow, p.num_heads, p.num_keys},
                         {kPrefillKvRow, int64_t{p.num_heads} * kPrefillKvRow}, {kBoxColumns, 1, kKeyTile});
  const CUtensorMap rope_map =
      make_tensor_map<2>(p.k_rope, {kPrefillRope, p.num_keys}, {kPrefillRope}, {kBoxColumns, kKeyTile});
  const int blocks = std::min(params.schedule.num_units, launch.num_sms);
  launch_kernel<mla_prefill_kernel>(launch, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kSharedBytes,
                                    params, q_map, kv_map, rope_map);
}

}  // namespace hadal::cuda
