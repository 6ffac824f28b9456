// Forwards to tensor/random_operands.h, so that a program has one store of patterns.
#pragma once

#include "tensor/random_operands.h"

namespace hadal::bench {

using hadal::repeated;

inline RandomOperands& random_operands() {
  static RandomOperands operands;
  return operands;
}

inline DeviceBuffer random_bf16(size_t count, CudaStream& stream, float sigma = 1.0F) {
  return random_operands().bf16_values(count, stream, sigma);
}
inline DeviceBuffer random_f16(size_t count, CudaStream& stream, float sigma = 1.0F) {
  return random_operands().f16_values(count, stream, sigma);
}
inline DeviceBuffer random_e4m3(size_t count, CudaStream& stream) {
  return random_operands().e4m3_codes(count, stream);
}
inline DeviceBuffer random_int8(size_t count, CudaStream& stream) {
  return random_operands().int8_codes(count, stream);
}
inline DeviceBuffer random_scales(size_t count, CudaStream& stream, float divisor = 1.0F) {
  return random_operands().scales(count, stream, divisor);
}

}  // namespace hadal::bench
