// Computes un-absorbed prefill attention on the tensor cores of sm_90a.
//
// An item is 128 queries of one head and the keys that they see, in tiles of 128 keys. Tiles are processed
// from the last to the first, so that the tiles that need a mask come first. The grid has one block for each
// multiprocessor; blocks get items in the order of mla/prefill/schedule.h.
//
// Warpgroup 0 is the producer, of which one warp works; it loads by TMA directly from the strided tensors. A
// key tile is three boxes of [128 keys][64 columns] with the 128-byte swizzle: two from the head's k_nope and
// one from the shared k_rope. A value tile is two such boxes. Warpgroups 1 and 2 are consumers with 64
// queries each. They compute S = Q·Kᵀ (wgmma, both operands in shared memory), the softmax in registers, and
// O += P·V (P from registers, V as the transposed operand).
//
// Overlap: a consumer issues S of the next tile and P·V of this one together, and two named barriers let the
// consumers issue in turn, so that the softmax of one runs during the products of the other.
//
// With kSelects, only keys whose bit is set count. The bits are read while S is computed, and every tile is
// masked. No tile is skipped: 128 queries that select 2,048 of a few thousand keys hardly ever leave out all
// of 128 neighbouring keys.
//
// Barriers (mbarrier): k_full/k_empty and v_full/v_empty exist for each of two stages, q_full/q_empty for
// each consumer warpgroup. A `full` barrier completes with the bytes of the copies, an `empty` barrier with
// one arrival of each consumer warp. Values past the run's end belong to another run and may be NaN, and
// 0 · NaN is NaN. So the producer itself waits for such a tile (v_landed), zeroes those rows and only then
// arrives at v_full.
//
// Shared memory holds 48 KB of Q, 2 × 48 KB of K and 2 × 32 KB of V: 208 KB. Consumers have 232 registers (S
// 64, O 64, P 32), the producer has 40.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/mla/prefill/pieces.cuh"
#include "kernels/cuda/mla/prefill/prefill.h"
#include "kernels/cuda/mla/prefill/schedule.cuh"

namespace hadal::cuda {
namespace {

using namespace prefill;

constexpr int kStages = 2;
constexpr int kConsumerWarps = kConsumerThreads / 32;
constexpr int kThreads = 128 + kConsumerThreads;
constexpr int kValueBoxes = kPrefillValue / kBoxColumns;

struct SharedStorage {
  alignas(1024) std::byte q[2][kQkBoxes * kQueryBox];
  alignas(1024) std::byte k[kStages][kQkBoxes * kKeyBox];
  alignas(1024) std::byte v[kStages][kValueBoxes * kKeyBox];
  Mbarrier q_full[2], q_empty[2], v_landed;
  Mbarrier k_full[kStages], k_empty[kStages];
  Mbarrier v_full[kStages], v_empty[kStages];
};
constexpr size_t kSharedBytes = sizeof(SharedStorage) + 1024;  // dynamic memory is aligned to 1024 by hand
static_assert(kSharedBytes <= kMaxSharedBytes);

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
    // Past the tensor's last key the copies write zeros.
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

template <typename T, bool kSelects>
__device__ void consume(const KernelParams& p, SharedStorage& shared) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int group = warp_uniform(thread / 128);
  const int lane = thread % 32;
  // This is the row in the tile of this thread's row h = 0.
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
    // These are the numbers of keys that this thread's rows see, counted from the thread's first column of
    // tile 0.
    const int sees[2] = {min(item.k_len, item.first_limit + first_row) - 2 * (lane % 4),
                         min(item.k_len, item.first_limit + first_row + 8) - 2 * (lane % 4)};
    // All rows of the warpgroup see all keys of the tiles below this one.
    const int whole_tiles = kSelects ? 0 : max(0, min(item.k_len, item.first_limit + group * 64)) / kKeyTile;
    const uint64_t* bit_rows[2] = {};
    if constexpr (kSelects) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row + 8 * h;
        if (row < item.num_queries) bit_rows[h] = p.bits + (int64_t{item.q_row} + row) * p.bits_stride;
      }
    }

    float s[kScores];
    float o[kOutputs];
    uint32_t probabilities[kScores / 8][4];
    RowState rows;
    float rescale[2];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.0F;

    int tile = item.num_key_tiles - 1;
    TileBits bits;
    if constexpr (kSelects) bits = load_bits(bit_rows, tile, item.k_len);
    mbarrier_wait(&shared.q_full[group], q_phase);
    q_phase ^= 1U;
    mbarrier_wait(&shared.k_full[k_ring.slot], k_ring.parity());
    // On the diagonal the first warpgroup sees only half of the key tile.
    const bool half = min(item.k_len, item.first_limit + group * 64 + 63) - tile * kKeyTile <= kKeyTile / 2;
    if (half) {
      float left[kScores / 2];  // a separate array, because with `s` the compiler runs out of registers
      wgmma_pin(left);
      wgmma_fence();
      multiply_qk<T, kKeyTile / 2>(left, q, shared.k[k_ring.slot]);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(left);
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = i < kScores / 2 ? left[i] : -INFINITY;
    } else {
      wgmma_pin(s);
      wgmma_fence();
      multiply_qk<T>(s, q, shared.k[k_ring.slot]);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(s);
    }
    arrive_warp(&shared.k_empty[k_ring.slot]);
    k_ring.advance();
    if constexpr (kSelects) mask_by_bits(s, bits);
    {
      const int limit[2] = {sees[0] - tile * kKeyTile, sees[1] - tile * kKeyTile};
      softmax_tile<true>(s, rows, rescale, p.scale_log2, limit);
    }
    pack_p<T>(s, probabilities);

    // Computes S of `tile` together with P·V of the tile above it.
    const auto step = [&](auto masked) {
      if constexpr (kSelects) bits = load_bits(bit_rows, tile, item.k_len);
      mbarrier_wait(&shared.k_full[k_ring.slot], k_ring.parity());
      named_barrier_sync(own_turn, kConsumerThreads);
      wgmma_pin(s);
      wgmma_pin(o);
      wgmma_fence();
      multiply_qk<T>(s, q, shared.k[k_ring.slot]);
      wgmma_commit();
      mbarrier_wait(&shared.v_full[v_ring.slot], v_ring.parity());
      wgmma_fence();
      multiply_pv<T>(o, probabilities, shared.v[v_ring.slot]);
      wgmma_commit();
      named_barrier_arrive(other_turn, kConsumerThreads);
      wgmma_wait<1>();
      wgmma_pin(s);
      arrive_warp(&shared.k_empty[k_ring.slot]);
      k_ring.advance();
      if constexpr (kSelects) mask_by_bits(s, bits);
      const int limit[2] = {sees[0] - tile * kKeyTile, sees[1] - tile * kKeyTile};
      softmax_tile<decltype(masked)::value>(s, rows, rescale, p.scale_log2, limit);
      wgmma_wait<0>();
      wgmma_pin(o);
      arrive_warp(&shared.v_empty[v_ring.slot]);
      v_ring.advance();
      pack_p<T>(s, probabilities);
      // In most tiles no maximum changes, and there is nothing to rescale.
      if (__any_sync(0xffffffffU, rescale[0] != 1.0F || rescale[1] != 1.0F)) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) o[i] *= rescale[i / 2 % 2];
      }
    };
    for (--tile; tile >= whole_tiles; --tile) step(std::true_type{});
    if constexpr (!kSelects) {
      for (; tile >= 0; --tile) step(std::false_type{});
    }
    arrive_warp(&shared.q_empty[group]);

    mbarrier_wait(&shared.v_full[v_ring.slot], v_ring.parity());
    wgmma_pin(o);
    wgmma_fence();
    multiply_pv<T>(o, probabilities, shared.v[v_ring.slot]);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    arrive_warp(&shared.v_empty[v_ring.slot]);
    v_ring.advance();
    store_tile<T>(p, item, first_row, o, rows);
  }
  if (group == 0) named_barrier_sync(own_turn, kConsumerThreads);  // consumes the arrival that is left over
}

template <typename T, bool kSelects>  // bf16 or f16
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
    consume<T, kSelects>(p, shared);
    pdl_launch_dependents();
  }
}

}  // namespace

bool prefill_sm90_supports(const DevicePrefillParams& p) {
  constexpr int64_t kMaxStride = int64_t{1} << 38;  // elements; strides of tensor maps are below 2^40 bytes
  return p.num_keys > 0 && p.m > 0 && on_16_bytes(p.q) && on_16_bytes(p.kv) && on_16_bytes(p.k_rope) &&
         on_16_bytes(p.out) && p.q_row_stride % 8 == 0 && p.q_head_stride % 8 == 0 && p.out_stride % 8 == 0 &&
         p.q_row_stride > 0 && p.q_head_stride > 0 && p.q_row_stride < kMaxStride &&
         p.q_head_stride < kMaxStride;
}

namespace {

template <typename T, bool kSelects>
void run(const DevicePrefillParams& p, const Launch& launch) {
  KernelParams params;
  params.num_keys = static_cast<int>(p.num_keys);
  params.scale_log2 = p.softmax_scale * kLog2E;
  params.out = p.out;
  params.out_stride = p.out_stride;
  params.lse = p.lse;
  params.accumulate = p.accumulate;
  params.bits = p.bits;
  params.bits_stride = p.bits_stride;
  params.schedule = prefill_schedule(p, launch.num_sms);
  const CUtensorMap q_map =
      make_tensor_map<3>(static_cast<const T*>(p.q), {kPrefillQk, p.num_heads, p.m},
                         {p.q_head_stride, p.q_row_stride}, {kBoxColumns, 1, kGroupQueries});
  const CUtensorMap kv_map =
      make_tensor_map<3>(static_cast<const T*>(p.kv), {kPrefillKvRow, p.num_heads, p.num_keys},
                         {kPrefillKvRow, int64_t{p.num_heads} * kPrefillKvRow}, {kBoxColumns, 1, kKeyTile});
  const CUtensorMap rope_map = make_tensor_map<2>(static_cast<const T*>(p.k_rope), {kPrefillRope, p.num_keys},
                                                  {kPrefillRope}, {kBoxColumns, kKeyTile});
  const int blocks = std::min(params.schedule.num_units, launch.num_sms);
  launch_kernel<mla_prefill_kernel<T, kSelects>>(launch, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                                                 kSharedBytes, params, q_map, kv_map, rope_map);
}

}  // namespace

void prefill_sm90(const DevicePrefillParams& p, const Launch& launch) {
  if (p.bits != nullptr) return run<bf16, true>(p, launch);
  if (p.f16) return run<f16, false>(p, launch);
  run<bf16, false>(p, launch);
}

}  // namespace hadal::cuda
