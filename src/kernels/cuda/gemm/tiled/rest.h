// The last, partial round of tiles of the tiled product (gemm/tiled/kernel.cuh), whose steps of k all blocks
// share: how they are shared, and the memory that this takes. Plain data and pure functions, used by the
// kernel, its launch and gemm/choice.cpp; free of CUDA headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hadal::cuda {

// `tiles` tiles of `steps` steps each. Each has an owner among the workers (clusters of blocks), as in a
// round that is not shared, which leaves its last `tail` steps to the `helpers`, the workers that have no
// tile: the tails in a row are cut into one range per helper, of about equal length. So owners go through k
// together, and their loads hit the L2.
struct RestCut {
  int tiles = 0;  // 0: nothing is shared
  int steps = 0;
  int tail = 0;
  int helpers = 0;

  constexpr bool fits() const {
    return tiles > 0 && helpers > 0 && tail > 0 && tail < steps && tiles * tail >= helpers;
  }
  // A helper's first step, counted through all tails; begin(helpers) is the number of all steps.
  constexpr int begin(int helper) const { return static_cast<int>(int64_t{helper} * tiles * tail / helpers); }
  // The helper whose range holds a step.
  constexpr int helper_of(int step) const {
    return static_cast<int>(((int64_t{step} + 1) * helpers - 1) / (int64_t{tiles} * tail));
  }
  // The helpers of a tile's tail.
  constexpr int first_helper(int tile) const { return helper_of(tile * tail); }
  constexpr int last_helper(int tile) const { return helper_of((tile + 1) * tail - 1); }
  // The number of tiles in whose tails a helper has steps.
  constexpr int num_parts(int helper) const {
    return (begin(helper + 1) - 1) / tail - begin(helper) / tail + 1;
  }
  // The place in which a helper stores its sums for a tile: a number below tiles + helpers, different for
  // each such pair.
  static constexpr int place(int tile, int helper) { return tile + helper; }
};

// Device memory for launches that run one after the other: the sums that blocks send each other, and for each
// consumer warp of a block how many have been stored. The counts are zero between launches.
struct RestWorkspace {
  static constexpr size_t kBlockBytes = 256 * 128 * 4;  // the sums of the largest tile
  static constexpr int kWarps = 8;
  void* sums = nullptr;        // [blocks][kBlockBytes]
  uint32_t* counts = nullptr;  // [blocks][kWarps]
  int blocks = 0;              // of a grid; 0: there is none
};

}  // namespace hadal::cuda
