#include "kernels/cuda/experts/route/choice.h"

#include <algorithm>

namespace hadal::cuda {
namespace {

// The large kernel keeps one bit for each of a block's tokens and each expert. With 128 blocks and 256
// experts, this limit allows 390,000 tokens.
constexpr int64_t kMostMaskBytes = int64_t{96} << 10;
constexpr int64_t kMostCounted = 65'535;  // tokens of a block, which 16 bits count

bool lanes_support(const ExpertsShape& s) {
  return s.num_experts <= kMaxRouted && s.num_slots() <= 32 && groups_fit_lanes(s);
}

}  // namespace

const char* to_string(RouteKernel kernel) {
  switch (kernel) {
    case RouteKernel::kPlain:
      return "plain";
    case RouteKernel::kSmall:
      return "small";
    case RouteKernel::kLarge:
      return "large";
  }
  return "unknown";
}

bool groups_fit_lanes(const ExpertsShape& s) {
  if (s.gate_kind == GateKind::kSoftmaxGreedy || s.num_groups == 1) return true;
  return s.num_experts == 32 * lane_values(s.num_experts) && 32 % s.num_groups == 0;
}

bool supports(RouteKernel kernel, const ExpertsShape& s) {
  if (kernel == RouteKernel::kPlain) return true;
  if (!lanes_support(s)) return false;
  if (kernel == RouteKernel::kSmall) return s.tokens <= kMaxSmallRoute;
  const int64_t run = route_run(s.tokens, s.num_sms);
  return (run + 31) / 32 * 4 * s.num_all_experts() <= kMostMaskBytes && run <= kMostCounted;
}

RouteKernel choose_route(const ExpertsShape& s) {
  for (const RouteKernel kernel : {RouteKernel::kSmall, RouteKernel::kLarge})
    if (supports(kernel, s)) return kernel;
  return RouteKernel::kPlain;
}

size_t route_scratch_bytes(int64_t tokens, int num_all_experts) {
  const int64_t blocks = std::min<int64_t>((tokens + kRouteRun - 1) / kRouteRun, kMaxRouteBlocks);
  return static_cast<size_t>(blocks * ((num_all_experts + 1) / 2)) * sizeof(uint32_t);
}

}  // namespace hadal::cuda
