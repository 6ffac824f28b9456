// The kernels behind `route`, chosen by size. Arguments are checked by route().
#pragma once

#include "kernels/cuda/moe/moe.h"

namespace hadal::cuda {

// Experts of a lane of the tuned kernels.
constexpr int lane_values(int num_experts) {
  return num_experts <= 64 ? 2 : num_experts <= 160 ? 5 : num_experts <= 256 ? 8 : 16;
}
// Whether every group of experts, where the gate knows any, is a run of lanes.
inline bool groups_fit_lanes(const RouteParams& p) {
  if (p.kind == GateKind::kSoftmaxGreedy || p.num_groups == 1) return true;
  return p.num_experts == 32 * lane_values(p.num_experts) && 32 % p.num_groups == 0;
}

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
