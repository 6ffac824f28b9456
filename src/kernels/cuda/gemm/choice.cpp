#include "kernels/cuda/gemm/choice.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/padding.h"

namespace hadal::cuda {
namespace {

constexpr int kQuantBlock = 128;

int64_t row_bytes(const LinearShape& s) {
  return cuda::row_bytes(s.type, s.k);
}
int blocks_of_k(const LinearShape& s) {
  return cuda::blocks_of_k(s.type, s.k);
}

// Thin: y's rows of 8 or 16, by the number of rows.
constexpr int kThinRows = 16;

bool thin_takes(const LinearShape& s) {
  return has_tensor_core_kernels(s.type) && s.m >= 1 && s.m <= kThinRows && s.n >= 1 && s.n <= (1 << 20) &&
         s.k > 0 && row_bytes(s) % 16 == 0 && s.aligned && sums_fit(s.type, s.k) &&
         thin::fits(s.type, thin::tile_of_tokens(s.m), blocks_of_k(s));
}
LinearChoice thin_choice(int64_t m) {
  return {.kernel = ProductKernel::kThin, .block_m = thin::tile_of_tokens(m), .block_n = thin::kRows};
}
void thin_choices(const LinearShape& s, std::vector<LinearChoice>& out) {
  out.push_back(thin_choice(s.m));
}

constexpr int kSkinnyRows = 64;

bool skinny_takes(const LinearShape& s) {
  return has_tensor_core_kernels(s.type) && s.m >= 1 && s.m <= kSkinnyRows && s.n > 0 && s.k > 0 &&
         row_bytes(s) % 16 == 0 && s.aligned && row_bytes(s) < (int64_t{1} << 30) &&
         s.n < (int64_t{1} << 22) && sums_fit(s.type, s.k);
}
bool skinny_fits(const LinearShape& s, const LinearChoice& c) {
  return c.block_m >= s.m && skinny::fits(s.type, c, blocks_of_k(s), {8, 16, 32, 64});
}
void skinny_choices(const LinearShape& s, std::vector<LinearChoice>& out) {
  std::vector<LinearChoice> all;
  skinny::append_choices(s.type, blocks_of_k(s), {8, 16, 32, 64}, {1, 2, 3, 4, 5, 6, 8},
                         {52, 72, 88, 110, 200}, all);
  std::copy_if(all.begin(), all.end(), std::back_inserter(out),
               [&](const LinearChoice& choice) { return choice.block_m >= s.m; });
}

// What the tiles of the tiled kernel cost: microseconds on an H200 with all multiprocessors busy of a block
// of k of one tile, and of a tile besides (fill, store, joining sums). Measured; only their ratios matter
// here.
struct TileCost {
  double step, tile;
};
struct TileCosts {
  TileCost of[std::size(kLinearTiles)];
};
static_assert(std::size(kLinearTileSizes) == std::size(kLinearTiles));
constexpr TileCosts tile_costs(WeightType type) {
  switch (type) {
    case WeightType::kInt8Channel:
      return {{{0.58, 2.53}, {0.438, 1.95}, {0.366, 0.46}, {0.237, 0.39}, {0.288, 3.13}, {0.24, 3.13}}};
    case WeightType::kFp8Channel:
      return {{{0.62, 3.25}, {0.499, 2.04}, {0.318, 1.97}, {0.266, 0.12}, {0.296, 3.28}, {0.235, 3.3}}};
    case WeightType::kInt8Block:
      return {{{0.886, 1.88}, {0.627, 2.02}, {0.45, 1.25}, {0.289, 0.72}, {0.3, 2.95}, {0.302, 2.79}}};
    default:
      return {{{0.677, 1.73}, {0.544, 1.06}, {0.389, 0.73}, {0.29, 0.19}, {0.29, 1.93}, {0.292, 2.67}}};
  }
}

bool tiled_takes(const LinearShape& s) {
  return has_scales(s.type) && sums_fit(s.type, s.k) && s.aligned && !s.f32_y && s.aligned_y && s.m >= 1 &&
         s.n >= 8 && s.n % 8 == 0;
}
bool tiled_fits(const LinearShape&, const LinearChoice& c) {
  return linear_tile_of(c).has_value();
}
void tiled_choices(const LinearShape&, std::vector<LinearChoice>& out) {
  for (const LinearTile tile : kLinearTiles) out.push_back(choice_of(tile));
}

// Rounds of tiles over the multiprocessors, by what a tile costs.
double estimate(WeightType type, LinearTile which, int64_t m, int64_t n, int64_t k, int num_sms) {
  const auto blocks = [](int64_t value, int64_t block) { return (value + block - 1) / block; };
  const LinearTileSize& size = linear_tile_size(which);
  const TileCost cost = tile_costs(type).of[static_cast<int>(which)];
  const int64_t tiles = blocks(m, size.block_m) * blocks(n, int64_t{size.block_n} * size.cluster);
  // Clusters of four leave some multiprocessors of each group free that a cluster must fit in.
  const int clusters = num_sms / (size.cluster * size.splits);
  const int64_t at_once = std::max(1, size.splits > 2 ? clusters * 9 / 10 : clusters);
  return static_cast<double>(blocks(tiles, at_once)) *
         (static_cast<double>(blocks(blocks(k, kQuantBlock), size.splits)) * cost.step + cost.tile);
}

// A shared last round, in microseconds. Measured: docs/kernels/cuda-wgmma-gemm.md.
constexpr double kAddSums = 2.5;     // another worker's of a tile
constexpr double kLeaveSums = 0.75;  // for a tile's owner
constexpr double kMeet = 1.0;        // until an owner sees them
constexpr double kLeastSaved = 2.0;
constexpr int kMostHelpers = 2;  // a tile
// What a step takes in it, in steps: blocks no longer go through k together, so the L2 serves each for
// itself.
constexpr double kSharedStep = 1.65;
// A batch that is padded to a graph's size must keep its bits, so small ones share nothing.
constexpr int64_t kMaxUnsharedRows = 512;

struct SharedRound {
  RestCut cut;
  double cost = 0.0;  // of its steps
};
// The tail that makes owners and helpers take equally long.
SharedRound share_round(double step, int tiles, int steps, int helpers) {
  // Of a tile's tail and of a helper's range, unless one is a multiple of the other.
  const int others = helpers % tiles == 0 ? helpers / tiles : helpers / tiles + 2;
  const int parts = tiles % helpers == 0 ? tiles / helpers : tiles / helpers + 2;
  const double ratio = static_cast<double>(tiles) / helpers;
  const double add = kAddSums * others;
  const double leave = kLeaveSums * parts + kMeet;
  const double tail = (steps + (add - leave) / step) / (1.0 + ratio);
  SharedRound round;
  round.cut = {.tiles = tiles, .steps = steps, .tail = static_cast<int>(tail + 0.5), .helpers = helpers};
  round.cost = std::max((steps - round.cut.tail) * step + add, ratio * round.cut.tail * step + leave);
  return round;
}

// The cheapest tile, among those that share k too where `split`.
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

bool library_takes(const LinearShape& s) {
  return is_16_bit(s.type);
}
bool router_takes(const LinearShape& s) {
  return !has_scales(s.type) && s.m >= 1 && s.m <= 65535 * 8 && s.n >= 1 && s.k % 8 == 0 && s.aligned;
}
bool reference_takes(const LinearShape&) {
  return true;
}

// Kernels without a configuration of their own.
template <ProductKernel kKernel>
void only_choice(const LinearShape&, std::vector<LinearChoice>& out) {
  out.push_back({.kernel = kKernel});
}
bool is_plain(const LinearShape&, const LinearChoice& c) {
  return c == LinearChoice{.kernel = c.kernel};
}
void no_choices(const LinearShape&, std::vector<LinearChoice>&) {}

struct KernelRow {
  ProductKernel kernel;
  bool (*takes)(const LinearShape& shape);
  // Of a shape that it takes: whether the configuration is compiled and right; every one worth measuring.
  bool (*fits)(const LinearShape& shape, const LinearChoice& choice);
  void (*append_choices)(const LinearShape& shape, std::vector<LinearChoice>& out);
};
constexpr KernelRow kKernels[] = {
    {ProductKernel::kReference, reference_takes, is_plain, no_choices},
    {ProductKernel::kThin, thin_takes,
     [](const LinearShape& s, const LinearChoice& c) { return c == thin_choice(s.m); }, thin_choices},
    {ProductKernel::kSkinny, skinny_takes, skinny_fits, skinny_choices},
    {ProductKernel::kTiled, tiled_takes, tiled_fits, tiled_choices},
    {ProductKernel::kLibrary, library_takes, is_plain, only_choice<ProductKernel::kLibrary>},
    {ProductKernel::kRouter, router_takes, is_plain, only_choice<ProductKernel::kRouter>},
};

// What follows holds the heuristic's borders. Measured: docs/kernels/cuda-skinny-gemm.md, "Borders".
constexpr int64_t kMaxThinBytes = int64_t{18} << 20;      // of weights
constexpr int64_t kMaxThinBytesInt8 = int64_t{30} << 20;  // with channel scales, to eight rows
constexpr int64_t kMaxThinRowBytes = 8192;                // of k
constexpr int64_t kMaxThinRowBytesOfFew = 16384;          // of few blocks and to eight rows
constexpr int64_t kShortRowBytes = 2048;                  // of k: small blocks, many of which fit
constexpr int64_t kRouterOutputs = 256;                   // at most so many: a router or the like
constexpr int64_t kMaxSkinnyRows16Bit = 32;               // then the library is ahead

bool wants_thin(const LinearShape& s) {
  const int64_t bytes = s.k * weight_element_bytes(s.type);
  const int64_t blocks = (s.n + thin::kRows - 1) / thin::kRows;
  const bool is_short = has_scales(s.type) && bytes <= kShortRowBytes;
  const bool few = s.m <= 8;
  // 8 bits and more than eight rows: x of long k costs more than W, which a block of 64 rows shares.
  if (has_scales(s.type) && !few && !is_short) return false;
  // Two blocks fit on a multiprocessor, four of the small ones.
  const int64_t most_blocks = int64_t{s.num_sms} * (few && is_short ? 4 : 2);
  const int64_t most_bytes = s.type == WeightType::kInt8Channel && few ? kMaxThinBytesInt8 : kMaxThinBytes;
  const int64_t most_row_bytes = few && blocks * 2 <= s.num_sms ? kMaxThinRowBytesOfFew : kMaxThinRowBytes;
  return blocks <= most_blocks && bytes <= most_row_bytes && s.n * bytes <= most_bytes && thin_takes(s);
}

LinearChoice skinny_choice(const LinearShape& s) {
  return skinny::choice_of(skinny::schedule_of(s.type, s.m, s.n, blocks_of_k(s), s.num_sms));
}

LinearChoice heuristic_16_bit(const LinearShape& s) {
  if (wants_thin(s)) return thin_choice(s.m);
  const bool router = s.n <= kRouterOutputs;
  if (router && s.m <= 2 && router_takes(s)) return {.kernel = ProductKernel::kRouter};
  if (s.m <= kMaxSkinnyRows16Bit * (router ? 2 : 1) && skinny_takes(s)) return skinny_choice(s);
  return {.kernel = ProductKernel::kLibrary};
}

LinearChoice heuristic_8_bit(const LinearShape& s) {
  if (wants_thin(s)) return thin_choice(s.m);
  if (skinny_takes(s)) return skinny_choice(s);
  if (tiled_takes(s)) return choice_of(choose_linear_tile(s.type, s.m, s.n, s.k, s.num_sms));
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
  // Sums of a split tile differ in their last bits, those of all others are equal. So that a batch padded to
  // a graph's size keeps its bits, splits are decided by the next power of two.
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
  if (tiles == 0 || helpers > kMostHelpers * tiles) return {};
  const double step = tile_costs(type).of[static_cast<int>(tile)].step;
  const auto steps = static_cast<int>(blocks(k, kQuantBlock));
  const SharedRound round = share_round(kSharedStep * step, tiles, steps, helpers);
  return round.cut.fits() && steps * step - round.cost >= kLeastSaved ? round.cut : RestCut{};
}

LinearChoice heuristic(const LinearShape& shape) {
  switch (shape.type) {
    case WeightType::kF32:
      return {.kernel = router_takes(shape) ? ProductKernel::kRouter : ProductKernel::kReference};
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

bool takes(const LinearChoice& choice, const LinearShape& shape) {
  for (const KernelRow& row : kKernels) {
    if (row.kernel == choice.kernel) return row.takes(shape) && row.fits(shape, choice);
  }
  return false;
}

std::vector<LinearChoice> valid_choices(const LinearShape& shape) {
  std::vector<LinearChoice> choices;
  for (const KernelRow& row : kKernels) {
    if (row.takes(shape)) row.append_choices(shape, choices);
  }
  return choices;
}

std::optional<LinearChoice> LinearTable::find(const LinearShape& shape) const {
  const auto at = shapes_.find({measured_type(shape.type), shape.n, shape.k});
  if (at == shapes_.end()) return std::nullopt;
  return at->second.for_rows(shape.m, [&](const LinearChoice& choice) { return takes(choice, shape); });
}

LinearChoice choose(const LinearShape& shape, const LinearTable* measured) {
  if (measured != nullptr) {
    if (const auto choice = measured->find(shape)) return *choice;
  }
  return heuristic(shape);
}

}  // namespace hadal::cuda
