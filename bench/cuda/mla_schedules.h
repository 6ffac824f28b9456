// Names the schedules of decode for the benches, and decides which schedules are worth measuring.
#pragma once

#include <fmt/format.h>

#include <string>

#include "kernels/cuda/mla/decode/decode.h"

namespace hadal::bench {

inline std::string name_of(const cuda::DecodeSchedule& schedule) {
  using cuda::DecodeKernel;
  if (schedule.kernel == DecodeKernel::kTiles) return "tiles";
  if (schedule.kernel == DecodeKernel::kTilesFp8) return "fp8";
  return fmt::format("{}x{}", schedule.tile_rows, schedule.cluster);
}

inline bool same(const cuda::DecodeSchedule& a, const cuda::DecodeSchedule& b) {
  return a.kernel == b.kernel && a.tile_rows == b.tile_rows && a.cluster == b.cluster;
}

// Returns false if not all tiles of a part are resident at once, if there are far more sequences than
// clusters, or if there is more padding than rows.
inline bool fits(const cuda::DecodeSchedule& schedule, int batch, int rows,
                 const cuda::ClusterCapacity& capacity) {
  int i = 0;
  while ((1 << i) < schedule.cluster) ++i;
  const int tiles = (rows + schedule.tile_rows - 1) / schedule.tile_rows;
  if (schedule.cluster > 1 && batch * tiles > 2 * capacity.clusters[i]) return false;
  return tiles <= capacity.clusters[i] && (rows > 16 || schedule.tile_rows == 16 || schedule.cluster == 1);
}

}  // namespace hadal::bench
