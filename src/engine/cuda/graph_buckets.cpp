#include "engine/cuda/graph_buckets.h"

#include <algorithm>

#include "engine/speculation/speculation_policy.h"
#include "kernels/cuda/padding.h"

namespace hadal {
namespace {

bool is_power_of_two(int64_t n) {
  return (n & (n - 1)) == 0;
}

}  // namespace

Result<std::vector<int64_t>> graph_buckets(const DeviceOptions& device, int64_t max_running_requests) {
  std::vector<int64_t> buckets;
  if (!device.use_graphs) return buckets;
  if (!device.graph_bs.empty()) {
    for (const int64_t rows : device.graph_bs) {
      if (rows < 1 || rows > cuda::kMostGraphTokens) {
        return invalid_argument("--cuda-graph-bs contains {}; allowed: 1 to {}", rows,
                                cuda::kMostGraphTokens);
      }
      if (rows <= max_running_requests) buckets.push_back(rows);
    }
  } else {
    int64_t most = std::min(max_running_requests, cuda::kMostGraphTokens);
    if (device.graph_max_bs > 0) most = std::min(most, device.graph_max_bs);
    for (int64_t rows = 1; rows < most; rows = cuda::next_graph_size(rows)) buckets.push_back(rows);
    buckets.push_back(most);
  }
  std::sort(buckets.begin(), buckets.end());
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

std::vector<GraphShape> graph_shapes(const std::vector<int64_t>& buckets, const EngineOptions& options,
                                     bool has_indexer) {
  const int64_t greatest = std::max<int64_t>(options.speculation_width, 1);
  std::vector<GraphShape> shapes;
  for (int64_t width = 1; width <= greatest; ++width) {
    const bool is_common =
        width <= 4 || is_power_of_two(width) || (width % 3 == 0 && is_power_of_two(width / 3));
    if (width < greatest && (!options.speculation_adapts || !is_common)) continue;
    int64_t kept = 0;
    for (size_t i = 0; i < buckets.size(); ++i) {
      GraphShape shape{.items = buckets[i], .width = width};
      if (options.speculation_width > 0) {
        if (shape.rows() > kMaxVerifiedRows) break;
        const bool is_last = i + 1 == buckets.size() || buckets[i + 1] * width > kMaxVerifiedRows;
        if (!is_last && 4 * shape.items < 5 * kept) continue;
      }
      kept = shape.items;
      if (!has_indexer || shape.rows() <= kMostRowsWithoutSelecting) shapes.push_back(shape);
      shape.selects = true;
      if (has_indexer) shapes.push_back(shape);
    }
  }
  return shapes;
}

GraphShape choose_shape(const std::vector<GraphShape>& shapes, int64_t num_items, int64_t width, bool selects,
                        bool pad) {
  for (const GraphShape& shape : shapes) {
    if (selects && !shape.selects) continue;
    const bool is_exact = shape.items == num_items && shape.width == width;
    if (is_exact || (pad && shape.items >= num_items && shape.width >= width)) return shape;
  }
  return {};
}

}  // namespace hadal
