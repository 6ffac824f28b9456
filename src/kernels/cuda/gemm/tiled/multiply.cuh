// Computes a consumer's sums over all steps of k of one tile of gemm/tiled/kernel.cuh. If the tensor cores
// keep the sums (bf16, INT8 with channel scales), products are issued without interruption, otherwise in the
// orders of WgmmaOrder. wgmma.cuh describes the layout of accumulators.
//
// In FP8, and in INT8 with block scales, after each 128 of k the partial sums of a wave are multiplied by the
// scales of blocks (channel scales come last) and added up in float32 ("promoted"). A consumer's tensor work
// pauses from the end of a block's products to the issue of the next ones, unless two sets of partial sums
// fit its registers (kAhead). Everything that need not happen in this pause is done while products run:
// testing whether the next stage is full, and reading its scales and addresses. The remaining 64 additions
// (128 columns) are hidden by the other consumer's 256 clocks of products if the consumers do not begin at
// the same time. The offset between the consumers stays as it was when they last waited for data, because
// products of two warpgroups share the tensor cores evenly. kLead makes the offset half a wave's products;
// kFree and kTight leave it to chance.
#pragma once

#include "kernels/cuda/common/sanitize.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/common/wgmma_s8.cuh"
#include "kernels/cuda/gemm/tiled/config.cuh"

namespace hadal::cuda::wgmma_gemm {

// Locates a thread's rows and columns of a tile.
template <class C>
struct Place {
  int consumer, lane;
  uint32_t x, w;    // descriptors of the consumer's first row and of its first column in stage 0 (low words)
  int row;          // the thread's first row of wave 0, in the box of x's scales
  int first_block;  // first block of the weights' scales
  int first_parts;  // parts of kPartColumns columns each that lie in that block
};

// Arrives on the barrier of every block of the cluster, after a consumer warp has read a stage.
template <class C>
__device__ __forceinline__ void release(const Shared<C>& shared, uint32_t stage, int lane) {
  __syncwarp();
  mbarrier_arrive_warp<C::kCluster>(shared.empty(stage), lane);
}

// Issues one instruction of the tile's type, over 32 bytes of k.
template <class C>
__device__ __forceinline__ void product(typename C::Partial (&sums)[C::kSums], uint32_t x, uint32_t w,
                                        bool accumulate) {
  if constexpr (C::kInt8)
    wgmma_s8<C::kColumns>(sums, wgmma_k_major_of(x), wgmma_k_major_of(w), accumulate);
  else if constexpr (sizeof(typename C::Element) == 1)
    wgmma_e4m3<C::kColumns>(sums, wgmma_k_major_of(x), wgmma_k_major_of(w), accumulate);
  else
    wgmma_bf16<C::kColumns>(sums, wgmma_k_major_of(x), wgmma_k_major_of(w), accumulate);
}

// Issues the products of one wave with one stage, for sums that are promoted.
template <class C>
__device__ __forceinline__ void products(uint32_t x, uint32_t w, int wave,
                                         typename C::Partial (&partial)[C::kSums]) {
  constexpr int kWaveStride = C::kWaveRows * 128 / 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    product<C>(partial, x + wave * kWaveStride + 2 * i, w + 2 * i, i > 0);
    if (C::kLeads && wave == 0 && i == C::kHalf - 1) wgmma_commit();
  }
  wgmma_commit();
}

// Computes sums that the tensor cores accumulate until the end.
template <class C, int kActive>
__device__ __forceinline__ void multiply_whole(const Shared<C>& shared, RingPosition<C::kStages>& ring,
                                               int steps, const Place<C>& place,
                                               typename C::Sum (&sums)[C::kWaves][C::kSums]) {
  constexpr int kWaveStride = C::kWaveRows * 128 / 16;
  uint32_t previous = 0;
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(shared.full(ring.slot), ring.parity());
    const uint32_t x = place.x + ring.slot * (C::kXBytes / 16);
    const uint32_t w = place.w + ring.slot * (C::kWBytes / 16);
#pragma unroll
    for (int v = 0; v < kActive; ++v) wgmma_pin(sums[v]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int v = 0; v < kActive; ++v)
        product<C>(sums[v], x + v * kWaveStride + 2 * i, w + 2 * i, step > 0 || i > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int v = 0; v < kActive; ++v) wgmma_pin(sums[v]);
    wgmma_wait<1>();  // the products of the previous step are complete
    if (step > 0) release<C>(shared, previous, place.lane);
    previous = ring.slot;
    ring.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int v = 0; v < kActive; ++v) wgmma_pin(sums[v]);
  release<C>(shared, previous, place.lane);
}

// Holds the scales of a wave's sums over one block of k: one scale for each part of the consumer's columns
// (neighbours in one block of the weights) and each of the thread's two rows.
template <class C>
struct Scales {
  float of[C::kParts][2];
};

// Reads the scales of all waves from a full stage. With channel scales there is nothing to read.
template <class C, int kActive>
__device__ __forceinline__ void read_scales(const Shared<C>& shared, uint32_t stage, const Place<C>& place,
                                            Scales<C> (&scales)[kActive]) {
  if constexpr (!C::kBlockScales) return;
  random_delay_of_warp(delayed_consumer(place.consumer));
  const float* w = shared.w_scales(stage) + place.first_block;
  const float* x = shared.x_scales(stage) + place.row;
  float blocks[C::kOwnBlocks];
#pragma unroll
  for (int b = 0; b < C::kOwnBlocks; ++b) blocks[b] = w[b];
  // The tile begins 0 … 128 − kScaleColumns columns after a block's first column.
  float parts[C::kParts];
#pragma unroll
  for (int part = 0; part < C::kParts; ++part) {
    const int lowest = part * C::kPartColumns / 128;
    const int highest = (128 - C::kScaleColumns + part * C::kPartColumns) / 128;
    parts[part] = blocks[lowest];
    if (highest > lowest && part >= place.first_parts + lowest * (128 / C::kPartColumns))
      parts[part] = blocks[highest];
  }
#pragma unroll
  for (int v = 0; v < kActive; ++v) {
    const int row = v * C::kWaveRows;
    const int offset = row / C::kBoxRows * (C::kScaleBoxBytes / 4) + row % C::kBoxRows;
    const float row_0 = x[offset];
    const float row_8 = x[offset + 8];
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      scales[v].of[part][0] = row_0 * parts[part];
      scales[v].of[part][1] = row_8 * parts[part];
    }
  }
}

// Returns the index of the i-th sum to promote. In FP8 all sums of one scale come before those of the next,
// because consecutive multiply-adds that share an operand fetch it once. In INT8 sums are promoted in order,
// between conversions.
template <class C>
__device__ constexpr int promoted_at(int i) {
  if constexpr (C::kInt8) return i;
  constexpr int kPartSums = C::kPartColumns / 2;  // sums of a thread
  const int half = i % kPartSums / (kPartSums / 2);
  const int j = i % (kPartSums / 2);
  return i / kPartSums * kPartSums + j / 2 * 4 + 2 * half + j % 2;
}

// Promotes one block of k to float32: sums += partial · scales, or with channel scales sums += partial.
template <class C>
__device__ __forceinline__ void promote(const typename C::Partial (&partial)[C::kSums],
                                        const Scales<C>& scales, float (&sums)[C::kSums]) {
#pragma unroll
  for (int n = 0; n < C::kSums; ++n) {
    const int i = promoted_at<C>(n);
    const auto value = static_cast<float>(partial[i]);
    if constexpr (C::kBlockScales)
      sums[i] = fmaf(value, scales.of[i / (C::kPartColumns / 2)][(i >> 1) & 1], sums[i]);
    else
      sums[i] += value;
  }
  // The pin keeps the compiler from moving these additions after the next products.
  if constexpr (!C::kBlockScales) wgmma_pin(sums);
}

// Both consumers have just waited for data. With kLead, consumer 1 waits until half of consumer 0's first
// products are done.
template <class C>
__device__ __forceinline__ void wait_for_lead(const Shared<C>& shared, const RingPosition<C::kStages>& ring,
                                              const Place<C>& place) {
  if (C::kLeads && place.consumer == 1) mbarrier_wait(shared.lead(ring.slot), ring.parity());
}

template <class C, int kActive>
__device__ __forceinline__ void set_to_zero(float (&sums)[C::kWaves][C::kSums]) {
#pragma unroll
  for (int v = 0; v < kActive; ++v) {
#pragma unroll
    for (int i = 0; i < C::kSums; ++i) sums[v][i] = 0.0F;
  }
}

// Computes the sums with one set of partial sums. The caller has waited for the tile's first stage.
template <class C, int kActive>
__device__ __forceinline__ void multiply_promoting(const Shared<C>& shared, RingPosition<C::kStages>& ring,
                                                   int steps, const Place<C>& place,
                                                   float (&sums)[C::kWaves][C::kSums]) {
  set_to_zero<C, kActive>(sums);
  Scales<C> scales[kActive];
  read_scales<C, kActive>(shared, ring.slot, place, scales);
  wait_for_lead<C>(shared, ring, place);
  for (int step = 1;; ++step) {
    const uint32_t stage = ring.slot;
    const uint32_t x = place.x + stage * (C::kXBytes / 16);
    const uint32_t w = place.w + stage * (C::kWBytes / 16);
    ring.advance();
    Scales<C> next[kActive];
    int ready = 0;  // whether `next` has been read
#pragma unroll
    for (int v = 0; v < kActive; ++v) {
      typename C::Partial partial[C::kSums];
      wgmma_fence();
      products<C>(x, w, v, partial);
      if (v == kActive - 1 && step < steps) {
        ready = __all_sync(0xffffffffU, mbarrier_test(shared.full(ring.slot), ring.parity()));
        if (ready != 0) read_scales<C, kActive>(shared, ring.slot, place, next);
      }
      if (C::kLeads && v == 0 && place.consumer == 0) {
        wgmma_wait<1>();
        if (place.lane == 0) mbarrier_arrive(shared.lead(stage));
      }
      wgmma_wait<0>();
      wgmma_pin(partial);
      if (v == kActive - 1) release<C>(shared, stage, place.lane);
      promote<C>(partial, scales[v], sums[v]);
    }
    if (step == steps) break;
    if (ready == 0) {
      mbarrier_wait(shared.full(ring.slot), ring.parity());
      read_scales<C, kActive>(shared, ring.slot, place, next);
      wait_for_lead<C>(shared, ring, place);
    } else if constexpr (kSanitized) {
      wait_for_lead<C>(shared, ring, place);  // synccheck reports a phase for which nothing waits
    }
#pragma unroll
    for (int v = 0; v < kActive; ++v) scales[v] = next[v];
  }
}

// Does the same in the fewest instructions (kTight): scales are read after their products have been issued,
// and the next stage is tested before sums are promoted. Returns the tile's last stage; with kHold this stage
// is not released, because the tile is stored through it. The first and the last step have separate code,
// because branches in the loop make its steps 2 % slower. in_first_step() and in_last_step(stage) are called
// while the step's products of the last wave run, when its products of the earlier waves have been added.
template <class C, int kActive, class InFirstStep, class InLastStep>
__device__ __forceinline__ uint32_t multiply_tight(const Shared<C>& shared, RingPosition<C::kStages>& ring,
                                                   int steps, const Place<C>& place,
                                                   float (&sums)[C::kWaves][C::kSums],
                                                   const InFirstStep& in_first_step,
                                                   const InLastStep& in_last_step) {
  set_to_zero<C, kActive>(sums);
  const auto multiply_step = [&]<bool kFirst, bool kLast>(std::bool_constant<kFirst>,
                                                          std::bool_constant<kLast>) {
    const uint32_t stage = ring.slot;
    const uint32_t x = place.x + stage * (C::kXBytes / 16);
    const uint32_t w = place.w + stage * (C::kWBytes / 16);
    ring.advance();
    Scales<C> scales[kActive];
    bool ready = true;  // whether the next stage is full
#pragma unroll
    for (int v = 0; v < kActive; ++v) {
      typename C::Partial partial[C::kSums];
      wgmma_fence();
      products<C>(x, w, v, partial);
      if (v == 0) read_scales<C, kActive>(shared, stage, place, scales);
      if (v == kActive - 1) {
        if constexpr (kFirst) in_first_step();
        if constexpr (kLast) in_last_step(stage);
      }
      wgmma_wait<0>();
      wgmma_pin(partial);
      if (v == kActive - 1) {
        if (!kLast || !C::kHold) release<C>(shared, stage, place.lane);
        if constexpr (!kLast) ready = mbarrier_try_wait(shared.full(ring.slot), ring.parity());
      }
      promote<C>(partial, scales[v], sums[v]);
    }
    if (!ready) mbarrier_wait(shared.full(ring.slot), ring.parity());
    return stage;
  };
  constexpr std::true_type kYes;
  constexpr std::false_type kNo;
  if (steps > 1) {
    multiply_step(kYes, kNo);
#pragma unroll 4
    for (int left = steps - 2; left > 0; --left) multiply_step(kNo, kNo);
  } else {
    in_first_step();
  }
  return multiply_step(kNo, kYes);
}

// Computes the sums with two sets of partial sums: the products of a block are issued before the sums of the
// previous block are promoted.
template <class C>
__device__ __forceinline__ void multiply_ahead(const Shared<C>& shared, RingPosition<C::kStages>& ring,
                                               int steps, const Place<C>& place, float (&sums)[C::kSums]) {
  struct Block {
    typename C::Partial partial[C::kSums];
    Scales<C> scales[1];
    uint32_t stage;
  };
#pragma unroll
  for (int i = 0; i < C::kSums; ++i) sums[i] = 0.0F;
  const auto begin = [&](Block& block) {
    block.stage = ring.slot;
    mbarrier_wait(shared.full(ring.slot), ring.parity());
    wgmma_fence();
    products<C>(place.x + ring.slot * (C::kXBytes / 16), place.w + ring.slot * (C::kWBytes / 16), 0,
                block.partial);
    read_scales<C, 1>(shared, ring.slot, place, block.scales);
    ring.advance();
  };
  const auto finish = [&](Block& block) {
    wgmma_pin(block.partial);
    release<C>(shared, block.stage, place.lane);
    promote<C>(block.partial, block.scales[0], sums);
  };
  Block even;
  Block odd;
  begin(even);
  int step = 0;
  for (; step + 2 < steps; step += 2) {
    begin(odd);
    wgmma_wait<1>();
    finish(even);
    begin(even);
    wgmma_wait<1>();
    finish(odd);
  }
  if (step + 1 < steps) {
    begin(odd);
    wgmma_wait<1>();
    finish(even);
    wgmma_wait<0>();
    finish(odd);
  } else {
    wgmma_wait<0>();
    finish(even);
  }
}

}  // namespace hadal::cuda::wgmma_gemm
