// Scales of FP8 activations (activation.h), the one place of that arithmetic on the device.
#pragma once

#include "kernels/cuda/activation.h"

namespace hadal::cuda {

// The scale of a group with this largest magnitude. A quotient that underflows to zero counts as a group of
// zeros.
__device__ __forceinline__ float group_scale(float amax, bool power_of_two) {
  const float scale = __fdiv_rn(amax, kFp8E4m3Max);
  if (!(scale > 0.0F)) return 1.0F;
  if (!power_of_two) return scale;
  return __uint_as_float((__float_as_uint(scale) + 0x7fffffU) & 0xff800000U);
}

}  // namespace hadal::cuda
