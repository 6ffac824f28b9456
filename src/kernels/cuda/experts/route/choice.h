// Chooses among the kernels of cuda::route, and sizes the scratch memory that they need. This header is for
// the host alone, includes no CUDA header and is part of every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/experts/shape.h"

namespace hadal::cuda {

enum class RouteKernel : uint8_t {
  kPlain,  // route/route.cu: any shape
  kSmall,  // route/small.cu: one cluster of blocks
  kLarge,  // route/large.cu: blocks that wait for each other
};
const char* to_string(RouteKernel kernel);

inline constexpr int64_t kMaxSmallRoute = 128;  // tokens of the small kernel
inline constexpr int kRouteRun = 16;         // a block of the large kernel has a multiple of this many tokens
inline constexpr int kMaxRouteBlocks = 128;  // blocks of the large kernel
inline constexpr int kMaxRouted = 512;       // routed experts that both kernels support

// Returns the number of experts that one lane of the tuned kernels holds.
constexpr int lane_values(int num_experts) {
  return num_experts <= 64 ? 2 : num_experts <= 160 ? 5 : num_experts <= 256 ? 8 : 16;
}

// Calls launch.operator()<lane_values(num_experts)>(). kMost is the largest number of routed experts for
// which the kernel has an instantiation.
template <int kMost = kMaxRouted, typename Launcher>
void dispatch_lane_values(int num_experts, const Launcher& launch) {
  switch (lane_values(num_experts)) {
    case 2:
      return launch.template operator()<2>();
    case 5:
      return launch.template operator()<5>();
    case 8:
      return launch.template operator()<8>();
    default:
      launch.template operator()<lane_values(kMost)>();
  }
}

// Returns the number of tokens in each block of the large kernel except the last, which may have fewer.
constexpr int64_t route_run(int64_t tokens, int num_sms) {
  const int64_t blocks = num_sms < kMaxRouteBlocks ? num_sms : kMaxRouteBlocks;
  const int64_t run = (tokens + blocks - 1) / blocks;
  return (run + kRouteRun - 1) / kRouteRun * kRouteRun;
}

// Returns true if every group of experts is a run of lanes, or the gate has no groups.
bool groups_fit_lanes(const ExpertsShape& shape);

// Returns true if the kernel supports the shape.
bool supports(RouteKernel kernel, const ExpertsShape& shape);
// Returns the kernel for the shape, if plain kernels were not requested.
RouteKernel choose_route(const ExpertsShape& shape);

// Returns the bytes of RouteParams::scratch; the result never decreases as the number of tokens grows.
size_t route_scratch_bytes(int64_t tokens, int num_all_experts);

}  // namespace hadal::cuda
