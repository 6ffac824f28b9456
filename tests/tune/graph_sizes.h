// Holds what tests of kernel choices need to compare a batch with the graph that it is padded to.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/graph_buckets.h"

namespace hadal::testing {

// Holds the default sizes of graphs up to `largest`.
class GraphSizes {
 public:
  explicit GraphSizes(int64_t largest)
      : shapes_(graph_shapes(graph_buckets({}, largest).value(), EngineOptions{}, false)) {}

  int64_t largest() const { return shapes_.back().items; }
  // Returns the size that a batch is padded to.
  int64_t padded(int64_t batch) const { return choose_shape(shapes_, batch, 1, false, true).items; }

 private:
  std::vector<GraphShape> shapes_;
};

}  // namespace hadal::testing
