// Tests what ranks hold of the NextN layer on GPUs: together, their parts are what one GPU holds. Small
// models are placed in host memory, so no GPU is needed.
#include "tests/cuda/weights/rank_weights.h"

namespace hadal {
namespace {

using testing::Comparison;
using testing::Format;
using testing::Held;
using testing::Json;

// The NextN layer is cut as the target's layers are, and the rows of eh_proj are divided among the ranks.
TEST(RankWeightPlan, TheNextnLayersOfRanksPutTogetherAreThatOfOneGpu) {
  for (const Format& format : testing::kFormats) {
    if (format.compute == DType::kF32) continue;  // not on a GPU
    Json json = testing::uneven_config("v3");
    json["num_nextn_predict_layers"] = 1;
    const ModelConfig config = testing::config_in(json, format);
    WeightLoadOptions options = testing::options_of(format);
    options.load_nextn = true;
    Held whole = testing::hold(config, options, {});
    ASSERT_TRUE(whole.ranks[0].nextn.has_value()) << format.name;
    const DeviceNextn& nextn = *whole.ranks[0].nextn;
    ASSERT_EQ(nextn.eh_proj.n, config.hidden_size);
    whole.ranks[0].layers.push_back(nextn.layer);
    for (const ModelSplit split : testing::splits_of(config)) {
      SCOPED_TRACE(fmt::format("{} tp {} ep {}", format.name, split.tp, split.ep));
      Held held = testing::hold(config, options, split);
      int64_t num_joined = 0;
      int64_t num_tokens = 0;
      for (DeviceWeights& rank : held.ranks) {
        ASSERT_TRUE(rank.nextn.has_value());
        const DeviceNextn& part = *rank.nextn;
        EXPECT_EQ(part.eh_proj.data == nullptr, part.eh_proj.n == 0);
        testing::expect_same_window(part.eh_proj, {}, nextn.eh_proj, {num_joined, 0}, part.eh_proj.n,
                                    nextn.eh_proj.k);
        testing::expect_same_window(part.lm_head, {}, nextn.lm_head, {num_tokens, 0}, part.lm_head.n,
                                    config.hidden_size);
        num_joined += part.eh_proj.n;
        num_tokens += part.lm_head.n;
        testing::expect_same(part.embedding, nextn.embedding);
        for (const auto norm : {&DeviceNextn::enorm, &DeviceNextn::hnorm, &DeviceNextn::shared_head_norm})
          testing::expect_same_floats(part.*norm, nextn.*norm, config.hidden_size);
        rank.layers.push_back(part.layer);
      }
      EXPECT_EQ(num_joined, config.hidden_size);
      EXPECT_EQ(num_tokens, config.vocab_size);
      Comparison(config, options, whole.ranks[0], held.ranks).run();
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace hadal
