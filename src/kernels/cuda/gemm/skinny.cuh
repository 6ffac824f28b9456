// Weight streaming: y = x · Wᵀ for few rows of x, W read from memory once at the rate of the memory. Used by
// linear (one matrix) and by grouped_linear (one matrix an expert, rows of x gathered by token_of).
//
// The tensor cores' sides are swapped: rows of W are the 64-row side of wgmma, rows of x ("tokens") its 8 …
// 128 wide side, so one token costs 8 columns instead of 64 rows. FP8: e4m3 products, every 128 of k promoted
// to float32 and multiplied by both scales.
//
// Grid: x = split of k (a cluster of 1, 2, 4 or 8 blocks), y = tile of kGroups · 64 rows of W, z = the z-th
// expert that has rows (grouped only; blocks behind the last one leave at once). Block: kGroups warpgroups,
// each with its own 64 rows of W; all read the same tokens. Rings in shared memory, one slot = 128 bytes of k
// (64 bf16, 128 e4m3):
//   W: `stages` slots of kGroups · 8 KB, filled by TMA on one mbarrier a slot, issued by thread 0. The first
//   round is
//      issued before pdl_wait (not for experts, whose choice is the step's own data): nothing writes weights.
//   x: 4 slots of kTokens rows, 128-byte swizzle made by hand, filled by cp.async of all threads, zeros for
//   rows and k
//      that do not exist; FP8: the tokens' scales beside them.
// One __syncthreads a slot: it says that x of this slot has arrived and that the products of the slot before
// are done, so that both of the latter's buffers may be filled again. Epilogue: tiles go through shared
// memory; the blocks of a cluster each sum a share of the outputs over all of them in order of rank
// (distributed shared memory): no atomics, the same bits every run. About 110 KB a block at most, so that two
// blocks share a multiprocessor; up to 200 KB of it in flight.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/params/linear.h"

namespace hadal::cuda::skinny {

inline constexpr int kTokenSlots = 4;
inline constexpr int kMaxStages = 24;
inline constexpr int kSlotBytes = 128;  // of k
inline constexpr int kTileRows = 64;    // of W, a warpgroup

struct Args {
  const std::byte* x = nullptr;  // rows of bf16 or e4m3
  int64_t x_row_bytes = 0;
  const float* x_scales = nullptr;  // FP8: [blocks, x_scale_stride]
  int64_t x_scale_stride = 0;
  const float* w_scales = nullptr;  // FP8: [ceil(n / 128), w_scale_stride], of expert 0
  int64_t w_scale_stride = 0;
  int64_t expert_scale_stride = 0;
  const int32_t* token_of = nullptr;
  const int32_t* expert_offsets = nullptr;  // null: one matrix
  int num_experts = 0;
  void* y = nullptr;
  int64_t y_stride = 0;  // elements
  int y_is_f32 = 0;
  int y_vector = 0;  // four outputs may be stored at once
  int m = 0;         // rows of x (one matrix)
  int n = 0;
  int k_bytes = 0;     // of a row of x that exist, a multiple of 16
  int num_blocks = 0;  // ceil(k_bytes / 128)
  int stages = 0;
};

// Offsets into shared memory from a 1024-byte boundary.
struct SharedLayout {
  int x_slots, x_scales, w_scales, barriers, bytes;

  __host__ __device__ SharedLayout(bool fp8, int tokens, int groups, int stages, int blocks_of_split) {
    const int w_bytes = stages * groups * kTileRows * kSlotBytes;
    const int staging = tokens * (groups * kTileRows + 4) * 4;
    x_slots = w_bytes;
    int end = x_slots + kTokenSlots * tokens * kSlotBytes;
    end = end > staging ? end : (staging + 127) / 128 * 128;
    x_scales = end;
    end += fp8 ? kTokenSlots * tokens * 4 : 0;
    w_scales = end;
    end += fp8 ? (blocks_of_split + 3) / 4 * 16 : 0;
    barriers = end;
    bytes = barriers + kMaxStages * 8;
  }
};

template <WeightType kType>
inline constexpr bool kIsFp8 = kType == WeightType::kFp8Block;

__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ float4 load_remote(uint32_t shared, uint32_t rank) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared), "r"(rank)
      : "memory");
  return v;
}

// cluster_sync for blocks that have only read each other's memory: what they wrote elsewhere need not be
// visible yet.
__device__ __forceinline__ void cluster_reads_done() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// What a block works on: a tile of rows of one matrix, a range of 128-byte blocks of k, and where that lies.
struct Work {
  int expert = 0;
  int row0 = 0;           // of the matrix
  int block0 = 0;         // of k
  int num_blocks = 0;     // of k
  int64_t first_row = 0;  // sorted row (of y) of the first token
  int num_rows = 0;
};

// Fills the W ring's slots for blocks as they become free; thread 0 only.
struct WeightRing {
  std::byte* slots;
  Mbarrier* full;
  int stages;
  int slot = 0;    // read next
  int parity = 0;  // of that slot's round
  int load_slot = 0;

  template <WeightType kType, int kGroups>
  __device__ __forceinline__ void load(const CUtensorMap* map, const Work& work, int block) {
    constexpr int kBytes = kGroups * kTileRows * kSlotBytes;
    mbarrier_arrive_expect_tx(&full[load_slot], kBytes);
    tma_load_3d(slots + load_slot * kBytes, map, &full[load_slot],
                (work.block0 + block) * (kIsFp8<kType> ? kSlotBytes : kSlotBytes / 2), work.row0, work.expert,
                L2Policy::kEvictFirst);
    if (++load_slot == stages) load_slot = 0;
  }
};

// The rows of x that this thread copies: row tid / 8 + i · rows_a_pass, chunk tid % 8.
template <WeightType kType, int kTokens, int kGroups>
struct TokenCopier {
  static constexpr int kThreads = kGroups * 128;
  static constexpr int kRowsAPass = kThreads / 8;
  static constexpr int kPasses = (kTokens + kRowsAPass - 1) / kRowsAPass;

  const std::byte* rows[kPasses];
  uint32_t exists = 0;
  uint32_t target;  // of pass 0 in slot 0
  const float* scale = nullptr;
  uint32_t scale_target = 0;
  int64_t scale_step = 0;
  int chunk;

  // Tokens `begin` … of the work.
  __device__ TokenCopier(const Args& args, const Work& work, int begin, const std::byte* slots,
                         const float* scales) {
    const int tid = threadIdx.x;
    chunk = tid % 8;
    target = shared_address(slots) + swizzle_128(tid / 8, chunk);
    const auto source_of = [&](int token) -> int64_t {
      const int64_t row = work.first_row + begin + token;
      return args.token_of != nullptr ? args.token_of[row] : row;
    };
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int token = tid / 8 + i * kRowsAPass;
      const bool real = token < kTokens && begin + token < work.num_rows;
      rows[i] = args.x + (real ? source_of(token) * args.x_row_bytes : 0) + chunk * 16;
      exists |= static_cast<uint32_t>(real) << i;
    }
    if constexpr (kIsFp8<kType>) {
      if (tid < kTokens) {
        const bool real = begin + tid < work.num_rows;
        scale = args.x_scales + (real ? source_of(tid) : source_of(0)) + work.block0 * args.x_scale_stride;
        scale_target = shared_address(scales) + tid * 4;
        scale_step = args.x_scale_stride;
      }
    }
  }

  // Block `block` of the work into its slot.
  __device__ __forceinline__ void copy(const Args& args, const Work& work, int block) {
    const int slot = block % kTokenSlots;
    const int k = (work.block0 + block) * kSlotBytes;
    const bool in_row = k + chunk * 16 < args.k_bytes;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (kTokens % kRowsAPass != 0 && threadIdx.x / 8 + i * kRowsAPass >= kTokens) continue;
      const bool real = in_row && (exists >> i & 1U) != 0;
      copy_async_16(target + slot * (kTokens * kSlotBytes) + i * (kRowsAPass * kSlotBytes),
                    rows[i] + (real ? k : 0), real);
    }
    if constexpr (kIsFp8<kType>) {
      if (threadIdx.x < kTokens)
        copy_async_4(scale_target + slot * (kTokens * 4), scale + block * scale_step);
    }
  }
};

// Sums the cluster's tiles and stores the block's share. `staging` is this block's tile: [kTokens][kRows +
// 4].
template <int kTokens, int kGroups>
__device__ __forceinline__ void store_tile(const Args& args, const Work& work, int begin,
                                           const float* staging, int rank, int splits) {
  constexpr int kRows = kGroups * kTileRows;
  constexpr int kPitch = kRows + 4;
  constexpr int kQuads = kRows / 4;
  const int tokens = min(kTokens, work.num_rows - begin);
#pragma unroll 1
  for (int i = rank * (kGroups * 128) + threadIdx.x; i < tokens * kQuads; i += splits * (kGroups * 128)) {
    const int token = i / kQuads;
    const int row = i % kQuads * 4;
    const int n = work.row0 + row;
    if (n >= args.n) continue;
    const float* source = staging + token * kPitch + row;
    float4 sum;
    if (splits == 1) {
      sum = *reinterpret_cast<const float4*>(source);
    } else {
      sum = load_remote(shared_address(source), 0);
#pragma unroll 1
      for (int other = 1; other < splits; ++other) {
        const float4 part = load_remote(shared_address(source), other);
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
      }
    }
    const int64_t at = (work.first_row + begin + token) * args.y_stride + n;
    if (args.y_vector != 0 && n + 4 <= args.n) {
      if (args.y_is_f32 != 0) {
        *reinterpret_cast<float4*>(static_cast<float*>(args.y) + at) = sum;
      } else {
        *reinterpret_cast<uint2*>(static_cast<bf16*>(args.y) + at) = {pack_bf16(sum.x, sum.y),
                                                                      pack_bf16(sum.z, sum.w)};
      }
      continue;
    }
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int j = 0; j < 4 && n + j < args.n; ++j) {
      if (args.y_is_f32 != 0) {
        static_cast<float*>(args.y)[at + j] = values[j];
      } else {
        static_cast<bf16*>(args.y)[at + j] = to_bf16_rn(values[j]);
      }
    }
  }
}

// One tile of tokens. The first min(stages, num_blocks) slots of W are on their way already.
template <WeightType kType, int kTokens, int kGroups>
__device__ __forceinline__ void run_tile(const CUtensorMap* map, const Args& args, const Work& work,
                                         int begin, WeightRing& ring, std::byte* shared,
                                         const SharedLayout& layout, int rank, int splits) {
  constexpr int kStep = 32;  // bytes of k a product
  constexpr int kWBytes = kGroups * kTileRows * kSlotBytes;
  constexpr int kXBytes = kTokens * kSlotBytes;
  std::byte* x_slots = shared + layout.x_slots;
  float* x_scales = reinterpret_cast<float*>(shared + layout.x_scales);
  const float* w_scales = reinterpret_cast<const float*>(shared + layout.w_scales);
  const int group = threadIdx.x / 128;
  const int lane = threadIdx.x % 32;

  TokenCopier<kType, kTokens, kGroups> copier(args, work, begin, x_slots, x_scales);
#pragma unroll
  for (int block = 0; block < kTokenSlots - 1; ++block) {
    if (block < work.num_blocks) copier.copy(args, work, block);
    copy_async_commit();
  }

  float acc[kTokens / 2];
#pragma unroll
  for (float& value : acc) value = 0.0F;
  int next_load = min(ring.stages, work.num_blocks);
#pragma unroll 1
  for (int block = 0; block < work.num_blocks; ++block) {
    copy_async_wait<kTokenSlots - 2>();
    fence_proxy_async_shared();
    __syncthreads();
    if (block + kTokenSlots - 1 < work.num_blocks) copier.copy(args, work, block + kTokenSlots - 1);
    copy_async_commit();
    if (block > 0 && next_load < work.num_blocks) {
      if (threadIdx.x == 0) ring.load<kType, kGroups>(map, work, next_load);
      ++next_load;
    }
    const uint64_t w_tile =
        wgmma_k_major(ring.slots + ring.slot * kWBytes + group * (kTileRows * kSlotBytes));
    const uint64_t x_tile = wgmma_k_major(x_slots + block % kTokenSlots * kXBytes);
    mbarrier_wait(&ring.full[ring.slot], ring.parity);
    if (++ring.slot == ring.stages) {
      ring.slot = 0;
      ring.parity ^= 1;
    }
    if constexpr (kIsFp8<kType>) {
      float part[kTokens / 2];
      wgmma_pin(part);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSlotBytes / kStep; ++step) {
        wgmma_e4m3<kTokens>(part, wgmma_advance(w_tile, step * kStep), wgmma_advance(x_tile, step * kStep),
                            step > 0);
      }
      wgmma_commit();
      const float w_scale = w_scales[block];
      float2 scales[kTokens / 8];
      const float* slot_scales = x_scales + block % kTokenSlots * kTokens + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        scales[j] = *reinterpret_cast<const float2*>(slot_scales + 8 * j);
        scales[j].x *= w_scale;
        scales[j].y *= w_scale;
      }
      wgmma_wait<0>();
      wgmma_pin(part);
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        acc[4 * j] = fmaf(part[4 * j], scales[j].x, acc[4 * j]);
        acc[4 * j + 1] = fmaf(part[4 * j + 1], scales[j].y, acc[4 * j + 1]);
        acc[4 * j + 2] = fmaf(part[4 * j + 2], scales[j].x, acc[4 * j + 2]);
        acc[4 * j + 3] = fmaf(part[4 * j + 3], scales[j].y, acc[4 * j + 3]);
      }
    } else {
      wgmma_pin(acc);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSlotBytes / kStep; ++step) {
        wgmma_bf16<kTokens>(acc, wgmma_advance(w_tile, step * kStep), wgmma_advance(x_tile, step * kStep),
                            true);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(acc);
    }
  }

  // All products are done and all copies have landed: the rings become the staging tile.
  __syncthreads();
  constexpr int kPitch = kGroups * kTileRows + 4;
  float* staging = reinterpret_cast<float*>(shared);
  const int row = threadIdx.x / 32 * 16 + lane / 4;  // warps 4·g … 4·g + 3 own rows 64·g …
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    float* column = staging + (8 * j + 2 * (lane % 4)) * kPitch + row;
    column[0] = acc[4 * j];
    column[kPitch] = acc[4 * j + 1];
    column[8] = acc[4 * j + 2];
    column[kPitch + 8] = acc[4 * j + 3];
  }
  if (splits > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  store_tile<kTokens, kGroups>(args, work, begin, staging, rank, splits);
  __syncwarp();
  if (splits > 1) cluster_reads_done();  // nobody leaves, or writes the tile anew, while others read it
}

// The a-th expert that has rows, by all lanes of a warp; expert −1: there are fewer.
__device__ __forceinline__ int find_expert(const int32_t* offsets, int num_experts, int a) {
  const int lane = threadIdx.x % 32;
  const int each = (num_experts + 31) / 32;
  const int begin = min(lane * each, num_experts);
  const int end = min(begin + each, num_experts);
  int count = 0;
#pragma unroll 1
  for (int e = begin; e < end; ++e) count += offsets[e + 1] > offsets[e] ? 1 : 0;
  int before = count;  // inclusive sum over lanes
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(0xffffffffU, before, step);
    if (lane >= step) before += left;
  }
  before -= count;
  int found = -1;
  if (a >= before && a < before + count) {
    int seen = before;
    for (int e = begin; e < end; ++e) {
      if (offsets[e + 1] > offsets[e] && seen++ == a) found = e;
    }
  }
  for (int step = 16; step > 0; step /= 2) found = max(found, __shfl_xor_sync(0xffffffffU, found, step));
  return found;
}

template <WeightType kType, int kTokens, int kGroups, bool kGrouped>
__global__ void __launch_bounds__(kGroups * 128)
    skinny_kernel(const __grid_constant__ CUtensorMap map, const Args args) {
  extern __shared__ std::byte shared_raw[];
  std::byte* shared = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  const int splits = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);
  Work work;
  work.block0 = rank * args.num_blocks / splits;
  work.num_blocks = (rank + 1) * args.num_blocks / splits - work.block0;
  work.row0 = static_cast<int>(blockIdx.y) * (kGroups * kTileRows);
  work.num_rows = args.m;
  const SharedLayout layout(kIsFp8<kType>, kTokens, kGroups, args.stages,
                            (args.num_blocks + splits - 1) / splits);

  if constexpr (kGrouped) {
    pdl_wait();
    work.expert = find_expert(args.expert_offsets, args.num_experts, static_cast<int>(blockIdx.z));
    if (work.expert < 0) return;
    work.first_row = args.expert_offsets[work.expert];
    work.num_rows = args.expert_offsets[work.expert + 1] - static_cast<int>(work.first_row);
  }
  WeightRing ring{shared, reinterpret_cast<Mbarrier*>(shared + layout.barriers), args.stages};
  const auto fill_ring = [&] {
#pragma unroll 1
    for (int block = 0; block < min(args.stages, work.num_blocks); ++block) {
      ring.load<kType, kGroups>(&map, work, block);
    }
  };
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int slot = 0; slot < args.stages; ++slot) mbarrier_init(&ring.full[slot], 1);
    mbarrier_init_fence();
    fence_proxy_async_shared();
    fill_ring();
  }
  if constexpr (kIsFp8<kType>) {
    float* w_scales = reinterpret_cast<float*>(shared + layout.w_scales);
    const float* source = args.w_scales + work.expert * args.expert_scale_stride +
                          (work.row0 / 128) * args.w_scale_stride + work.block0;
#pragma unroll 1
    for (int i = threadIdx.x; i < work.num_blocks; i += kGroups * 128) w_scales[i] = source[i];
  }
  __syncthreads();  // the barriers exist
  pdl_launch_dependents();

  if constexpr (!kGrouped) {
    pdl_wait();
    run_tile<kType, kTokens, kGroups>(&map, args, work, 0, ring, shared, layout, rank, splits);
  } else {
#pragma unroll 1
#pragma unroll 1
    for (int begin = 0; begin < work.num_rows; begin += kTokens) {
      if (begin > 0) {
        // The staging tile was written and read by ordinary accesses; now the copy engine writes there.
        fence_proxy_async_shared();
        __syncthreads();
        if (threadIdx.x == 0) fill_ring();
      }
      const int left = work.num_rows - begin;
      const auto run = [&]<int kWidth>() {
        run_tile<kType, kWidth, kGroups>(&map, args, work, begin, ring, shared, layout, rank, splits);
      };
      if constexpr (kTokens > 32) {
        if (left > 32) {
          run.template operator()<kTokens>();
          continue;
        }
      }
      if constexpr (kTokens > 16) {
        if (left > 16) {
          run.template operator()<32>();
          continue;
        }
      }
      if (left > 8) {
        run.template operator()<16>();
      } else {
        run.template operator()<8>();
      }
    }
  }
}

}  // namespace hadal::cuda::skinny
