// Forwards to tensor/graph_timer.h, which the benches share with `hadal tune`.
#pragma once

#include "tensor/graph_timer.h"

namespace hadal::bench {

using hadal::graph_of_calls;
using hadal::num_rotating_sets;
using hadal::time_in_graph;

}  // namespace hadal::bench
