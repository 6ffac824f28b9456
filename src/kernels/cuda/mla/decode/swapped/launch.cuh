// Launches the swapped decode kernel (mla/decode/swapped/kernel.cuh) for each cache format.
#pragma once

#include <type_traits>

#include "kernels/cuda/mla/decode/swapped/16bit.cuh"
#include "kernels/cuda/mla/decode/swapped/fp8.cuh"
#include "kernels/cuda/mla/decode/swapped/kernel.cuh"

namespace hadal::cuda {
namespace swapped {

template <KvFormat kFormat, bool kMasks>
using FormatOf = std::conditional_t<kFormat == KvFormat::kBF16, Format16<bf16, kMasks>,
                                    std::conditional_t<kFormat == KvFormat::kF16, Format16<f16, kMasks>,
                                                       FormatFp8<kFormat == KvFormat::kFp8E4M3, kMasks>>>;

}  // namespace swapped

template <KvFormat kFormat, bool kMasks>
void mla_decode_swapped(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  swapped::launch_swapped<swapped::FormatOf<kFormat, kMasks>>(args, geometry, launch);
}

}  // namespace hadal::cuda
