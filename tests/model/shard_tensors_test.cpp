// Compares what the config alone says about a rank's weights with the weights that ranks have.
#include "model/shard_tensors.h"

#include <gtest/gtest.h>

#include "model/info.h"
#include "model/presets.h"
#include "model/shard_weights.h"
#include "tests/model/shard_models.h"

namespace hadal {
namespace {

using testing::Format;
using testing::Json;
using testing::options_of;

TEST(RankWeightBytes, AreThoseOfTheWeightsThatTheRankHas) {
  ThreadPool pool(1);
  for (const std::string& family : testing::kFamilies) {
    for (const Format& format : testing::kFormats) {
      for (const bool tied : {false, true}) {
        Json json = testing::uneven_config(family);
        json["tie_word_embeddings"] = tied;
        if (family != "v2-lite") json["num_nextn_predict_layers"] = 1;
        const ModelConfig config = testing::config_in(json, format);
        const ModelWeights whole = load_weights({}, config, options_of(format), pool).value();
        for (const ModelSplit split : testing::splits_of(config)) {
          for (int64_t rank = 0; rank < split.tp; ++rank) {
            EXPECT_EQ(rank_bytes(config, options_of(format), split, rank).all,
                      bytes_of(shard_weights(whole, config, split, rank)))
                << family << " " << format.name << (tied ? " tied" : "") << " tp " << split.tp << " ep "
                << split.ep << " rank " << rank;
          }
        }
      }
    }
  }
}

TEST(RankWeightBytes, OfV3AddUpToTheModelAndSevenMoreCopiesOfWhatAllRanksHave) {
  const ModelConfig v3 = parse_model_config(preset_config_json("v3").value(), "v3").value();
  const WeightLoadOptions options{.load_nextn = false};
  const int64_t whole = rank_bytes(v3, options, {}, 0).all;
  int64_t on_all = 0;  // embedding, norms, router, q_a, kv_a
  for (const TensorSpec& spec : expected_tensors(v3)) {
    const bool is_down = spec.name.find("_a_proj") != std::string::npos;
    if (spec.nextn || (spec.role == TensorRole::kLinear && !is_down) || spec.role == TensorRole::kHead ||
        (spec.role == TensorRole::kScale && !is_down))
      continue;
    on_all += spec.role == TensorRole::kNorm ? 2 * spec.num_bytes() : spec.num_bytes();  // float32 in memory
  }
  int64_t sum = 0;
  EXPECT_EQ(rank_bytes(v3, options, {.tp = 64}, 63).experts, 0)
      << "16 blocks of experts' widths among 64 ranks";
  EXPECT_GT(rank_bytes(v3, options, {.tp = 64}, 15).experts, 0);
  for (int64_t rank = 0; rank < 8; ++rank) sum += rank_bytes(v3, options, {.tp = 8, .ep = 8}, rank).all;
  EXPECT_EQ(sum, whole + 7 * on_all);
}

TEST(TensorPart, KnowsTheMlpOfAMatrix) {
  EXPECT_EQ(mlp_prefix("model.layers.3.mlp.experts.7.up_proj.weight"), "model.layers.3.mlp.experts.7.");
  EXPECT_EQ(mlp_prefix("model.layers.0.mlp.down_proj.weight"), "model.layers.0.mlp.");
  EXPECT_EQ(mlp_prefix("model.layers.3.mlp.gate.weight"), "");
  EXPECT_EQ(mlp_prefix("model.layers.3.self_attn.o_proj.weight"), "");
}

TEST(TensorPart, ExpertsOfOtherRanksAreEmpty) {
  const ModelConfig lite = parse_model_config(preset_config_json("v2-lite").value(), "v2-lite").value();
  int64_t num_held = 0;
  for (const TensorSpec& spec : expected_tensors(lite)) {
    if (!spec.expert || !spec.name.ends_with("down_proj.weight")) continue;
    const TensorPart part = tensor_part(lite, spec, {.tp = 8, .ep = 4}, 3, WeightType::kFp8Block, 128);
    EXPECT_EQ(part.rows, lite.hidden_size);
    if (part.cols == 0) continue;
    EXPECT_EQ(part.cols, 5 * 128) << "the second of two ranks has 5 of 11 blocks";
    ++num_held;
  }
  EXPECT_EQ(num_held, 26 * 16);
}

}  // namespace
}  // namespace hadal
