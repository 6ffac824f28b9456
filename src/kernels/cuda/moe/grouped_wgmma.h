// The tiled grouped product's instantiations, one a file so that they compile side by side. Internal to moe/.
#pragma once

#include "kernels/cuda/moe/moe.h"

namespace hadal::cuda::grouped_wgmma {

// Rows of an expert from which tiles of 256 rows pay: a tile of 256 rows that holds at most 128 costs one of
// 128 plus its loads.
inline constexpr int64_t kWideRows = 160;

void run_bf16(const GroupedLinearParams& params, const Launch& launch);
void run_fp8(const GroupedLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda::grouped_wgmma
