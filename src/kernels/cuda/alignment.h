// Tests the alignment that vector loads, bulk copies and tensor maps need. This header is for the host alone
// and includes no CUDA header.
#pragma once

#include <cstdint>

namespace hadal::cuda {

inline bool on_8_bytes(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 8 == 0;
}
inline bool on_16_bytes(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace hadal::cuda
