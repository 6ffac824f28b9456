// The tiled grouped product's instantiations, one a file so that they compile side by side. Internal to moe/.
#pragma once

#include "kernels/cuda/moe/moe.h"

namespace hadal::cuda::grouped_wgmma {

// Average rows an expert from which tiles of 256 rows are faster than tiles of 128: they do more for each
// load, but an expert's last tile costs nearly as much with few rows as with many. Measured on an H200.
inline constexpr int64_t kTallRowsBf16 = 512;
inline constexpr int64_t kTallRowsFp8 = 768;

void run_bf16(const GroupedLinearParams& params, const Launch& launch);
void run_fp8(const GroupedLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda::grouped_wgmma
