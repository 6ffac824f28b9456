// Declares one 64-row product of each form that common/wgmma.cuh offers, for its test. This header includes
// no CUDA header.
#pragma once

#include <cstdint>

#include "base/float_types.h"
#include "kernels/cuda/launch.h"

namespace hadal::cuda {

enum class WgmmaForm : uint8_t {
  kBf16,          // A and B from shared memory, both K-major
  kBf16BMnMajor,  // B [k, n]
  kBf16AMnMajor,  // A [k, 64]
  kBf16BothMnMajor,
  kBf16Registers,  // A from registers, B K-major
  kBf16RegistersBMnMajor,
  kE4m3,
  kE4m3Registers,
};

inline constexpr int kProbeRows = 64;
inline constexpr int kProbeDepthBf16 = 128;  // k: two tiles of four instructions
inline constexpr int kProbeDepthE4m3 = 256;

struct WgmmaProbeParams {
  WgmmaForm form = WgmmaForm::kBf16;
  int n = 0;                // 8, 64, 96, 128, 192 or 256; MN-major B: 64, 128, 192, 256
  const void* a = nullptr;  // [64, k], or [k, 64] where MN-major; bf16 or e4m3
  const void* b = nullptr;  // [n, k], or [k, n] where MN-major
  float* d = nullptr;       // [64, n] = A · Bᵀ
  bf16* d_bf16 =
      nullptr;  // [64, n], the same through stmatrix and a tensor store; n a multiple of 64, or null
};
void wgmma_probe(const WgmmaProbeParams& params, const Launch& launch);

}  // namespace hadal::cuda
