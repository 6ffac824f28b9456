// Declares the data by which a kernel decides on the device whether any row of the step needs its result.
// This header includes no CUDA header; kernels evaluate a gate with common/length_gate.cuh.
#pragma once

#include <cstdint>

namespace hadal::cuda {

// A product is needed if one of `count` lengths is above `limit`. A kernel that is not needed reads no
// weights and writes nothing.
struct LengthGate {
  const int32_t* lengths = nullptr;  // [count], on the device; null: the product is always needed
  int32_t count = 0;
  int32_t limit = 0;
  // True: the lengths were complete before the previous kernel could begin (see launch.h). They are then read
  // before pdl_wait(), so that a needed kernel loads its weights as early as without a gate.
  bool settled = false;
};

}  // namespace hadal::cuda
