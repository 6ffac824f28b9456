// Defines the ring of slots through which the weights stream, and the layout of the kernel's shared memory.
#pragma once

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/experts/few/args.cuh"

namespace hadal::cuda::few {

constexpr int kSlotBytes = kTileRows * kSlotK;  // bytes of W in a slot
constexpr int kXSlotBytes = kTokens * kSlotK;   // bytes of x in a slot
static_assert(kMaxDownSlots <= 32);             // scale_of_block has one lane for each
// kWindow is the number of loads that a block keeps in flight. More loads of gate_up would only queue behind
// each other. kDownWindow limits the loads of `down` until all sums of the block's rows have been read,
// because these reads queue behind the loads: with eight loads they wait for 2 to 5 µs.
constexpr int kWindow = 8;
constexpr int kDownWindow = 3;
constexpr int kLeastShared = 120 * 1024;  // dynamic shared memory; no two blocks share a multiprocessor
constexpr int kConsumerBarrier = 1;
constexpr int kTurnBarrier = 2;

template <WeightType kType>
constexpr bool is_fp8_type = kType == WeightType::kFp8Block;

template <int kStages>
struct Ring {
  static_assert((kStages & (kStages - 1)) == 0, "advance is shifts and masks");
  std::byte* slots;
  Mbarrier* full;
  Mbarrier* empty;
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int count = 1) {
    slot += count;
    parity ^= static_cast<uint32_t>(slot / kStages) & 1U;
    slot %= kStages;
  }
};

// Loads one block of k of a tile's weights into the ring's current slot. It is called by one thread.
template <WeightType kType, int kStages>
__device__ __forceinline__ void load_weights(const CUtensorMap* map, const Ring<kStages>& ring, int expert,
                                             int row0, int block) {
  mbarrier_arrive_expect_tx(&ring.full[ring.slot], kSlotBytes);
  tma_load_3d(ring.slots + ring.slot * kSlotBytes, map, &ring.full[ring.slot],
              block * (is_fp8_type<kType> ? kSlotK : kSlotK / 2), row0, expert, L2Policy::kEvictFirst);
}

// Holds the offsets into dynamic shared memory from a 1024-byte boundary.
struct SharedPlan {
  int x, active, x_scales, active_scales, barriers, bytes;

  __host__ __device__ SharedPlan(int stages, int x_slots, int active_slots) {
    x = stages * kSlotBytes;
    active = x + x_slots * kXSlotBytes;
    x_scales = active + active_slots * kXSlotBytes;
    active_scales = x_scales + x_slots * kTokens * 4;
    barriers = active_scales + active_slots * kTokens * 4;
    bytes = barriers + (2 * stages + 2) * 8;
  }
};

template <int kStages>
struct Memory {
  std::byte* base;
  Ring<kStages> ring;
  std::byte* x;
  std::byte* active;
  float* x_scales;
  float* active_scales;
  Mbarrier* x_full;
  Mbarrier* activated;
};
template <int kStages>
__device__ __forceinline__ Memory<kStages> memory_of(std::byte* raw, const Args& args) {
  std::byte* base = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const SharedPlan plan(kStages, args.x_slots, 2 * args.down.num_blocks);
  auto* barriers = reinterpret_cast<Mbarrier*>(base + plan.barriers);
  return {base,
          {base, barriers, barriers + kStages},
          base + plan.x,
          base + plan.active,
          reinterpret_cast<float*>(base + plan.x_scales),
          reinterpret_cast<float*>(base + plan.active_scales),
          barriers + 2 * kStages,
          barriers + 2 * kStages + 1};
}
template <int kStages>
__device__ __forceinline__ void make_barriers(const Memory<kStages>& memory) {
#pragma unroll 1
  for (int slot = 0; slot < kStages; ++slot) {
    mbarrier_init(&memory.ring.full[slot], 1);
    mbarrier_init(&memory.ring.empty[slot], 4);
  }
  mbarrier_init(memory.x_full, 1);
  mbarrier_init(memory.activated, kConsumers / 32);
  mbarrier_init_fence();
  fence_proxy_async_shared();
}

}  // namespace hadal::cuda::few
