// Batch sizes for which a decode step is kept as a CUDA graph. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace hadal {

// Without --cuda-graph-max-bs, no step of more rows is graphed.
inline constexpr int64_t kDefaultGraphMaxRows = 160;

// Ascending, each at most max_running_requests: device.graph_bs when given, else 1, 2, 4, 8, 12, then every
// eighth to 256, every sixteenth to 512, every thirty-second, up to device.graph_max_bs, which is always one
// of them. Empty without graphs. Error: a size below 1.
Result<std::vector<int64_t>> graph_buckets(const DeviceOptions& device, int64_t max_running_requests);

// The smallest bucket that holds num_rows, or −1. Without padding: num_rows itself or −1.
int64_t choose_bucket(const std::vector<int64_t>& buckets, int64_t num_rows, bool pad);

}  // namespace hadal
