// Implements the step between the products: it reads the sums of gate_up's splits, which all blocks wrote,
// adds them up and activates them.
#pragma once

#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/experts/few/ring.cuh"

namespace hadal::cuda::few {

// Publishes a split's sum as one word. The router's kernel has set every word to kAbsent, so a word that
// differs from kAbsent has been written.
__device__ __forceinline__ void publish(float* to, float value) {
  const uint32_t bits = __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(bits == kAbsent ? 0x7fffffffU : bits)
               : "memory");
}
__device__ __forceinline__ uint4 fetch(const float* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool absent(const uint4& v) {
  return max(max(v.x, v.y), max(v.z, v.w)) == kAbsent;
}
__device__ __forceinline__ float4 floats(const uint4& v) {
  return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}

// Writes silu(gate) ⊙ up for the rows of the block's experts into `active`, from the sums of all splits.
// All consumer warps call it.
template <WeightType kType, int kValues, int kStages>
__device__ __forceinline__ void activate_rows(const Args& args, const Routing<kValues>& routing,
                                              int first_place, int places, const Memory<kStages>& memory) {
  using T = Row16<kType>;
  constexpr bool kFp8 = is_fp8_type<kType>;
  const int intermediate = args.sums_n / 2;
  const int quads = intermediate / 4;
  const int all_rows = static_cast<int>(args.route.m) * (args.route.top_k + args.route.num_shared);
  const int64_t stride = static_cast<int64_t>(all_rows) * args.sums_n;
  const int first_expert = routing.order[first_place];
  const int second_expert = routing.order[first_place + places - 1];
  const int first_rows = __popc(routing.masks[first_expert]);
  const int rows = first_rows + (places > 1 ? __popc(routing.masks[second_expert]) : 0);
#pragma unroll 1
  for (int task = static_cast<int>(threadIdx.x); task < rows * quads; task += kConsumers) {
    const int which = task / quads;
    const int feature = (task - which * quads) * 4;
    const int place = which < first_rows ? 0 : 1;
    const int i = which - place * first_rows;  // the row within the expert
    const int row = routing.offsets[place == 0 ? first_expert : second_expert] + i;
    const float* from = args.sums + static_cast<int64_t>(row) * args.sums_n + feature;
    uint4 gates[kMaxSplits];
    uint4 ups[kMaxSplits];
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s) {
      if (s >= args.splits) continue;
      gates[s] = fetch(from + s * stride);
      ups[s] = fetch(from + s * stride + intermediate);
    }
    const SpinDeadline deadline;
    for (bool waits = true; waits;) {
      waits = false;
#pragma unroll
      for (int s = 0; s < kMaxSplits; ++s) {
        if (s >= args.splits || !(absent(gates[s]) || absent(ups[s]))) continue;
        waits = true;
        gates[s] = fetch(from + s * stride);
        ups[s] = fetch(from + s * stride + intermediate);
      }
      if (waits && deadline.has_passed()) __trap();
    }
    float4 gate = floats(gates[0]);
    float4 up = floats(ups[0]);
#pragma unroll
    for (int s = 1; s < kMaxSplits; ++s) {
      if (s >= args.splits) continue;
      const float4 g = floats(gates[s]);
      const float4 u = floats(ups[s]);
      gate.x += g.x, gate.y += g.y, gate.z += g.z, gate.w += g.w;
      up.x += u.x, up.y += u.y, up.z += u.z, up.w += u.w;
    }
    // Gate and up are rounded as a separate product would round them.
    const auto value = [](float g, float u) {
      return silu_times(to_f32(round_to<T>(g)), to_f32(round_to<T>(u)));
    };
    const Floats8 y{{value(gate.x, up.x), value(gate.y, up.y), value(gate.z, up.z), value(gate.w, up.w), 0.0F,
                     0.0F, 0.0F, 0.0F}};
    const int byte = feature * (kFp8 ? 1 : 2);
    const int slot = place * args.down.num_blocks + byte / kSlotK;
    const int chunk = byte % kSlotK / 16;
    std::byte* to = memory.active + slot * kXSlotBytes + i * kSlotK + ((chunk ^ i) << 4) + byte % 16;
    if constexpr (kFp8) {
      const float scale = group_scale(lanes_max(abs_max8(y)), args.power_of_two != 0);
      *reinterpret_cast<uint32_t*>(to) = codes8(y, scale, false).x;
      if (threadIdx.x % 32 == 0) memory.active_scales[slot * kTokens + i] = scale;
    } else {
      *reinterpret_cast<uint2*>(to) = {pack_two<T>(y.v[0], y.v[1]), pack_two<T>(y.v[2], y.v[3])};
    }
  }
}

}  // namespace hadal::cuda::few
