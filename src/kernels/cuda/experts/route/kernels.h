// The kernels of cuda::route, among which route/choice.h chooses. Arguments are checked by route().
#pragma once

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/route/choice.h"

namespace hadal::cuda {

// Throws hadal::Error where a choice is impossible: more experts than there are, groups that do not divide.
void check_route(const RouteParams& params);

// Routes in one kernel of one cluster of blocks. m ≤ kMaxSmallRoute.
void route_small(const RouteParams& params, const Launch& launch);
// Routes any number of tokens whose masks fit shared memory, in one kernel whose blocks wait for each other.
void route_large(const RouteParams& params, const Launch& launch);

namespace reference {
void route(const RouteParams& params, const Launch& launch);
}

}  // namespace hadal::cuda
