// Declares the kernels of cuda::route, among which route/choice.h chooses. route() checks the arguments.
#pragma once

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/route/choice.h"

namespace hadal::cuda {

// Throws hadal::Error if no choice is possible, for example because top_k exceeds the number of experts or
// the experts cannot be divided into the groups.
void check_route(const RouteParams& params);

// Routes in one kernel of one cluster of blocks. m ≤ kMaxSmallRoute.
void route_small(const RouteParams& params, const Launch& launch);
// Routes any number of tokens whose masks fit shared memory, in one kernel whose blocks wait for each other.
void route_large(const RouteParams& params, const Launch& launch);

namespace reference {
void route(const RouteParams& params, const Launch& launch);
}

}  // namespace hadal::cuda
