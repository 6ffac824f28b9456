// The kernels behind `route`, chosen by size. Arguments are checked by route().
#pragma once

#include "kernels/cuda/experts/experts.h"

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

// Throws hadal::Error where a choice is impossible: more experts than there are, groups that do not divide.
void check_route(const RouteParams& params);

inline constexpr int64_t kMaxSmallRoute = 128;  // tokens
inline constexpr int kRouteRun = 16;            // tokens of a block of the large kernel: a multiple
inline constexpr int kMaxRouteBlocks = 128;     // of the large kernel

// Tokens of each block of the large kernel but the last.
constexpr int64_t route_run(int64_t m, int num_sms) {
  const int64_t blocks = num_sms < kMaxRouteBlocks ? num_sms : kMaxRouteBlocks;
  return round_up((m + blocks - 1) / blocks, kRouteRun);
}

// Tokens of one cluster of blocks, in one kernel. m ≤ kMaxSmallRoute.
void route_small(const RouteParams& params, const Launch& launch);
// Any number of tokens whose masks fit shared memory (tuned_covers), in one kernel whose blocks meet.
void route_large(const RouteParams& params, const Launch& launch);

namespace reference {
void route(const RouteParams& params, const Launch& launch);
}

}  // namespace hadal::cuda
