// Chooses among the kernels of cuda::linear by the shape alone, never by values, so that equal arguments give
// equal kernels and equal bits. This header is for the host alone and includes no CUDA header.
// docs/kernels/kernel-choices.md says how to add a kernel.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/cuda/choice.h"
#include "kernels/cuda/gemm/shape.h"
#include "kernels/cuda/gemm/skinny/schedule.h"
#include "kernels/cuda/gemm/thin/config.h"
#include "kernels/cuda/gemm/tiled/rest.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

// These are the tiles of the tiled kernel for 8-bit weights (gemm/tiled/linear.cuh), in the order of their
// enumerators. By2 and By4 say how many blocks share a tile's k.
enum class LinearTile : uint8_t { k256x128, k128x192, k128x128, k128x64, k128x64By2, k128x64By4 };
inline constexpr LinearTile kLinearTiles[] = {LinearTile::k256x128,   LinearTile::k128x192,
                                              LinearTile::k128x128,   LinearTile::k128x64,
                                              LinearTile::k128x64By2, LinearTile::k128x64By4};
struct LinearTileSize {
  int block_m, block_n, splits, stages, cluster;
  bool shares = false;  // its last round may be shared (linear_rest)
};
inline constexpr LinearTileSize kLinearTileSizes[] = {{256, 128, 1, 4, 2}, {128, 192, 1, 5, 1, true},
                                                      {128, 128, 1, 6, 2}, {128, 64, 1, 7, 1},
                                                      {128, 64, 2, 8, 1},  {128, 64, 4, 8, 1}};
constexpr const LinearTileSize& linear_tile_size(LinearTile tile) {
  return kLinearTileSizes[static_cast<int>(tile)];
}
LinearChoice choice_of(LinearTile tile);
std::optional<LinearTile> linear_tile_of(const LinearChoice& choice);

// Returns the choice for a shape that has no measured choice, by the thresholds of gemm/fitted.h.
LinearChoice heuristic(const LinearShape& shape);
// Chooses the tiled kernel's tile by estimated times, for 8-bit weights of any shape.
// (gemm/skinny/schedule.h chooses the tile of the weight-streaming kernel.)
LinearTile choose_linear_tile(WeightType type, int64_t m, int64_t n, int64_t k, int num_sms);

// Returns how the blocks share the tiles of a shape's last round. The result has no tiles if sharing is not
// worthwhile.
RestCut linear_rest(LinearTile tile, WeightType type, int64_t m, int64_t n, int64_t k, int num_sms);

// Returns true if the choice is compiled and correct for the shape: its variant supports the shape and has
// the configuration.
bool supports(const LinearChoice& choice, const LinearShape& shape);

// Returns every choice worth measuring for the shape: all kernels that support it, in every configuration.
// For the weight-streaming kernel it has the ring lengths that leave room for one to four blocks per
// multiprocessor. The plain kernel is left out, so the list is empty if only that kernel supports the shape.
std::vector<LinearChoice> valid_choices(const LinearShape& shape);

// Holds measured choices by shape. It is filled once; afterwards any thread may read it.
class LinearTable {
 public:
  void set(WeightType type, int64_t n, int64_t k, int64_t m, const LinearChoice& choice) {
    shapes_[{measured_type(type), n, k}].set(m, choice, m >= kLargestMeasuredBatch);
  }
  // Returns the first of the measured choices for this number of rows (ChoicesByRows) that supports the
  // shape, or nullopt if there is none.
  std::optional<LinearChoice> find(const LinearShape& shape) const;
  size_t num_shapes() const { return shapes_.size(); }

 private:
  std::map<std::tuple<WeightType, int64_t, int64_t>, ChoicesByRows> shapes_;
};

// Returns the measured choice if the table has one (null: no table), otherwise the heuristic's.
LinearChoice choose(const LinearShape& shape, const LinearTable* measured);

}  // namespace hadal::cuda
