// Chooses among the kernels of cuda::grouped_linear by the shape alone, never by values. This header is for
// the host alone and includes no CUDA header. docs/kernels/kernel-choices.md says how to add a kernel.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/cuda/choice.h"
#include "kernels/cuda/gemm/skinny/schedule.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

using GroupedChoice = Choice;

inline constexpr int kMaxTiledExperts = 512;  // of the tiled and the columns kernel, including shared experts

// Describes one of the two products of a layer's experts.
struct GroupedShape {
  WeightType type = WeightType::kBF16;
  int64_t num_rows = 0;    // rows of all experts: tokens times experts of a token
  int rows_per_token = 1;  // experts per token
  int num_experts = 0;     // including the shared ones
  int64_t n = 0;           // outputs of an expert
  int64_t k = 0;
  int num_sms = 132;
  bool gathered = false;  // rows of x are found through an index; else they are sorted by expert
  // Weights (each expert's) and activations begin at multiples of 16 bytes, in rows that are multiples of 16
  // bytes and hold all of k (8-bit types: padded to a multiple of 128).
  bool aligned = true;
  // The same is true of y and, for 8-bit types, of the activations' scales; each expert's scales of channels
  // begin at multiples of 8 bytes.
  bool aligned_y = true;
};

// Returns the choice for a shape without a measurement.
GroupedChoice heuristic(const GroupedShape& shape);

// Returns the number of rows, rounded up as finely_padded_tokens does: up to 512 tokens to the next power of
// two, up to 4,096 tokens to the next default graph size. The heuristic's thresholds apply to this number. A
// batch and the graph to which it may be padded round up to the same number, so they get the same bits.
int64_t padded_rows(const GroupedShape& shape);
// Returns true if sorting the rows is worthwhile even though it needs a separate kernel. padded_rows counts
// the rows of all experts.
bool heuristic_wants_sorted(int64_t padded_rows, int num_experts, WeightType type);
// Returns true if the kernel supports the shape in some configuration; its launcher checks the same.
bool supports(ProductKernel kernel, const GroupedShape& shape);
// Returns true if the columns kernel supports gate and up together with their activation. shape.n is the
// width of gate and up together.
bool columns_support_activation(const GroupedShape& shape);
// Returns true if the choice is compiled and correct for the shape.
bool supports(const GroupedChoice& choice, const GroupedShape& shape);
// Returns every choice worth measuring, without the plain kernel.
std::vector<GroupedChoice> valid_choices(const GroupedShape& shape);

// Returns true if the kernel needs rows sorted by expert, because it does not gather them.
bool wants_sorted(const GroupedChoice& choice);

// These are the tiles of the tiled kernel (experts/grouped/tiled.cuh), in the order of their enumerators. The
// last two read an expert's weights only once if it has up to 128 and 64 rows respectively, and they read x
// half as often as tiles of 128 columns do.
enum class GroupedTile : uint8_t { k256x128, k128x128, k128x256, k64x256 };
inline constexpr GroupedTile kGroupedTiles[] = {GroupedTile::k256x128, GroupedTile::k128x128,
                                                GroupedTile::k128x256, GroupedTile::k64x256};
constexpr GroupedChoice grouped_tile(GroupedTile tile) {
  constexpr GroupedChoice kChoices[] = {
      {.kernel = ProductKernel::kTiled, .block_m = 256, .block_n = 128, .stages = 4, .cluster = 2},
      {.kernel = ProductKernel::kTiled, .block_m = 128, .block_n = 128, .stages = 6, .cluster = 2},
      {.kernel = ProductKernel::kTiled, .block_m = 128, .block_n = 256, .stages = 4, .cluster = 2},
      {.kernel = ProductKernel::kTiled, .block_m = 64, .block_n = 256, .stages = 5, .cluster = 1}};
  return kChoices[static_cast<int>(tile)];
}
// The columns kernel has one tile: up to block_m tokens by block_n rows of W.
inline constexpr GroupedChoice kColumnsTile = {
    .kernel = ProductKernel::kColumns, .block_m = 208, .block_n = 128, .stages = 4, .cluster = 2};
std::optional<GroupedTile> grouped_tile_of(const GroupedChoice& choice);
// Returns the tile that the heuristic chooses, based on measurements on an H200. With few rows per expert it
// is the lowest tile that holds the rows of most experts, so that weights are read once. With many rows,
// tiles of 256 rows compute more per load, but an expert's last tile costs nearly as much with few rows as
// with many.
GroupedTile choose_grouped_tile(const GroupedShape& shape);

// Holds measured choices by shape. It is filled once and then read by any thread.
class GroupedTable {
 public:
  // and_more means that num_rows are the rows of kLargestMeasuredBatch tokens or more.
  void set(WeightType type, int num_experts, int64_t n, int64_t k, int64_t num_rows,
           const GroupedChoice& choice, bool and_more = false) {
    shapes_[{measured_type(type), num_experts, n, k}].set(num_rows, choice, and_more);
  }
  // Returns the first of the measured choices for this number of rows (ChoicesByRows) that supports the
  // shape, or nullopt if there is none.
  std::optional<GroupedChoice> find(const GroupedShape& shape) const;
  size_t num_shapes() const { return shapes_.size(); }

 private:
  std::map<std::tuple<WeightType, int, int64_t, int64_t>, ChoicesByRows> shapes_;
};

// Returns the table's choice if it has one (null: no table), otherwise the heuristic's.
GroupedChoice choose(const GroupedShape& shape, const GroupedTable* measured);

// Returns true if rows should be sorted before a product whose kernels could also gather them.
bool wants_sorted(const GroupedShape& shape, const GroupedTable* measured);

}  // namespace hadal::cuda
