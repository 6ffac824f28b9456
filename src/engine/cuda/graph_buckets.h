// Chooses the batch sizes for which decode steps are captured as CUDA graphs, by pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace hadal {

// Returns the sizes, ascending, each at most max_running_requests: device.graph_bs if given, otherwise the
// series of next_graph_size (kernels/cuda/padding.h) up to device.graph_max_bs (0: max_running_requests),
// which is always included. Padding to a size of the series adds at most an eighth to a batch of 64 or more.
// The result is empty without graphs. A size below 1 is an error.
Result<std::vector<int64_t>> graph_buckets(const DeviceOptions& device, int64_t max_running_requests);

// Returns the smallest bucket of at least num_rows, or −1. Without padding it returns num_rows itself or −1.
int64_t choose_bucket(const std::vector<int64_t>& buckets, int64_t num_rows, bool pad);

}  // namespace hadal
