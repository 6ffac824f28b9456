#include "kernels/cuda/gemm/choice.h"

#include <iterator>

namespace hadal::cuda {
namespace {

constexpr int kQuantBlock = 128;

bool has_tensor_core_kernels(WeightType type) {
  return type == WeightType::kBF16 || type == WeightType::kFp8Block;
}

// Of a row of W as the kernels read it.
int64_t padded_k(const LinearShape& s) {
  return s.type == WeightType::kFp8Block ? (s.k + kQuantBlock - 1) / kQuantBlock * kQuantBlock : s.k;
}
int64_t row_bytes(const LinearShape& s) {
  return padded_k(s) * weight_element_bytes(s.type);
}
int k_blocks(const LinearShape& s) {
  return static_cast<int>((s.k * weight_element_bytes(s.type) + 127) / 128);
}

// Thin: y's rows of 8 or 16, by the number of rows.
constexpr int kThinRows = 16;
constexpr int kThinBlockN = 16;

bool thin_takes(const LinearShape& s) {
  return has_tensor_core_kernels(s.type) && s.m >= 1 && s.m <= kThinRows && s.n >= 1 && s.n <= (1 << 20) &&
         s.k > 0 && row_bytes(s) % 16 == 0 && s.aligned;
}
LinearChoice thin_choice(int64_t m) {
  return {.kernel = ProductKernel::kThin, .block_m = m <= 8 ? 8 : 16, .block_n = kThinBlockN};
}
void thin_choices(const LinearShape& s, std::vector<LinearChoice>& out) {
  out.push_back(thin_choice(s.m));
}

constexpr int kSkinnyRows = 64;

bool skinny_takes(const LinearShape& s) {
  return has_tensor_core_kernels(s.type) && s.m >= 1 && s.m <= kSkinnyRows && s.n > 0 && s.k > 0 &&
         row_bytes(s) % 16 == 0 && s.aligned && row_bytes(s) < (int64_t{1} << 30) && s.n < (int64_t{1} << 22);
}
bool skinny_fits(const LinearShape& s, const LinearChoice& c) {
  const bool tile = (c.block_m == 8 || c.block_m == 16 || c.block_m == 32 || c.block_m == 64) &&
                    (c.block_n == 64 || c.block_n == 128);
  if (!tile || c.block_m < s.m || c.cluster != 1 || c.stages < 2 || c.stages > skinny::kMaxStages)
    return false;
  if ((c.splits != 1 && c.splits != 2 && c.splits != 4 && c.splits != 8) || c.splits > k_blocks(s))
    return false;
  return skinny::shared_bytes(s.type == WeightType::kFp8Block, c.block_m, c.block_n / 64, c.stages,
                              (k_blocks(s) + c.splits - 1) / c.splits) <= skinny::kMostSharedBytes;
}
void skinny_choices(const LinearShape& s, std::vector<LinearChoice>& out) {
  for (const int tokens : {8, 16, 32, 64}) {
    if (tokens < s.m) continue;
    for (const int groups : {1, 2}) {
      for (const int splits : {1, 2, 4, 8}) {
        int last_stages = 0;
        for (const int64_t budget : {72, 110, 200}) {
          const int stages =
              skinny::stages_of(tokens, groups, (k_blocks(s) + splits - 1) / splits, budget * 1024);
          if (stages == last_stages) continue;
          last_stages = stages;
          const LinearChoice choice =
              skinny::choice_of({.tokens = tokens, .groups = groups, .splits = splits, .stages = stages});
          if (skinny_fits(s, choice)) out.push_back(choice);
        }
      }
    }
  }
}

// What the tiles of the tiled kernel cost: microseconds on an H200 with all multiprocessors busy of a block
// of k of one tile, and of a tile besides (fill, store). Measured; only their ratios matter here.
struct TileCost {
  double step, tile;
};
constexpr TileCost kFp8TileCosts[] = {{0.777, 1.7}, {0.58, 1.9}, {0.41, 1.0}, {0.32, 0.6}};
static_assert(std::size(kFp8TileCosts) == std::size(kFp8Tiles) &&
              std::size(kFp8TileSizes) == std::size(kFp8Tiles));

bool tiled_takes(const LinearShape& s) {
  return s.type == WeightType::kFp8Block && s.aligned && !s.f32_y && s.aligned_y && s.m >= 1 && s.n >= 8 &&
         s.n % 8 == 0;
}
bool tiled_fits(const LinearShape&, const LinearChoice& c) {
  return fp8_tile_of(c).has_value();
}
void tiled_choices(const LinearShape&, std::vector<LinearChoice>& out) {
  for (const Fp8Tile tile : kFp8Tiles) out.push_back(choice_of(tile));
}

// Rounds of tiles over the multiprocessors, by what a tile costs.
double estimate(Fp8Tile which, int64_t m, int64_t n, int64_t k, int num_sms) {
  const auto blocks = [](int64_t value, int64_t block) { return (value + block - 1) / block; };
  const Fp8TileSize& size = kFp8TileSizes[static_cast<int>(which)];
  const TileCost& cost = kFp8TileCosts[static_cast<int>(which)];
  const int64_t tiles = blocks(m, size.block_m) * blocks(n, int64_t{size.block_n} * size.cluster);
  return static_cast<double>(blocks(tiles, num_sms / size.cluster)) *
         (static_cast<double>(blocks(k, kQuantBlock)) * cost.step + cost.tile);
}

bool library_takes(const LinearShape& s) {
  return s.type == WeightType::kBF16;
}
bool router_takes(const LinearShape& s) {
  return (s.type == WeightType::kF32 || s.type == WeightType::kBF16) && s.m >= 1 && s.m <= 65535 * 8 &&
         s.n >= 1 && s.k % 8 == 0 && s.aligned;
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

// What follows holds the heuristic's borders.
constexpr int64_t kMaxThinBytes = int64_t{18} << 20;  // of weights
constexpr int64_t kMaxThinRowBytes = 8192;            // of k: two rounds of its registers
constexpr int64_t kRouterOutputs = 256;               // at most so many: a router or the like
constexpr int64_t kMaxSkinnyRowsBf16 = 32;            // then the library is ahead

bool wants_thin(const LinearShape& s) {
  const bool fp8 = s.type == WeightType::kFp8Block;
  const int64_t bytes = s.k * weight_element_bytes(s.type);
  const int64_t blocks = (s.n + kThinBlockN - 1) / kThinBlockN;
  // Two blocks fit on a multiprocessor, but for nine rows or more of bf16.
  const int64_t most_blocks = int64_t{s.num_sms} * (s.m <= 8 || fp8 ? 2 : 1);
  return blocks <= most_blocks && bytes <= kMaxThinRowBytes && s.n * bytes <= kMaxThinBytes && thin_takes(s);
}

LinearChoice skinny_choice(const LinearShape& s) {
  return skinny::choice_of(skinny::schedule_of(s.m, s.n, k_blocks(s), s.num_sms));
}

LinearChoice heuristic_bf16(const LinearShape& s) {
  if (wants_thin(s)) return thin_choice(s.m);
  const bool router = s.n <= kRouterOutputs;
  if (router && s.m <= 2 && router_takes(s)) return {.kernel = ProductKernel::kRouter};
  if (s.m <= kMaxSkinnyRowsBf16 * (router ? 2 : 1) && skinny_takes(s)) return skinny_choice(s);
  return {.kernel = ProductKernel::kLibrary};
}

LinearChoice heuristic_fp8(const LinearShape& s) {
  if (wants_thin(s)) return thin_choice(s.m);
  if (skinny_takes(s)) return skinny_choice(s);
  if (tiled_takes(s)) return choice_of(choose_fp8_tile(s.m, s.n, s.k, s.num_sms));
  return {.kernel = ProductKernel::kReference};
}

}  // namespace

LinearChoice choice_of(Fp8Tile tile) {
  const Fp8TileSize& size = kFp8TileSizes[static_cast<int>(tile)];
  return {.kernel = ProductKernel::kTiled,
          .block_m = size.block_m,
          .block_n = size.block_n,
          .stages = size.stages,
          .cluster = size.cluster};
}

std::optional<Fp8Tile> fp8_tile_of(const LinearChoice& choice) {
  for (const Fp8Tile tile : kFp8Tiles) {
    if (choice_of(tile) == choice) return tile;
  }
  return std::nullopt;
}

Fp8Tile choose_fp8_tile(int64_t m, int64_t n, int64_t k, int num_sms) {
  Fp8Tile best = kFp8Tiles[0];
  double best_cost = estimate(best, m, n, k, num_sms);
  for (const Fp8Tile tile : kFp8Tiles) {
    const double cost = estimate(tile, m, n, k, num_sms);
    if (cost >= best_cost) continue;
    best = tile;
    best_cost = cost;
  }
  return best;
}

LinearChoice heuristic(const LinearShape& shape) {
  switch (shape.type) {
    case WeightType::kF32:
      return {.kernel = router_takes(shape) ? ProductKernel::kRouter : ProductKernel::kReference};
    case WeightType::kBF16:
      return heuristic_bf16(shape);
    case WeightType::kFp8Block:
      return heuristic_fp8(shape);
    case WeightType::kInt8Block:
    case WeightType::kFp8Channel:
    case WeightType::kInt8Channel:
      break;
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
  const auto at = shapes_.find({shape.type, shape.n, shape.k});
  if (at == shapes_.end()) return std::nullopt;
  return at->second.nearest(shape.m, [&](const LinearChoice& choice) { return takes(choice, shape); });
}

LinearChoice choose(const LinearShape& shape, const LinearTable* measured) {
  if (measured != nullptr) {
    if (const auto choice = measured->find(shape)) return *choice;
  }
  return heuristic(shape);
}

}  // namespace hadal::cuda
