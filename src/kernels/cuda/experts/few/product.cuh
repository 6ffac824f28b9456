// Multiplies one tile of weights by up to eight tokens, for gate_up and down.
#pragma once

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/experts/few/ring.cuh"

namespace hadal::cuda::few {

// Computes the sums of one tile in one warpgroup: acc[2 · h + c] belongs to row 16 · warp + 8 · h + lane / 4
// and column 2 · (lane % 4) + c. x has slots of eight rows; x_scales is [blocks][8]; lane b of w_scale holds
// the scale of block b. `seen` is called once the last slot has arrived.
template <WeightType kType, int kStages, typename Seen>
__device__ __forceinline__ void consume(Ring<kStages>& ring, int num_blocks, const std::byte* x,
                                        const float* x_scales, float w_scale, float (&acc)[4],
                                        const Seen& seen) {
  const int lane = threadIdx.x % 32;
  const uint32_t w_tiles = wgmma_k_major_low(ring.slots);
  const uint32_t x_tiles = wgmma_k_major_low(x);
  int last_slot = 0;
  const auto issue = [&](float(&sums)[4], int block, bool add) {
    mbarrier_wait(&ring.full[ring.slot], ring.parity);
    if (block == num_blocks - 1) seen();
    const uint32_t w_tile = w_tiles + ring.slot * (kSlotBytes >> 4);
    const uint32_t x_tile = x_tiles + block * (kXSlotBytes >> 4);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t a = wgmma_k_major_of(w_tile + step * 2);
      const uint64_t b = wgmma_k_major_of(x_tile + step * 2);
      if constexpr (is_fp8_type<kType>) {
        wgmma_e4m3<8>(sums, a, b, step > 0);
      } else {
        wgmma_16_bit<Row16<kType>, 8>(sums, a, b, add || step > 0);
      }
    }
    wgmma_commit();
  };
  const auto release = [&](int slot) {
    if (lane == 0) mbarrier_arrive(&ring.empty[slot]);
  };
  if constexpr (!is_fp8_type<kType>) {
    wgmma_pin(acc);
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
      issue(acc, block, block > 0);
      wgmma_wait<1>();
      if (block > 0) release(last_slot);
      last_slot = ring.slot;
      ring.advance();
    }
    wgmma_wait<0>();
    wgmma_pin(acc);
    release(last_slot);
  } else {
    float even[4];
    float odd[4];
    int done = 0;
    const auto promote = [&](float(&sums)[4]) {
      wgmma_pin(sums);
      release(last_slot);
      const float2 scale = *reinterpret_cast<const float2*>(x_scales + done * kTokens + 2 * (lane % 4));
      const float w = __shfl_sync(kWarp, w_scale, done);
      acc[0] = fmaf(sums[0], scale.x * w, acc[0]);
      acc[1] = fmaf(sums[1], scale.y * w, acc[1]);
      acc[2] = fmaf(sums[2], scale.x * w, acc[2]);
      acc[3] = fmaf(sums[3], scale.y * w, acc[3]);
      ++done;
    };
    const auto step = [&](float(&now)[4], float(&before)[4], int block) {
      issue(now, block, false);
      wgmma_wait<1>();
      promote(before);
      last_slot = ring.slot;
      ring.advance();
    };
#pragma unroll
    for (float& value : acc) value = 0.0F;
    issue(even, 0, false);
    last_slot = ring.slot;
    ring.advance();
    int block = 1;
#pragma unroll 1
    for (; block + 1 < num_blocks; block += 2) {
      step(odd, even, block);
      step(even, odd, block + 1);
    }
    if (block < num_blocks) {
      step(odd, even, block);
      wgmma_wait<0>();
      promote(odd);
    } else {
      wgmma_wait<0>();
      promote(even);
    }
  }
}

}  // namespace hadal::cuda::few
