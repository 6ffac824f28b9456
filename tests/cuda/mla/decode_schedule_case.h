// Lists every schedule of MLA decode for every cache format, for tests with parameters.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda/mla/decode_checks.h"

namespace hadal::testing {

struct ScheduleCase {
  int layout;  // of kLayouts
  cuda::DecodeSchedule schedule;
};

inline std::vector<ScheduleCase> all_schedules() {
  std::vector<ScheduleCase> cases;
  for (int layout_idx = 0; layout_idx < static_cast<int>(kLayouts.size()); ++layout_idx) {
    for (const cuda::DecodeSchedule& schedule : cuda::decode_schedules(kLayouts[layout_idx].second))
      cases.push_back({layout_idx, schedule});
  }
  return cases;
}

inline std::string schedule_name(const ::testing::TestParamInfo<ScheduleCase>& info) {
  const auto& [layout_idx, schedule] = info.param;
  const char* kernel = schedule.kernel == cuda::DecodeKernel::kSwapped ? "Swapped"
                       : schedule.kernel == cuda::DecodeKernel::kTiles ? "Tiles"
                                                                       : "TilesFp8";
  return kLayouts[layout_idx].first + kernel + "Rows" + std::to_string(schedule.tile_rows) + "Cluster" +
         std::to_string(schedule.cluster);
}

}  // namespace hadal::testing
