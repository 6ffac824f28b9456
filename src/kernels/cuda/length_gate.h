// Declares how a kernel learns on the device that no row of the step needs what it computes. This header
// includes no CUDA header; kernels read it with common/length_gate.cuh.
#pragma once

#include <cstdint>

namespace hadal::cuda {

// A product is needed if one of `count` lengths is above `limit`. A kernel that is not needed reads no
// weights and writes nothing.
struct LengthGate {
  const int32_t* lengths = nullptr;  // [count], on the device; null: the product is always needed
  int32_t count = 0;
  int32_t limit = 0;
  // True: the lengths were complete before the previous kernel could begin (see launch.h), so they are read
  // before the wait for it, and a kernel that is needed loads its weights as early as without a gate.
  bool settled = false;
};

}  // namespace hadal::cuda
