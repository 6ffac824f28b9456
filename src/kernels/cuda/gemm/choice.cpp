#include "kernels/cuda/gemm/choice.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "kernels/cuda/gemm/fitted.h"
#include "kernels/cuda/gemm/library/supports.h"
#include "kernels/cuda/gemm/router/supports.h"
#include "kernels/cuda/gemm/tiled/supports.h"
#include "kernels/cuda/padding.h"

namespace hadal::cuda {
namespace {

constexpr int kQuantBlock = 128;

LinearChoice thin_choice(int64_t m) {
  return {.kernel = ProductKernel::kThin, .block_m = thin::tile_of_tokens(m), .block_n = thin::kRows};
}
void thin_choices(const LinearShape& s, std::vector<LinearChoice>& out) {
  out.push_back(thin_choice(s.m));
}

// These are the widths of token tiles that gemm/skinny/linear.cuh instantiates.
constexpr std::initializer_list<int> kSkinnyTiles = {8, 16, 32, 64};

bool skinny_fits(const LinearShape& s, const LinearChoice& c) {
  return c.block_m >= s.m && skinny::fits(s.type, c, blocks_of_k(s.type, s.k), kSkinnyTiles);
}
void skinny_choices(const LinearShape& s, std::vector<LinearChoice>& out) {
  std::vector<LinearChoice> all;
  skinny::append_choices(s.type, blocks_of_k(s.type, s.k), kSkinnyTiles, {1, 2, 3, 4, 5, 6, 8},
                         {52, 72, 88, 110, 200}, all);
  std::copy_if(all.begin(), all.end(), std::back_inserter(out),
               [&](const LinearChoice& choice) { return choice.block_m >= s.m; });
}

static_assert(std::size(kLinearTileSizes) == std::size(kLinearTiles) &&
              std::size(kLinearTiles) == fitted::kNumTiles);

bool tiled_fits(const LinearShape&, const LinearChoice& c) {
  return linear_tile_of(c).has_value();
}
void tiled_choices(const LinearShape&, std::vector<LinearChoice>& out) {
  for (const LinearTile tile : kLinearTiles) out.push_back(choice_of(tile));
}

// Returns the estimated time in microseconds: rounds of tiles over the multiprocessors times the cost of a
// tile.
double estimate(WeightType type, LinearTile which, int64_t m, int64_t n, int64_t k, int num_sms) {
  const auto blocks = [](int64_t value, int64_t block) { return (value + block - 1) / block; };
  const LinearTileSize& size = linear_tile_size(which);
  const fitted::TileCost cost = fitted::tile_costs(type).of[static_cast<int>(which)];
  const int64_t tiles = blocks(m, size.block_m) * blocks(n, int64_t{size.block_n} * size.cluster);
  const int clusters = num_sms / (size.cluster * size.splits);
  const int64_t at_once =
      std::max(1, size.splits > 2 ? clusters * fitted::kTenthsOfClustersOfFour / 10 : clusters);
  return static_cast<double>(blocks(tiles, at_once)) *
         (static_cast<double>(blocks(blocks(k, kQuantBlock), size.splits)) * cost.step + cost.tile);
}

// Up to this many rows no last round is shared, so padding a batch to a graph of at most this size keeps its
// bits. In larger graphs padding may change bits, because the division of the last round depends on the exact
// number of tiles.
constexpr int64_t kMaxUnsharedRows = 512;

struct SharedRound {
  RestCut cut;
  double cost = 0.0;  // microseconds of its steps
};
// Returns the cut whose tail has the length at which owners and helpers take about equally long.
SharedRound share_round(double step, int tiles, int steps, int helpers) {
  // At most `others` helpers share one tile's tail, and one helper's range has steps of at most `parts`
  // tiles. A range may begin and end inside a tail, unless one of `tiles` and `helpers` is a multiple of the
  // other.
  const int others = helpers % tiles == 0 ? helpers / tiles : helpers / tiles + 2;
  const int parts = tiles % helpers == 0 ? tiles / helpers : tiles / helpers + 2;
  const double ratio = static_cast<double>(tiles) / helpers;
  const double add = fitted::kAddSums * others;
  const double leave = fitted::kStoreSums * parts + fitted::kSumsVisible;
  const double tail = (steps + (add - leave) / step) / (1.0 + ratio);
  SharedRound round;
  round.cut = {.tiles = tiles, .steps = steps, .tail = static_cast<int>(tail + 0.5), .helpers = helpers};
  round.cost = std::max((steps - round.cut.tail) * step + add, ratio * round.cut.tail * step + leave);
  return round;
}

// Returns the tile with the least estimated time. With `split`, tiles whose blocks share k are considered
// too.
LinearTile cheapest_tile(bool split, WeightType type, int64_t m, int64_t n, int64_t k, int num_sms) {
  LinearTile best = kLinearTiles[0];
  double best_cost = estimate(type, best, m, n, k, num_sms);
  for (const LinearTile tile : kLinearTiles) {
    const double cost = estimate(type, tile, m, n, k, num_sms);
    if (cost >= best_cost || (linear_tile_size(tile).splits > 1 && !split)) continue;
    best = tile;
    best_cost = cost;
  }
  return best;
}

bool reference_supports(const LinearShape&) {
  return true;
}

// Appends the only choice of a kernel that has no configuration.
template <ProductKernel kKernel>
void only_choice(const LinearShape&, std::vector<LinearChoice>& out) {
  out.push_back({.kernel = kKernel});
}
bool is_plain(const LinearShape&, const LinearChoice& c) {
  return c == LinearChoice{.kernel = c.kernel};
}
void no_choices(const LinearShape&, std::vector<LinearChoice>&) {}

struct LinearKernelRow {
  ProductKernel kernel;
  bool (*supports)(const LinearShape& shape);
  // Both functions are called only for shapes that the kernel supports. The first returns true if the
  // configuration is compiled and correct; the second appends every configuration worth measuring.
  bool (*fits)(const LinearShape& shape, const LinearChoice& choice);
  void (*append_choices)(const LinearShape& shape, std::vector<LinearChoice>& out);
};
constexpr LinearKernelRow kLinearKernels[] = {
    {ProductKernel::kReference, reference_supports, is_plain, no_choices},
    {ProductKernel::kThin, thin::supports,
     [](const LinearShape& s, const LinearChoice& c) { return c == thin_choice(s.m); }, thin_choices},
    {ProductKernel::kSkinny, skinny::supports, skinny_fits, skinny_choices},
    {ProductKernel::kTiled, tiled::supports, tiled_fits, tiled_choices},
    {ProductKernel::kLibrary, library::supports, is_plain, only_choice<ProductKernel::kLibrary>},
    {ProductKernel::kRouter, router::supports, is_plain, only_choice<ProductKernel::kRouter>},
};

bool wants_thin(const LinearShape& s) {
  using namespace fitted;
  const int64_t bytes = s.k * weight_element_bytes(s.type);
  const int64_t blocks = (s.n + thin::kRows - 1) / thin::kRows;
  const bool is_short = has_scales(s.type) && bytes <= kShortRowBytes;
  const bool few = s.m <= kFewRows;
  // With 8-bit weights and more than eight rows of x, reading x takes longer than reading W if k is long. The
  // skinny kernel reads x less often, because its blocks have 64 rows of W.
  if (has_scales(s.type) && !few && !is_short) return false;
  // Two blocks, or four small ones, fit on a multiprocessor.
  const int64_t most_blocks =
      int64_t{s.num_sms} * (few && is_short ? kShortThinBlocksPerSm : kThinBlocksPerSm);
  const int64_t most_bytes = s.type == WeightType::kInt8Channel && few ? kMaxThinBytesInt8 : kMaxThinBytes;
  const int64_t most_row_bytes = few && blocks * 2 <= s.num_sms ? kMaxThinRowBytesOfFew : kMaxThinRowBytes;
  return blocks <= most_blocks && bytes <= most_row_bytes && s.n * bytes <= most_bytes && thin::supports(s);
}

LinearChoice skinny_choice(const LinearShape& s) {
  return skinny::choice_of(skinny::schedule_of(s.type, s.m, s.n, blocks_of_k(s.type, s.k), s.num_sms));
}

LinearChoice heuristic_16_bit(const LinearShape& s) {
  using namespace fitted;
  if (wants_thin(s)) return thin_choice(s.m);
  const bool router = s.n <= kMaxRouterOutputs;
  if (router && s.m <= kMaxRouterRows && router::supports(s)) return {.kernel = ProductKernel::kRouter};
  if (s.m <= (router ? kMaxSkinnyRows16BitRouters : kMaxSkinnyRows16Bit) && skinny::supports(s))
    return skinny_choice(s);
  return {.kernel = ProductKernel::kLibrary};
}

LinearChoice heuristic_8_bit(const LinearShape& s) {
  if (wants_thin(s)) return thin_choice(s.m);
  if (skinny::supports(s)) return skinny_choice(s);
  if (tiled::supports(s)) return choice_of(choose_linear_tile(s.type, s.m, s.n, s.k, s.num_sms));
  return {.kernel = ProductKernel::kReference};
}

}  // namespace

LinearChoice choice_of(LinearTile tile) {
  const LinearTileSize& size = linear_tile_size(tile);
  return {.kernel = ProductKernel::kTiled,
          .block_m = size.block_m,
          .block_n = size.block_n,
          .splits = size.splits,
          .stages = size.stages,
          .cluster = size.cluster};
}

std::optional<LinearTile> linear_tile_of(const LinearChoice& choice) {
  for (const LinearTile tile : kLinearTiles) {
    if (choice_of(tile) == choice) return tile;
  }
  return std::nullopt;
}

LinearTile choose_linear_tile(WeightType type, int64_t m, int64_t n, int64_t k, int num_sms) {
  // The sums of split tiles differ from those of other tiles in their last bits; all other tiles give equal
  // bits. Whether to split is therefore decided for the next power of two of m, so that a batch padded to a
  // graph's size keeps its bits.
  const int64_t rows = padded_tokens(m);
  const LinearTile split = cheapest_tile(true, type, rows, n, k, num_sms);
  if (linear_tile_size(split).splits > 1) return split;
  return cheapest_tile(false, type, m, n, k, num_sms);
}

RestCut linear_rest(LinearTile tile, WeightType type, int64_t m, int64_t n, int64_t k, int num_sms) {
  const LinearTileSize& size = linear_tile_size(tile);
  if (m <= kMaxUnsharedRows || !size.shares) return {};
  const auto blocks = [](int64_t value, int64_t block) { return (value + block - 1) / block; };
  const int workers = num_sms / size.cluster;
  const auto tiles =
      static_cast<int>(blocks(m, size.block_m) * blocks(n, int64_t{size.block_n} * size.cluster) % workers);
  const int helpers = workers - tiles;
  if (tiles == 0 || helpers > fitted::kMostHelpersPerTile * tiles) return {};
  const double step = fitted::tile_costs(type).of[static_cast<int>(tile)].step;
  const auto steps = static_cast<int>(blocks(k, kQuantBlock));
  const SharedRound round = share_round(fitted::kSharedStep * step, tiles, steps, helpers);
  return round.cut.fits() && steps * step - round.cost >= fitted::kLeastTimeSaved ? round.cut : RestCut{};
}

LinearChoice heuristic(const LinearShape& shape) {
  switch (shape.type) {
    case WeightType::kF32:
      return {.kernel = router::supports(shape) ? ProductKernel::kRouter : ProductKernel::kReference};
    case WeightType::kBF16:
    case WeightType::kF16:
      return heuristic_16_bit(shape);
    case WeightType::kFp8Block:
    case WeightType::kInt8Block:
    case WeightType::kFp8Channel:
    case WeightType::kInt8Channel:
      return heuristic_8_bit(shape);
  }
  return {.kernel = ProductKernel::kReference};
}

bool supports(const LinearChoice& choice, const LinearShape& shape) {
  for (const LinearKernelRow& row : kLinearKernels) {
    if (row.kernel == choice.kernel) return row.supports(shape) && row.fits(shape, choice);
  }
  return false;
}

std::vector<LinearChoice> valid_choices(const LinearShape& shape) {
  std::vector<LinearChoice> choices;
  for (const LinearKernelRow& row : kLinearKernels) {
    if (row.supports(shape)) row.append_choices(shape, choices);
  }
  return choices;
}

std::optional<LinearChoice> LinearTable::find(const LinearShape& shape) const {
  const auto at = shapes_.find({measured_type(shape.type), shape.n, shape.k});
  if (at == shapes_.end()) return std::nullopt;
  return at->second.for_rows(shape.m, [&](const LinearChoice& choice) { return supports(choice, shape); });
}

LinearChoice choose(const LinearShape& shape, const LinearTable* measured) {
  if (measured != nullptr) {
    if (const auto choice = measured->find(shape)) return *choice;
  }
  return heuristic(shape);
}

}  // namespace hadal::cuda
