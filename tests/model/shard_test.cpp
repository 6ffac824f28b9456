// Tests which part of a model each rank holds, for every published model.
#include "model/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/presets.h"
#include "tests/model/shard_models.h"

namespace hadal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::splits_of;

ModelConfig preset(const std::string& name) {
  return parse_model_config(preset_config_json(name).value(), name).value();
}

// Calls body(name, config, split) for every published model and every split of up to 16 ranks.
template <typename Body>
void for_each_split(const Body& body) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = preset(name);
    const std::vector<ModelSplit> splits = splits_of(config, 16);
    ASSERT_GE(splits.size(), 15U) << name;  // 1, 2, 4, 8 and 16 ranks, and every ep that divides them
    for (const ModelSplit split : splits) {
      SCOPED_TRACE(fmt::format("{} tp {} ep {}", name, split.tp, split.ep));
      body(config, split);
    }
  }
}

// Expects the parts of consecutive ranks to be [0, size), without a gap or an overlap.
void expect_tiles(const std::vector<Range>& parts, int64_t size, int64_t unit) {
  int64_t at = 0;
  for (const Range& part : parts) {
    EXPECT_EQ(part.begin, at);
    EXPECT_GE(part.end, part.begin);
    EXPECT_TRUE(part.begin % unit == 0 || part.begin == size) << part.begin;
    at = part.end;
  }
  EXPECT_EQ(at, size);
}

template <typename PartOf>
std::vector<Range> parts_of(int64_t num_ranks, const PartOf& part_of_rank) {
  std::vector<Range> parts;
  for (int64_t rank = 0; rank < num_ranks; ++rank) parts.push_back(part_of_rank(rank));
  return parts;
}

TEST(Shard, HeadsVocabularyMlpsAndJoinedRowsAreTiledByTheRanks) {
  for_each_split([](const ModelConfig& config, ModelSplit split) {
    const auto heads = parts_of(split.tp, [&](int64_t r) { return heads_of(config, split, r); });
    expect_tiles(heads, config.num_attention_heads, config.num_attention_heads / split.tp);
    expect_tiles(parts_of(split.tp, [&](int64_t r) { return vocabulary_of(config, split, r); }),
                 config.vocab_size, 64);
    expect_tiles(parts_of(split.tp, [&](int64_t r) { return joined_rows_of(config, split, r); }),
                 config.hidden_size, 64);
    for (const int64_t size :
         {config.intermediate_size, config.n_shared_experts * config.moe_intermediate_size}) {
      for (const int64_t unit : {16, 128}) {
        expect_tiles(parts_of(split.tp, [&](int64_t r) { return mlp_width_of(size, split, unit, r); }), size,
                     unit);
      }
    }
  });
}

TEST(Shard, EachWidthOfEachExpertIsOnOneRank) {
  for_each_split([](const ModelConfig& config, ModelSplit split) {
    const int64_t group_size = split.tp / split.ep;
    std::vector<Range> groups;
    for (int64_t first = 0; first < split.tp; first += group_size) {
      groups.push_back(experts_of(config, split, first));
      for (int64_t r = first; r < first + group_size; ++r)
        EXPECT_EQ(experts_of(config, split, r), groups.back());
      for (const int64_t unit : {16, 128}) {
        const auto widths =
            parts_of(group_size, [&](int64_t i) { return expert_width_of(config, split, unit, first + i); });
        expect_tiles(widths, config.moe_intermediate_size, unit);
      }
    }
    expect_tiles(groups, config.n_routed_experts, config.n_routed_experts / split.ep);
  });
}

TEST(Shard, QueryRowsBeginAtABlockAndEndWithTheRanksHeads) {
  for_each_split([](const ModelConfig& config, ModelSplit split) {
    for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Channel, WeightType::kFp8Block}) {
      for (int64_t rank = 0; rank < split.tp; ++rank) {
        const Range heads = heads_of(config, split, rank);
        const RowWindow rows = q_rows_of(heads, type);
        EXPECT_EQ(rows.first + rows.skip, heads.begin * 192);
        EXPECT_EQ(rows.first + rows.count, heads.end * 192);
        if (type == WeightType::kFp8Block) {
          EXPECT_EQ(rows.first % 128, 0);
          EXPECT_LT(rows.skip, 128);
        } else {
          EXPECT_EQ(rows.skip, 0);
        }
      }
    }
  });
}

TEST(Shard, OddHeadsOfBlockTypesSkipHalfABlock) {
  const RowWindow third = q_rows_of({3, 6}, WeightType::kInt8Block);
  EXPECT_EQ(third.first, 512);
  EXPECT_EQ(third.skip, 64);
  EXPECT_EQ(third.count, 640);
}

TEST(Shard, PartsAreAsEqualAsWholeUnitsAllow) {
  const auto sizes = [](int64_t size, int64_t unit, int64_t num_parts) {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < num_parts; ++i) found.push_back(part_of(size, unit, num_parts, i).size());
    return found;
  };
  EXPECT_THAT(sizes(1408, 128, 8), ElementsAre(256, 256, 256, 128, 128, 128, 128, 128));
  EXPECT_THAT(sizes(1408, 16, 8), ElementsAre(176, 176, 176, 176, 176, 176, 176, 176));
  EXPECT_THAT(sizes(10944, 128, 4), ElementsAre(22 * 128, 22 * 128, 21 * 128, 20 * 128 + 64));
  EXPECT_THAT(sizes(300, 128, 4), ElementsAre(128, 128, 44, 0));
  EXPECT_THAT(sizes(0, 16, 2), ElementsAre(0, 0));
  EXPECT_EQ(part_of(300, 128, 4, 3), (Range{300, 300}));
}

TEST(Shard, AnMlpIsCutAtBlocksIfAnyOfItsMatricesHasThem) {
  EXPECT_EQ(mlp_unit(WeightType::kBF16, WeightType::kBF16, WeightType::kBF16), 16);
  EXPECT_EQ(mlp_unit(WeightType::kFp8Channel, WeightType::kFp8Channel, WeightType::kBF16), 16);
  EXPECT_EQ(mlp_unit(WeightType::kBF16, WeightType::kBF16, WeightType::kFp8Block), 128);
  EXPECT_EQ(mlp_unit(WeightType::kInt8Block, WeightType::kInt8Block, WeightType::kF32), 128);
}

TEST(Shard, RefusedSplitsNameWhatIsAllowed) {
  const ModelConfig lite = preset("v2-lite");
  const auto message = [](const ModelConfig& config, ModelSplit split) {
    const auto checked = check_split(config, split);
    EXPECT_EQ(checked.status().code, StatusCode::kInvalidArgument);
    return checked.status().message;
  };
  EXPECT_EQ(message(lite, {.tp = 3}),
            "--tp-size 3: must divide num_attention_heads, which is 16; allowed: 1, 2, 4, 8, 16");
  EXPECT_THAT(message(lite, {.tp = 0}), HasSubstr("--tp-size 0"));
  EXPECT_THAT(message(lite, {.tp = -2}), HasSubstr("--tp-size -2"));
  EXPECT_THAT(message(preset("v3"), {.tp = 256}), HasSubstr("allowed: 1, 2, 4, 8, 16, 32, 64, 128"));
  EXPECT_EQ(
      message(lite, {.tp = 4, .ep = 3}),
      "--ep-size 3: must divide --tp-size, which is 4, and n_routed_experts, which is 64; allowed: 1, 2, 4");
  EXPECT_THAT(message(lite, {.tp = 4, .ep = 8}), HasSubstr("--ep-size 8"));
  ModelConfig few = lite;
  few.n_routed_experts = 6;
  EXPECT_THAT(message(few, {.tp = 8, .ep = 4}), HasSubstr("which is 6; allowed: 1, 2"));
  few.n_routed_experts = 0;
  EXPECT_THAT(message(few, {.tp = 8, .ep = 2}), HasSubstr("n_routed_experts is 0; allowed: 1"));
  EXPECT_TRUE(check_split(few, {.tp = 8}).ok());
}

}  // namespace
}  // namespace hadal
