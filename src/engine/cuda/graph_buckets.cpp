#include "engine/cuda/graph_buckets.h"

#include <algorithm>

#include "kernels/cuda/padding.h"

namespace hadal {

Result<std::vector<int64_t>> graph_buckets(const DeviceOptions& device, int64_t max_running_requests) {
  std::vector<int64_t> buckets;
  if (!device.use_graphs) return buckets;
  if (!device.graph_bs.empty()) {
    for (const int64_t rows : device.graph_bs) {
      if (rows < 1) return invalid_argument("cuda-graph-bs contains {}; allowed: 1 or more", rows);
      if (rows <= max_running_requests) buckets.push_back(rows);
    }
  } else {
    const int64_t most =
        device.graph_max_bs > 0 ? std::min(device.graph_max_bs, max_running_requests) : max_running_requests;
    for (int64_t rows = 1; rows < most; rows = cuda::next_graph_size(rows)) buckets.push_back(rows);
    buckets.push_back(most);
  }
  std::sort(buckets.begin(), buckets.end());
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

int64_t choose_bucket(const std::vector<int64_t>& buckets, int64_t num_rows, bool pad) {
  const auto at = std::lower_bound(buckets.begin(), buckets.end(), num_rows);
  if (at == buckets.end() || (!pad && *at != num_rows)) return -1;
  return *at;
}

}  // namespace hadal
