// How the weight-streaming kernel cuts a shape: a pure function of the shape, so that the same arguments give
// the same order of sums in every run. Free of CUDA headers; measured choices (gemm/choice.h) override it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/choice.h"
#include "kernels/params/linear.h"

namespace hadal::cuda::skinny {

struct Schedule {
  int tokens = 8;  // width of a tile of x: 8, 16, 32 or 64
  int groups = 1;  // warpgroups, 64 rows of W each: 1 or 2
  int splits = 1;  // of k, the blocks of a cluster: 1, 2, 4 or 8
  int stages = 2;  // slots of the ring
};

inline Choice choice_of(const Schedule& s) {
  return {.kernel = ProductKernel::kSkinny,
          .block_m = s.tokens,
          .block_n = s.groups * 64,
          .splits = s.splits,
          .stages = s.stages};
}
inline Schedule schedule_of(const Choice& choice) {
  return {.tokens = choice.block_m,
          .groups = choice.block_n / 64,
          .splits = choice.splits,
          .stages = choice.stages};
}

inline int tile_of_tokens(int64_t m) {
  return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
}

// Types with instantiations of two warpgroups.
constexpr bool has_two_groups(WeightType type) {
  return type == WeightType::kBF16 || type == WeightType::kFp8Block;
}

// What skinny.cuh has in shared memory (skinny_launch.cuh compares), alignment of its start included: the
// ring, or what the sums are joined in where that is more; scales, of blocks or of rows and channels;
// barriers.
inline constexpr int kMaxStages = 24;
inline constexpr int64_t kMostSharedBytes = 227 * 1024;
constexpr int64_t shared_bytes(WeightType type, int tokens, int groups, int stages, int blocks_of_split) {
  const int64_t slot = (groups * 64 + tokens) * int64_t{128};
  const int64_t joined = (tokens * (groups * 64 + 4) * int64_t{4} + 1023) / 1024 * 1024;
  const int64_t scales = is_block_scaled(type)     ? int64_t{4} * tokens * blocks_of_split
                         : is_channel_scaled(type) ? int64_t{4} * (tokens + groups * 64)
                                                   : 0;
  return std::max(stages * slot, joined) + scales + (2 * kMaxStages + 1) * 8 + 1024;
}

// Slots of the ring that fit beside the scales, of `shared_budget` bytes a block.
inline int stages_of(int tokens, int groups, int blocks_of_split, int64_t shared_budget) {
  const int64_t others = 2048 + int64_t{4} * tokens * blocks_of_split;
  const int64_t fit = (shared_budget - others) / ((groups * 64 + tokens) * 128);
  return static_cast<int>(std::clamp<int64_t>(fit, 2, std::clamp(blocks_of_split, 2, kMaxStages)));
}

// Shared memory of a block when `blocks` of them are spread over the device: as many a multiprocessor as it
// takes to run them in one wave, at most three (beyond that more waves, each starting while others stream).
// Cluster placement wants some slack.
inline int64_t shared_budget_of(int64_t blocks, int num_sms) {
  const int64_t a_multiprocessor =
      std::clamp<int64_t>((blocks * 20 + num_sms * 19 - 1) / (num_sms * 19), 1, 3);
  return a_multiprocessor == 1 ? 200 * 1024 : a_multiprocessor == 2 ? 110 * 1024 : 72 * 1024;
}

// One matrix [n, k_blocks · 128 bytes], m rows of x.
inline Schedule schedule_of(int64_t m, int64_t n, int k_blocks, int num_sms) {
  Schedule s;
  s.tokens = tile_of_tokens(m);
  s.groups = 1;
  const int64_t tiles = (n + 63) / 64;
  // Rather more blocks than multiprocessors, but none with fewer than eight slots of k.
  while (s.splits < 8 && tiles * s.splits * 10 < num_sms * 13 && k_blocks >= s.splits * 16) s.splits *= 2;
  // Between one wave and two the last blocks run alone: halve them.
  if (tiles > 3 * num_sms && tiles < 6 * num_sms && k_blocks >= 32) s.splits = 2;
  s.stages = stages_of(s.tokens, s.groups, (k_blocks + s.splits - 1) / s.splits,
                       shared_budget_of(tiles * s.splits, num_sms));
  return s;
}

// Experts of [n, k_blocks · 128 bytes], num_rows rows in all. A tile is 16 or 64 tokens wide and a block uses
// the narrowest product that its expert's rows fit in; an expert with more rows than a tile reads its weights
// again.
inline Schedule grouped_schedule_of(int64_t num_rows, int num_experts, int64_t n, int k_blocks, int num_sms) {
  Schedule s;
  s.tokens = num_rows <= 128 ? 16 : 64;
  s.groups = 1;
  const int64_t tiles = (n + 63) / 64 * std::min<int64_t>(num_experts, num_rows);
  while (s.splits < 8 && tiles * s.splits * 10 < num_sms * 13 && k_blocks >= s.splits * 16) s.splits *= 2;
  s.stages = stages_of(s.tokens, s.groups, (k_blocks + s.splits - 1) / s.splits, 72 * 1024);
  return s;
}

}  // namespace hadal::cuda::skinny
