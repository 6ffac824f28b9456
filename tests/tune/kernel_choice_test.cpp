// Compares the heuristics' choices with records that were made when the borders were measured, and tests
// choices as text. measured_choice_test.cpp tests measured choices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/padding.h"
#include "tests/source_dir.h"
#include "tests/tune/graph_sizes.h"
#include "tune/tuner.h"

namespace hadal::cuda {
namespace {

using ::testing::HasSubstr;

constexpr WeightType kProductTypes[] = {WeightType::kF32, WeightType::kBF16, WeightType::kFp8Block};
constexpr int kMultiprocessors[] = {132, 114, 78, 144};

WeightType type_named(const std::string& name) {
  return name == "f32" ? WeightType::kF32 : name == "bf16" ? WeightType::kBF16 : WeightType::kFp8Block;
}

// Computes FNV-1a over lines.
class LineHash {
 public:
  void add(const std::string& line) {
    for (const char c : line + "\n") {
      hash_ ^= static_cast<unsigned char>(c);
      hash_ *= 0x100000001b3ULL;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

// Returns a random size below 2^bits, every number of bits equally likely; a width is often a multiple of 64.
int64_t random_size(std::mt19937_64& random, int bits) {
  const uint64_t low = uint64_t{1} << random() % bits;
  return static_cast<int64_t>(low + random() % low);
}
int64_t random_width(std::mt19937_64& random, int bits) {
  const int64_t size = random_size(random, bits);
  return random() % 4 != 0 ? (size + 63) / 64 * 64 : size;
}

LinearShape random_shape(std::mt19937_64& random) {
  LinearShape s;
  s.type = kProductTypes[random() % 3];
  s.m = random_size(random, 14);
  s.n = random_width(random, 17);
  s.k = random_width(random, 15);
  s.num_sms = kMultiprocessors[random() % 4];
  s.aligned = random() % 10 != 0;
  s.f32_y = random() % 10 == 0;
  s.aligned_y = random() % 10 != 0 && !s.f32_y;
  return s;
}

GroupedShape random_grouped_shape(std::mt19937_64& random) {
  GroupedShape s;
  s.type = kProductTypes[random() % 3];
  s.num_rows = random_size(random, 17);
  s.num_experts = static_cast<int>(1 + random() % 600);
  s.n = random_width(random, 14);
  s.k = random_width(random, 14);
  s.num_sms = kMultiprocessors[random() % 4];
  s.gathered = random() % 2 == 0;
  s.aligned = random() % 10 != 0;
  s.aligned_y = random() % 10 != 0;
  return s;
}

// Returns the runs of equal choices, as in kernel_choices.txt.
template <typename ChoiceAt>
std::string runs_of_choices(int64_t step, const ChoiceAt& choice_at) {
  std::string text;
  std::string last;
  for (int64_t m = 1; m <= 8192; ++m) {
    const std::string choice = to_string(choice_at(m * step));
    if (choice == last) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", m * step, choice);
    last = choice;
  }
  return text;
}

TEST(KernelChoice, HeuristicsChooseAsRecordedAtTheModelsShapes) {
  std::ifstream file(source_dir() + "/tests/tune/kernel_choices.txt");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    ++count;
    const size_t colon = line.find(": ");
    ASSERT_NE(colon, std::string::npos) << line;
    std::istringstream words(line.substr(0, colon));
    std::string kind, type;
    words >> kind >> type;
    std::string now;
    if (kind == "dense") {
      LinearShape s{.type = type_named(type)};
      words >> s.n >> s.k;
      now = runs_of_choices(1, [&](int64_t m) {
        s.m = m;
        return heuristic(s);
      });
    } else {
      GroupedShape s{.type = type_named(type)};
      int64_t slots = 0;
      std::string order;
      words >> s.num_experts >> s.n >> s.k >> slots >> order;
      s.rows_per_token = static_cast<int>(slots);
      s.gathered = order == "gathered";
      now = runs_of_choices(slots, [&](int64_t rows) {
        s.num_rows = rows;
        return heuristic(s);
      });
    }
    EXPECT_EQ(now, line.substr(colon + 2)) << line.substr(0, colon);
  }
  EXPECT_EQ(count, 57);
}

// One hash covers 200,000 shapes, including misaligned ones and other devices.
TEST(KernelChoice, HeuristicsChooseAsRecordedAtRandomShapes) {
  std::mt19937_64 random(20);
  LineHash dense;
  for (int i = 0; i < 200000; ++i) dense.add(to_string(heuristic(random_shape(random))));
  EXPECT_EQ(dense.value(), 0xff307b96b92fffaeULL);

  random.seed(21);
  LineHash grouped;
  int num_sorted = 0;
  for (int i = 0; i < 200000; ++i) {
    const GroupedShape shape = random_grouped_shape(random);
    grouped.add(to_string(heuristic(shape)));
    const bool sorted = wants_sorted(shape, nullptr);
    grouped.add(sorted ? "sorted" : "gathered");
    num_sorted += sorted ? 1 : 0;
  }
  EXPECT_EQ(grouped.value(), 0xa0d108dec9bbb2ebULL);
  EXPECT_EQ(num_sorted, 37861);
}

TEST(KernelChoice, ValidChoicesSupportTheirShape) {
  std::mt19937_64 random(1);
  int with_choices = 0;
  for (int i = 0; i < 2000; ++i) {
    const LinearShape shape = random_shape(random);
    const std::vector<LinearChoice> choices = valid_choices(shape);
    with_choices += choices.empty() ? 0 : 1;
    for (const LinearChoice& choice : choices) {
      EXPECT_TRUE(supports(choice, shape)) << to_string(choice);
      EXPECT_NE(choice.kernel, ProductKernel::kReference);
      EXPECT_EQ(std::count(choices.begin(), choices.end(), choice), 1) << to_string(choice);
    }
    EXPECT_TRUE(supports({.kernel = ProductKernel::kReference}, shape));
    EXPECT_EQ(choices.empty(), heuristic(shape).kernel == ProductKernel::kReference)
        << shape.m << " " << shape.n << " " << shape.k;
  }
  EXPECT_GT(with_choices, 1000);
  for (int i = 0; i < 2000; ++i) {
    const GroupedShape shape = random_grouped_shape(random);
    const std::vector<GroupedChoice> choices = valid_choices(shape);
    for (const GroupedChoice& choice : choices) {
      EXPECT_TRUE(supports(choice, shape)) << to_string(choice);
      EXPECT_FALSE(shape.gathered && wants_sorted(choice)) << to_string(choice);
    }
  }
}

// At the models' shapes, a choice that is made without a measurement is among those that can be measured.
TEST(KernelChoice, HeuristicsAreAmongTheValidChoices) {
  for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Block}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{2112, 7168}, {24576, 1536}, {7168, 16384}, {576, 2048}}) {
      for (const int64_t m : {1, 2, 8, 9, 16, 32, 64, 65, 128, 1024, 4096}) {
        const LinearShape shape{.type = type, .m = m, .n = n, .k = k};
        EXPECT_THAT(valid_choices(shape), ::testing::Contains(heuristic(shape)))
            << to_string(heuristic(shape));
        EXPECT_TRUE(supports(heuristic(shape), shape)) << to_string(heuristic(shape));
      }
    }
    for (const int64_t rows : {1, 8, 64, 129, 4096, 60000}) {
      const GroupedShape shape{.type = type, .num_rows = rows, .num_experts = 66, .n = 2816, .k = 2048};
      EXPECT_THAT(valid_choices(shape), ::testing::Contains(heuristic(shape))) << to_string(heuristic(shape));
    }
  }
}

TEST(KernelChoice, EightBitTypesOfOtherScalesHaveKernels) {
  std::mt19937_64 random(5);
  for (const WeightType type : {WeightType::kInt8Channel, WeightType::kFp8Channel, WeightType::kInt8Block}) {
    for (int i = 0; i < 1000; ++i) {
      LinearShape shape = random_shape(random);
      shape.type = type;
      const std::vector<LinearChoice> choices = valid_choices(shape);
      for (const LinearChoice& choice : choices) {
        EXPECT_TRUE(supports(choice, shape)) << to_string(choice);
        EXPECT_TRUE(choice.kernel != ProductKernel::kSkinny || choice.block_n == 64) << to_string(choice);
      }
      EXPECT_TRUE(supports(heuristic(shape), shape)) << to_string(heuristic(shape));
      EXPECT_EQ(choices.empty(), heuristic(shape).kernel == ProductKernel::kReference);
      GroupedShape grouped = random_grouped_shape(random);
      grouped.type = type;
      for (const GroupedChoice& choice : valid_choices(grouped)) EXPECT_TRUE(supports(choice, grouped));
      EXPECT_TRUE(supports(heuristic(grouped), grouped)) << to_string(heuristic(grouped));
    }
    for (const int64_t m : {1, 16, 64, 65, 512, 4096}) {
      const LinearShape shape{.type = type, .m = m, .n = 2112, .k = 7168};
      EXPECT_THAT(valid_choices(shape), ::testing::Contains(heuristic(shape))) << to_string(heuristic(shape));
    }
  }
  // A sum of int8 products over this k does not fit into int32.
  EXPECT_TRUE(valid_choices({.type = WeightType::kInt8Channel, .m = 8, .n = 64, .k = 131200}).empty());
  EXPECT_FALSE(valid_choices({.type = WeightType::kInt8Block, .m = 8, .n = 64, .k = 131200}).empty());
  // This makes 132 tiles for 132 multiprocessors.
  EXPECT_EQ(choose_linear_tile(WeightType::kInt8Channel, 512, 2112, 7168, 132), LinearTile::k128x64);
  EXPECT_EQ(choose_linear_tile(WeightType::kInt8Channel, 4096, 7168, 16384, 132), LinearTile::k256x128);
  EXPECT_EQ(choose_linear_tile(WeightType::kInt8Channel, 4096, 2112, 7168, 132), LinearTile::k128x192);
}

// For rests of every size, each step of the tails belongs to one helper, and what owners and helpers derive
// independently from a cut fits together.
TEST(KernelChoice, SharedRoundsGiveEachStepToOneBlock) {
  for (const int workers : {2, 66, 132}) {
    for (int tiles = 1; tiles < workers; ++tiles) {
      for (const int steps : {2, 3, 16, 56, 1024}) {
        for (int tail = 1; tail < steps; tail += steps / 8 + 1) {
          const RestCut cut{.tiles = tiles, .steps = steps, .tail = tail, .helpers = workers - tiles};
          if (!cut.fits()) continue;
          ASSERT_EQ(cut.begin(0), 0);
          ASSERT_EQ(cut.begin(cut.helpers), tiles * tail);
          std::vector<int> helpers_of_tile(tiles);
          std::vector<bool> taken(workers);
          for (int helper = 0; helper < cut.helpers; ++helper) {
            int parts = 0;
            for (int at = cut.begin(helper); at < cut.begin(helper + 1); ++parts) {
              const int tile = at / tail;
              at = std::min(cut.begin(helper + 1), (tile + 1) * tail);
              const int place = RestCut::place(tile, helper);
              ASSERT_LT(place, workers);
              ASSERT_FALSE(taken[place]);
              taken[place] = true;
              ASSERT_GE(helper, cut.first_helper(tile));
              ASSERT_LE(helper, cut.last_helper(tile));
              ++helpers_of_tile[tile];
            }
            ASSERT_GT(parts, 0);
            ASSERT_EQ(parts, cut.num_parts(helper));
          }
          for (int tile = 0; tile < tiles; ++tile)
            ASSERT_EQ(helpers_of_tile[tile], cut.last_helper(tile) - cut.first_helper(tile) + 1);
        }
      }
    }
  }
}

TEST(KernelChoice, SharesLastRoundsThatAreWorthIt) {
  const auto rest = [](int64_t m, LinearTile tile) {
    return linear_rest(tile, WeightType::kFp8Block, m, 2112, 7168, 132);
  };
  // There are 176 tiles: the second round has 44, and the other multiprocessors help with these.
  EXPECT_EQ(rest(2048, LinearTile::k128x192).tiles, 44);
  EXPECT_EQ(rest(2048, LinearTile::k128x192).helpers, 88);
  // There are 352 tiles: the last round has 88, which leaves too few idle multiprocessors.
  EXPECT_EQ(rest(4096, LinearTile::k128x192).tiles, 0);
  // Batches that are padded to a graph keep their bits.
  EXPECT_EQ(rest(512, LinearTile::k128x192).tiles, 0);
  EXPECT_EQ(rest(2048, LinearTile::k256x128).tiles, 0);
}

TEST(KernelChoice, RefusesWhatIsNotCompiledOrDoesNotFit) {
  const LinearShape shape{.type = WeightType::kFp8Block, .m = 16, .n = 4096, .k = 7168};
  const auto skinny = [](int tokens, int rows, int splits, int stages) {
    return LinearChoice{.kernel = ProductKernel::kSkinny,
                        .block_m = tokens,
                        .block_n = rows,
                        .splits = splits,
                        .stages = stages};
  };
  EXPECT_TRUE(supports(skinny(16, 64, 4, 8), shape));
  EXPECT_FALSE(supports(skinny(8, 64, 4, 8), shape)) << "16 rows do not fit in a tile of 8";
  EXPECT_FALSE(supports(skinny(24, 64, 4, 8), shape));
  EXPECT_FALSE(supports(skinny(16, 192, 4, 8), shape));
  EXPECT_TRUE(supports(skinny(16, 64, 7, 8), shape));
  EXPECT_FALSE(supports(skinny(16, 64, 9, 8), shape));
  EXPECT_FALSE(supports(skinny(16, 64, 4, 1), shape));
  EXPECT_FALSE(supports(skinny(16, 64, 4, 25), shape));
  EXPECT_FALSE(supports(skinny(64, 128, 1, 10), shape)) << "its ring alone is more than a block has";
  EXPECT_FALSE(supports({.kernel = ProductKernel::kTiled, .block_m = 64, .block_n = 64, .stages = 4}, shape));
  EXPECT_FALSE(supports({.kernel = ProductKernel::kLibrary}, shape)) << "bf16 alone";
  EXPECT_FALSE(supports({.kernel = ProductKernel::kThin, .block_m = 8, .block_n = 16}, shape));
  EXPECT_TRUE(supports({.kernel = ProductKernel::kThin, .block_m = 16, .block_n = 16}, shape));
  for (const WeightType type : kProductTypes)
    EXPECT_FALSE(supports(kColumnsTile, {.type = type, .m = 16, .n = 4096, .k = 7168})) << "of experts alone";
}

TEST(KernelChoice, TextIsReadBackAsTheSameChoice) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    for (const LinearChoice& choice : valid_choices(random_shape(random))) {
      const auto read = parse_choice(to_string(choice));
      ASSERT_TRUE(read.ok()) << read.status().message;
      EXPECT_EQ(*read, choice) << to_string(choice);
    }
  }
  EXPECT_EQ(to_string(Choice{
                .kernel = ProductKernel::kTiled, .block_m = 256, .block_n = 128, .stages = 4, .cluster = 2}),
            "tiled 256x128 stages 4 cluster 2");
  EXPECT_EQ(to_string(Choice{.kernel = ProductKernel::kLibrary}), "library");
  EXPECT_THAT(parse_choice("slim 8x64").status().message,
              HasSubstr("the kernel is 'slim'; allowed: reference thin"));
  EXPECT_THAT(parse_choice("").status().message, HasSubstr("the kernel is ''"));
  EXPECT_THAT(parse_choice("skinny 8x").status().message, HasSubstr("the tile is '8x'"));
  EXPECT_THAT(parse_choice("skinny 8x64 splits").status().message, HasSubstr("splits is ''"));
  EXPECT_THAT(parse_choice("skinny 8x64 stages 0").status().message, HasSubstr("stages is '0'"));
  EXPECT_THAT(parse_choice("skinny 8x64 pieces 4").status().message, HasSubstr("'pieces' is not part"));
}

// For the linears of the published models, a batch has the same kernel and the same cuts of k, which decide
// the bits, as the graph's size to which it is padded.
TEST(KernelChoice, HeuristicsDoNotDependOnPadding) {
  const std::vector<std::string> presets = {"v2-lite", "v2", "v3", "r1-channel-int8", "r1-block-int8"};
  const auto products = preset_products(presets, kTunedTpSizes);
  ASSERT_TRUE(products.ok()) << products.status().message;
  const auto expect_no_change = [](const ProductSpec& product, const auto& of) {
    for (const int64_t largest : {1469, 4096}) {
      const testing::GraphSizes graphs(largest);
      for (int64_t m = 1; m <= largest; ++m)
        EXPECT_EQ(of(m), of(graphs.padded(m))) << product.label << " m " << m;
    }
  };
  for (const ProductSpec& product : *products) {
    if (product.name.num_experts > 0) {
      const auto of = [&](int64_t m) {
        GroupedShape shape = grouped_shape_of(product.name, product.hidden_size, product.rows(m), 132);
        shape.rows_per_token = static_cast<int>(product.rows(1));
        return std::pair(heuristic(shape), wants_sorted(shape, nullptr));
      };
      // A GPU that has a share of the experts may get no whole number of rows per token.
      const bool whole = product.rows(2) == 2 * product.rows(1) && product.rows(16) == 16 * product.rows(1);
      if (whole) expect_no_change(product, of);
      continue;
    }
    const auto of = [&](int64_t m) {
      LinearShape shape = linear_shape_of(product.name, m, 132);
      shape.f32_y = product.f32_y;
      const LinearChoice choice = heuristic(shape);
      return std::pair(choice.kernel, choice.splits);
    };
    expect_no_change(product, of);
  }
}

// The sizes that choices count are those of graphs, whatever the largest graph is.
TEST(KernelChoice, PaddedTokensOfABatchAreThoseOfItsGraph) {
  for (const int64_t largest : {1, 6, 100, 512, 513, 600, 1469, 2049, 3125, 4095, 4096}) {
    const testing::GraphSizes graphs(largest);
    for (int64_t m = 1; m <= largest; ++m) {
      const int64_t padded = graphs.padded(m);
      ASSERT_EQ(padded_tokens(m), padded_tokens(padded)) << m << " of " << largest;
      ASSERT_EQ(finely_padded_tokens(m), finely_padded_tokens(padded)) << m << " of " << largest;
    }
  }
  EXPECT_EQ(finely_padded_tokens(300), 512);
  EXPECT_EQ(finely_padded_tokens(513), 544);
  EXPECT_EQ(finely_padded_tokens(1469), 1472);
  EXPECT_EQ(finely_padded_tokens(4096), 4096);
  EXPECT_EQ(finely_padded_tokens(4097), 4097) << "no graph is so large";
}

}  // namespace
}  // namespace hadal::cuda
