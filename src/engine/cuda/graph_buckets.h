// Chooses the sizes of the decode steps that are captured as CUDA graphs, by pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace hadal {

// Returns the sizes in ascending order, each at most max_running_requests. They are device.graph_bs if that
// is given. Otherwise they are the series of next_graph_size (kernels/cuda/padding.h) up to the smallest of
// device.graph_max_bs (if not 0), max_running_requests and kMostGraphTokens, and that smallest number itself.
// Padding to a size of the series adds at most an eighth to a batch of 64 or more. The result is empty
// without graphs. A size of device.graph_bs below 1 or above kMostGraphTokens is an error.
Result<std::vector<int64_t>> graph_buckets(const DeviceOptions& device, int64_t max_running_requests);

// GraphShape is the size of a decode step: `items` requests with up to `width` rows each. Without speculation
// the width is 1. items is 0 if there is no such size. If `selects` is true, an indexer chooses keys for rows
// that have more than index_topk of them; otherwise the step must have no such row.
struct GraphShape {
  int64_t items = 0;
  int64_t width = 1;
  bool selects = false;

  int64_t rows() const { return items * width; }
  auto operator<=>(const GraphShape&) const = default;
};

// Returns the sizes of captured steps, by width and then by items. Without speculation (speculation_width is
// 0 in the options) they are the buckets. With speculation they have every width up to 4 and then 6, 8, 12,
// 16, 24 and so on, or only the greatest if the width does not adapt, and at most kMaxVerifiedRows rows.
// Because there are several widths, only some buckets are kept: those at least a quarter larger than the one
// before, and the largest. With an indexer every size selects, and sizes of up to kMostRowsWithoutSelecting
// rows occur twice, first without selecting.
std::vector<GraphShape> graph_shapes(const std::vector<int64_t>& buckets, const EngineOptions& options,
                                     bool has_indexer);

// In a graph of a small step, the kernels of the indexer take several percent of the time even if no row
// selects: each ends at once, but they run one after the other. In a large step they take less than one
// percent.
inline constexpr int64_t kMostRowsWithoutSelecting = 32;

// Returns the narrowest of `shapes`, and of these the smallest, that holds num_items requests with `width`
// rows each, and that selects if `selects` is true. Without padding it returns a shape only if both numbers
// are equal to those of the shape.
GraphShape choose_shape(const std::vector<GraphShape>& shapes, int64_t num_items, int64_t width, bool selects,
                        bool pad);

}  // namespace hadal
