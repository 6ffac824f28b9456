#include "kernels/cuda/experts/choice.h"

#include "kernels/cuda/experts/fitted.h"
#include "kernels/cuda/padding.h"

namespace hadal::cuda {
namespace {

int64_t row_bytes(const GroupedShape& s) {
  return cuda::row_bytes(s.type, s.k);
}

bool grouped_skinny_supports(const GroupedShape& s) {
  return has_tensor_core_kernels(s.type) && sums_fit(s.type, s.k) && s.num_rows >= 1 && s.num_experts >= 1 &&
         s.num_experts <= skinny::kMaxExperts && s.n > 0 && s.n <= skinny::kMaxOutputs && s.k > 0 &&
         row_bytes(s) % 16 == 0 && row_bytes(s) <= skinny::kMaxRowBytes && s.aligned;
}
bool grouped_skinny_fits(const GroupedShape& s, const GroupedChoice& c) {
  return skinny::fits(s.type, c, blocks_of_k(s.type, s.k), {16, 64});
}
void grouped_skinny_choices(const GroupedShape& s, std::vector<GroupedChoice>& out) {
  skinny::append_choices(s.type, blocks_of_k(s.type, s.k), {16, 64}, {1, 2, 4, 8}, {54, 72, 110, 200}, out);
}

bool tiles_support(const GroupedShape& s) {
  return has_tensor_core_kernels(s.type) && sums_fit(s.type, s.k) && !s.gathered && s.num_rows >= 1 &&
         s.num_experts >= 1 && s.num_experts <= kMaxTiledExperts && s.n >= 8 && s.n % 8 == 0 && s.aligned &&
         s.aligned_y;
}
bool grouped_tiled_supports(const GroupedShape& s) {
  // The tiled kernel has no instantiations in float16, which runs on the columns kernel.
  return tiles_support(s) && s.type != WeightType::kF16;
}
bool grouped_tiled_fits(const GroupedShape&, const GroupedChoice& c) {
  return grouped_tile_of(c).has_value();
}
void grouped_tiled_choices(const GroupedShape&, std::vector<GroupedChoice>& out) {
  for (const GroupedTile tile : kGroupedTiles) out.push_back(grouped_tile(tile));
}

bool columns_support(const GroupedShape& s) {
  return is_16_bit(s.type) && s.k >= 8 && tiles_support(s);
}
bool columns_fit(const GroupedShape&, const GroupedChoice& c) {
  return c == kColumnsTile;
}
void columns_choices(const GroupedShape&, std::vector<GroupedChoice>& out) {
  out.push_back(kColumnsTile);
}

struct GroupedKernelRow {
  ProductKernel kernel;
  bool (*supports)(const GroupedShape& shape);
  // Returns true if the configuration is compiled and correct for a shape that the kernel supports.
  bool (*fits)(const GroupedShape& shape, const GroupedChoice& choice);
  // Appends every configuration that is worth measuring.
  void (*append_choices)(const GroupedShape& shape, std::vector<GroupedChoice>& out);
};
constexpr GroupedKernelRow kGroupedKernels[] = {
    {ProductKernel::kReference, [](const GroupedShape&) { return true; },
     [](const GroupedShape&, const GroupedChoice& c) {
       return c == GroupedChoice{.kernel = ProductKernel::kReference};
     },
     [](const GroupedShape&, std::vector<GroupedChoice>&) {}},
    {ProductKernel::kSkinny, grouped_skinny_supports, grouped_skinny_fits, grouped_skinny_choices},
    {ProductKernel::kTiled, grouped_tiled_supports, grouped_tiled_fits, grouped_tiled_choices},
    {ProductKernel::kColumns, columns_support, columns_fit, columns_choices},
};

}  // namespace

int64_t padded_rows(const GroupedShape& s) {
  const int64_t tokens = (s.num_rows + s.rows_per_token - 1) / s.rows_per_token;
  if (tokens < 1 || tokens > kMostGraphTokens) return s.num_rows;
  return finely_padded_tokens(tokens) * s.rows_per_token;
}

bool heuristic_wants_sorted(int64_t padded_rows, int num_experts, WeightType type) {
  const int64_t border = has_scales(type) ? fitted::kSortedRowsAnExpert8Bit : fitted::kSortedRowsAnExpert;
  return has_tensor_core_kernels(type) && padded_rows > border * num_experts;
}

GroupedTile choose_grouped_tile(const GroupedShape& s) {
  using namespace fitted;
  const int64_t average = padded_rows(s) / s.num_experts;
  if (is_16_bit(s.type)) return average >= kTallTileFrom16Bit ? GroupedTile::k256x128 : GroupedTile::k128x128;
  if (average <= kFlatTileUpTo) return GroupedTile::k64x256;
  if (s.k >= kLongK && average <= kWideTileUpTo) return GroupedTile::k128x256;
  const bool one_tall_tile = average > kOneTallTileAbove && average <= kOneTallTileUpTo;
  return average >= kTallTileFrom8Bit || one_tall_tile ? GroupedTile::k256x128 : GroupedTile::k128x128;
}

std::optional<GroupedTile> grouped_tile_of(const GroupedChoice& choice) {
  for (const GroupedTile tile : kGroupedTiles) {
    if (grouped_tile(tile) == choice) return tile;
  }
  return std::nullopt;
}

GroupedChoice heuristic(const GroupedShape& s) {
  const int64_t rows = padded_rows(s);
  const bool many = heuristic_wants_sorted(rows, s.num_experts, s.type);
  if (many && columns_support(s)) return kColumnsTile;
  const int64_t border = s.k < fitted::kLongK ? fitted::kSortedRows8BitShortK : fitted::kSortedRows8Bit;
  const bool sorted_anyway = has_scales(s.type) && rows > border;
  if ((sorted_anyway || many) && grouped_tiled_supports(s)) return grouped_tile(choose_grouped_tile(s));
  if (grouped_skinny_supports(s)) {
    return skinny::choice_of(
        skinny::grouped_schedule_of(rows, s.num_experts, s.n, blocks_of_k(s.type, s.k), s.num_sms));
  }
  return {.kernel = ProductKernel::kReference};
}

bool supports(ProductKernel kernel, const GroupedShape& shape) {
  for (const GroupedKernelRow& row : kGroupedKernels) {
    if (row.kernel == kernel) return row.supports(shape);
  }
  return false;
}

bool columns_support_activation(const GroupedShape& shape) {
  return columns_support(shape) && shape.n % 16 == 0;
}

bool supports(const GroupedChoice& choice, const GroupedShape& shape) {
  for (const GroupedKernelRow& row : kGroupedKernels) {
    if (row.kernel == choice.kernel) return row.supports(shape) && row.fits(shape, choice);
  }
  return false;
}

std::vector<GroupedChoice> valid_choices(const GroupedShape& shape) {
  std::vector<GroupedChoice> choices;
  for (const GroupedKernelRow& row : kGroupedKernels) {
    if (row.supports(shape)) row.append_choices(shape, choices);
  }
  return choices;
}

bool wants_sorted(const GroupedChoice& choice) {
  return choice.kernel == ProductKernel::kTiled || choice.kernel == ProductKernel::kColumns;
}

bool wants_sorted(const GroupedShape& shape, const GroupedTable* measured) {
  GroupedShape sorted = shape;
  sorted.gathered = false;
  if (measured != nullptr) {
    if (const auto choice = measured->find(sorted)) return wants_sorted(*choice);
  }
  return heuristic_wants_sorted(padded_rows(shape), shape.num_experts, shape.type);
}

std::optional<GroupedChoice> GroupedTable::find(const GroupedShape& shape) const {
  const auto at = shapes_.find({measured_type(shape.type), shape.num_experts, shape.n, shape.k});
  if (at == shapes_.end()) return std::nullopt;
  return at->second.for_rows(shape.num_rows,
                             [&](const GroupedChoice& choice) { return supports(choice, shape); });
}

GroupedChoice choose(const GroupedShape& shape, const GroupedTable* measured) {
  if (measured != nullptr) {
    if (const auto choice = measured->find(shape)) return *choice;
  }
  return heuristic(shape);
}

}  // namespace hadal::cuda
