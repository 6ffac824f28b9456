// The choice among the kernels of cuda::route, and the scratch memory that they need. Host only, free of CUDA
// headers, part of every build.
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
inline constexpr int kRouteRun = 16;            // tokens of a block of the large kernel: a multiple
inline constexpr int kMaxRouteBlocks = 128;     // of the large kernel
inline constexpr int kMaxRouted = 512;          // routed experts of both

// The number of experts that one lane of the tuned kernels holds.
constexpr int lane_values(int num_experts) {
  return num_experts <= 64 ? 2 : num_experts <= 160 ? 5 : num_experts <= 256 ? 8 : 16;
}

// The number of tokens of each block of the large kernel but the last.
constexpr int64_t route_run(int64_t tokens, int num_sms) {
  const int64_t blocks = num_sms < kMaxRouteBlocks ? num_sms : kMaxRouteBlocks;
  const int64_t run = (tokens + blocks - 1) / blocks;
  return (run + kRouteRun - 1) / kRouteRun * kRouteRun;
}

// True if every group of experts is a run of lanes, or the gate has no groups.
bool groups_fit_lanes(const ExpertsShape& shape);

// True if the kernel supports the shape.
bool supports(RouteKernel kernel, const ExpertsShape& shape);
// The kernel for the shape when the plain kernels are not asked for.
RouteKernel choose_route(const ExpertsShape& shape);

// Bytes of RouteParams::scratch; more tokens never need less.
size_t route_scratch_bytes(int64_t tokens, int num_all_experts);

}  // namespace hadal::cuda
