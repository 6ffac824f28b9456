// The kernels behind `route`, chosen by size. Arguments are checked by route().
#pragma once

#include "kernels/cuda/moe/moe.h"

namespace hadal::cuda {

inline constexpr int64_t kMaxSmallRoute = 128;  // tokens
inline constexpr int kRouteTile = 32;           // tokens of a block of the large kernels

// Tokens of one cluster of blocks, in one kernel. m ≤ kMaxSmallRoute.
void route_small(const RouteParams& params, const Launch& launch);
// Any number of tokens: gate and counts, sums over tiles, scatter.
void route_large(const RouteParams& params, const Launch& launch);

namespace reference {
void route(const RouteParams& params, const Launch& launch);
}

}  // namespace hadal::cuda
