// Describes the last, partial round of tiles of the tiled product (gemm/tiled/kernel.cuh), whose steps of k
// all blocks share: how the steps are divided, and the memory that sharing needs. The kernel, its launch and
// gemm/choice.cpp use this plain data and these pure functions; the header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hadal::cuda {

// There are `tiles` tiles of `steps` steps each. As in a round that is not shared, each tile has an owner
// among the workers (clusters of blocks). But the owner leaves the last `tail` steps to the `helpers`, which
// are the workers that have no tile. All tails, laid end to end, are cut into one range per helper, all of
// about equal length. So the owners go through k together, and their loads hit the L2.
struct RestCut {
  int tiles = 0;  // 0: no tile is shared
  int steps = 0;
  int tail = 0;
  int helpers = 0;

  constexpr bool fits() const {
    return tiles > 0 && helpers > 0 && tail > 0 && tail < steps && tiles * tail >= helpers;
  }
  // Returns a helper's first step, counted through all tails; begin(helpers) is the number of all steps.
  constexpr int begin(int helper) const { return static_cast<int>(int64_t{helper} * tiles * tail / helpers); }
  // Returns the helper whose range holds a step.
  constexpr int helper_of(int step) const {
    return static_cast<int>(((int64_t{step} + 1) * helpers - 1) / (int64_t{tiles} * tail));
  }
  // Returns the first and the last helper of a tile's tail.
  constexpr int first_helper(int tile) const { return helper_of(tile * tail); }
  constexpr int last_helper(int tile) const { return helper_of((tile + 1) * tail - 1); }
  // Returns the number of tiles in whose tails a helper has steps.
  constexpr int num_parts(int helper) const {
    return (begin(helper + 1) - 1) / tail - begin(helper) / tail + 1;
  }
  // Returns the place in the workspace at which a helper stores its sums for a tile. The place is below tiles
  // + helpers, and different for each pair of a tile and a helper of this tile.
  static constexpr int place(int tile, int helper) { return tile + helper; }
};

// RestWorkspace is device memory for launches that run one after the other. It holds the sums that blocks
// send to each other and, for each consumer warp of a block, the number of sums that have been stored. The
// counts are zero between launches.
struct RestWorkspace {
  static constexpr size_t kBlockBytes = 256 * 128 * 4;  // the sums of the largest tile
  static constexpr int kWarps = 8;
  void* sums = nullptr;        // [blocks][kBlockBytes]
  uint32_t* counts = nullptr;  // [blocks][kWarps]
  int blocks = 0;              // largest grid, in blocks; 0: there is no memory
};

}  // namespace hadal::cuda
