// Decides how the weight-streaming kernel cuts a shape, by a pure function of the shape, so that the same
// arguments give the same order of sums in every run. Measured choices (gemm/choice.h) override it. This
// header includes no CUDA header.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/cuda/gemm/shape.h"
#include "kernels/cuda/limits.h"

namespace hadal::cuda::skinny {

inline constexpr int64_t kMaxRows = 64;                          // rows of x, in a linear
inline constexpr int64_t kMaxRowBytes = (int64_t{1} << 30) - 1;  // bytes of a row of W
inline constexpr int64_t kMaxOutputs = (int64_t{1} << 22) - 1;
inline constexpr int kMaxExperts = 384;  // of a grouped product, with the shared ones

inline bool supports(const LinearShape& s) {
  return has_tensor_core_kernels(s.type) && s.m >= 1 && s.m <= kMaxRows && s.n > 0 && s.n <= kMaxOutputs &&
         s.k > 0 && row_bytes(s.type, s.k) % 16 == 0 && row_bytes(s.type, s.k) <= kMaxRowBytes && s.aligned &&
         sums_fit(s.type, s.k);
}

struct Schedule {
  int tokens = 8;  // width of a tile of x: 8, 16, 32 or 64
  int groups = 1;  // warpgroups, 64 rows of W each: 1 or 2
  int splits = 1;  // parts of k, the blocks of a cluster: 1 … 8
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

// Returns true for types with instantiations of two warpgroups.
constexpr bool has_two_groups(WeightType type) {
  return type == WeightType::kBF16 || type == WeightType::kFp8Block;
}

// shared_bytes returns the shared memory of gemm/skinny/kernel.cuh; gemm/skinny/launch.cuh checks that the
// two agree. It consists of the ring (or the tile in which sums are joined, if that is larger), the scales of
// blocks or of rows and channels, the barriers, and 1024 bytes for the alignment of its start.
inline constexpr int kMaxStages = 24;
inline constexpr int kMaxSplits = 8;
constexpr int64_t shared_bytes(WeightType type, int tokens, int groups, int stages, int blocks_of_split) {
  const int64_t slot = (groups * 64 + tokens) * int64_t{128};
  const int64_t joined = (tokens * (groups * 64 + 4) * int64_t{4} + 1023) / 1024 * 1024;
  const int64_t scales = is_block_scaled(type)     ? int64_t{4} * tokens * blocks_of_split
                         : is_channel_scaled(type) ? int64_t{4} * (tokens + groups * 64)
                                                   : 0;
  return std::max(stages * slot, joined) + scales + (2 * kMaxStages + 1) * 8 + 1024;
}

// Returns the number of ring slots that fit in `shared_budget` bytes per block beside the scales. (Channel
// scales are not counted, because there are few of them whatever k is.)
inline int stages_of(WeightType type, int tokens, int groups, int blocks_of_split, int64_t shared_budget) {
  const int64_t scales = is_channel_scaled(type) ? 0 : int64_t{4} * tokens * blocks_of_split;
  const int64_t fit = (shared_budget - 2048 - scales) / ((groups * 64 + tokens) * 128);
  return static_cast<int>(std::clamp<int64_t>(fit, 2, std::clamp(blocks_of_split, 2, kMaxStages)));
}

// Returns true if the choice's configuration is compiled and fits in shared memory. Linears and experts use
// this.
inline bool fits(WeightType type, const Choice& c, int k_blocks, std::initializer_list<int> tiles_of_tokens) {
  const bool tile =
      std::find(tiles_of_tokens.begin(), tiles_of_tokens.end(), c.block_m) != tiles_of_tokens.end() &&
      (c.block_n == 64 || (c.block_n == 128 && has_two_groups(type)));
  if (!tile || c.cluster != 1 || c.stages < 2 || c.stages > kMaxStages) return false;
  if (c.splits < 1 || c.splits > std::min(kMaxSplits, k_blocks)) return false;
  return shared_bytes(type, c.block_m, c.block_n / 64, c.stages, (k_blocks + c.splits - 1) / c.splits) <=
         kMaxSharedBytes;
}
// Appends the choices that have one of these splits and a ring that fills one of these numbers of KiB per
// block.
inline void append_choices(WeightType type, int k_blocks, std::initializer_list<int> tiles_of_tokens,
                           std::initializer_list<int> all_splits, std::initializer_list<int64_t> kilobytes,
                           std::vector<Choice>& out) {
  for (const int tokens : tiles_of_tokens) {
    for (const int groups : {1, 2}) {
      for (const int splits : all_splits) {
        int last_stages = 0;
        for (const int64_t budget : kilobytes) {
          const int stages = stages_of(type, tokens, groups, (k_blocks + splits - 1) / splits, budget * 1024);
          if (stages == last_stages) continue;
          last_stages = stages;
          const Choice choice =
              choice_of({.tokens = tokens, .groups = groups, .splits = splits, .stages = stages});
          if (fits(type, choice, k_blocks, tiles_of_tokens)) out.push_back(choice);
        }
      }
    }
  }
}

// Returns true if this many blocks run at once, two per multiprocessor. (Some multiprocessors stay free,
// because the blocks of a cluster must be placed together.)
inline bool two_a_multiprocessor(int64_t blocks, int num_sms) {
  return blocks * 20 <= num_sms * int64_t{38};
}

// Returns true if, for one matrix, the next kernel may start only when this kernel has issued all loads of W,
// so that the next kernel's loads do not come first. The result is false for up to eight rows, because little
// work is left by then. It is also false if many blocks end, and so make room for the next kernel, long
// before the last block issues its loads.
inline bool starts_late(int tokens, int64_t blocks, int num_sms) {
  return tokens > 8 && two_a_multiprocessor(blocks, num_sms);
}

// Returns the schedule for one matrix [n, k_blocks · 128 bytes] and m rows of x. In measurements
// (docs/kernels/cuda-skinny-gemm.md) the fastest schedules have a quarter more blocks than multiprocessors or
// somewhat more, and two blocks fit on a multiprocessor beside a block of the next kernel. A block gets all
// the shared memory of a multiprocessor only if half of the multiprocessors have no block; otherwise the next
// kernel could load nothing before this kernel ends. With up to eight rows, or for long k, a multiprocessor
// has three blocks if there are enough splits.
inline Schedule schedule_of(WeightType type, int64_t m, int64_t n, int k_blocks, int num_sms) {
  constexpr int kLongK = 96;
  constexpr int64_t kOneBlock = 200 * 1024, kTwoBlocks = 110 * 1024, kThreeBlocks = 72 * 1024,
                    kFourBlocks = 52 * 1024, kTwoWideBlocks = 88 * 1024;
  Schedule s;
  s.tokens = tile_of_tokens(m);
  s.groups = 1;
  const int64_t tiles = (n + 63) / 64;
  // A split has at least four slots of k, and with more than four splits at least seven, except with few
  // tiles.
  const bool few_tiles = tiles * kMaxSplits <= num_sms;
  const int64_t most =
      std::clamp(few_tiles ? k_blocks / 4 : std::min(k_blocks / 4, std::max(4, k_blocks / 7)), 1, kMaxSplits);
  const auto slots = [&](int64_t splits) { return (k_blocks + splits - 1) / splits; };
  int64_t splits = std::clamp<int64_t>((num_sms * int64_t{5} / 4 + tiles - 1) / tiles, 1, most);
  // One more split is worthwhile if k divides unevenly and the extra split shortens every split.
  if (splits < most && slots(splits) * splits * 10 > k_blocks * 11 && slots(splits + 1) < slots(splits))
    ++splits;
  // With 64 rows, filling the last fifth of a wave is not worth reading x twice as often.
  const bool is_long = k_blocks >= kLongK;
  if (splits == 2 && s.tokens == 64 && !is_long && tiles * 5 >= num_sms * 4) splits = 1;
  if (s.tokens == 8 || is_long) {
    const int64_t three = std::min(num_sms * int64_t{26} / 10 / tiles, most);
    if (three * tiles * 10 >= num_sms * int64_t{23}) splits = three;
  }
  // 64 rows of x are as many bytes as a tile of W, so for long k two warpgroups share them, with two blocks
  // per multiprocessor.
  const int64_t pairs = (n + 127) / 128;
  const int64_t two = num_sms * int64_t{19} / 10 / pairs;
  if (type == WeightType::kFp8Block && s.tokens == 64 && is_long && two <= 4 &&
      two * pairs * 2 >= num_sms * 3) {
    s.groups = 2;
    s.splits = static_cast<int>(two);
    s.stages = stages_of(type, s.tokens, s.groups, static_cast<int>(slots(two)), kTwoWideBlocks);
    return s;
  }
  // Between one wave (of three blocks per multiprocessor) and two, the last blocks would run alone, so all
  // blocks are halved.
  if (tiles > 3 * num_sms && tiles < 6 * num_sms && k_blocks >= 32) splits = 2;
  s.splits = static_cast<int>(splits);
  const int64_t blocks = tiles * splits;
  const int64_t budget = blocks * 2 <= num_sms                   ? kOneBlock
                         : splits > 1 && slots(splits) <= 4      ? kFourBlocks
                         : two_a_multiprocessor(blocks, num_sms) ? kTwoBlocks
                                                                 : kThreeBlocks;
  s.stages = stages_of(type, s.tokens, s.groups, static_cast<int>(slots(splits)), budget);
  return s;
}

// Returns the schedule for experts of [n, k_blocks · 128 bytes] with num_rows rows in all. A tile is 16 or 64
// tokens wide, and a block uses the narrowest product that its expert's rows fit in. The weights of an expert
// with more rows than a tile are read once per tile.
inline Schedule grouped_schedule_of(int64_t num_rows, int num_experts, int64_t n, int k_blocks, int num_sms) {
  Schedule s;
  s.tokens = num_rows <= 128 ? 16 : 64;
  s.groups = 1;
  const int64_t tiles = (n + 63) / 64 * std::min<int64_t>(num_experts, num_rows);
  while (s.splits < 8 && tiles * s.splits * 10 < num_sms * 13 && k_blocks >= s.splits * 16) s.splits *= 2;
  // All types get the number of slots that fit beside block scales.
  s.stages =
      stages_of(WeightType::kFp8Block, s.tokens, s.groups, (k_blocks + s.splits - 1) / s.splits, 72 * 1024);
  return s;
}

}  // namespace hadal::cuda::skinny
