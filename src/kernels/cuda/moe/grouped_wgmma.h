// The tiled grouped product's instantiations, one a file so that they compile side by side. Internal to moe/.
#pragma once

#include "kernels/cuda/moe/moe.h"

namespace hadal::cuda::grouped_wgmma {

// Whether tiles of 256 rows are faster than tiles of 128, measured on an H200. They do more for each load,
// but an expert's last tile costs nearly as much with few rows as with many: from many rows an expert on. In
// FP8 also where one tall tile holds most experts' rows, so that their weights are read once.
inline bool tall_tiles(int64_t num_rows, int num_experts, WeightType type) {
  const int64_t average = num_rows / num_experts;
  if (type == WeightType::kBF16) return average >= 512;
  return average >= 768 || (average > 128 && average <= 200);
}

void run_bf16(const GroupedLinearParams& params, const Launch& launch);
void run_fp8(const GroupedLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda::grouped_wgmma
