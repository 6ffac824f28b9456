// Tests the products that tuning measures: the shapes of the models, and the choices for them.
#include "tune/tune_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tune/fake_measurer.h"

namespace hadal {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> texts(const std::vector<ProductSpec>& products) {
  std::vector<std::string> out;
  for (const ProductSpec& p : products) {
    const char* type = p.name.type == WeightType::kFp8Block ? "fp8" : "bf16";
    if (p.name.num_experts == 0) {
      out.push_back(fmt::format("{} {} {}x{}", p.label, type, p.name.n, p.name.k));
      continue;
    }
    const cuda::GroupedShape shape = grouped_shape_of(p.name, p.hidden_size, 1, 132);
    out.push_back(fmt::format("{} {} {} of {}x{}", p.label, type, shape.num_experts, shape.n, shape.k));
  }
  return out;
}

TEST(TuneShapes, V3HasItsPublishedProducts) {
  const ModelConfig v3 = preset("v3");
  EXPECT_THAT(texts(*dense_products(v3, LoadQuantization::kNone, {})),
              ElementsAre("qkv_a fp8 2112x7168", "q_b fp8 24576x1536", "kv_b fp8 32768x512",
                          "o_proj fp8 7168x16384", "gate_up fp8 36864x7168", "down fp8 7168x18432",
                          "router bf16 256x7168", "lm_head bf16 129280x7168"));
  EXPECT_THAT(texts(*dense_products(v3, LoadQuantization::kNone, {.tp = 8})),
              ElementsAre("qkv_a fp8 2112x7168", "q_b fp8 3072x1536", "kv_b fp8 4096x512",
                          "o_proj fp8 7168x2048", "gate_up fp8 4608x7168", "down fp8 7168x2304",
                          "router bf16 256x7168", "lm_head bf16 16192x7168", "lm_head bf16 16128x7168"))
      << "2020 units of 64 rows for 8 ranks";
  EXPECT_THAT(texts(*expert_products(v3, LoadQuantization::kNone, {})),
              ElementsAre("experts gate_up fp8 257 of 4096x7168", "experts down fp8 257 of 7168x2048"));
  EXPECT_THAT(texts(*expert_products(v3, LoadQuantization::kNone, {.tp = 8})),
              ElementsAre("experts gate_up fp8 257 of 512x7168", "experts down fp8 257 of 7168x256"));
  EXPECT_THAT(texts(*expert_products(v3, LoadQuantization::kNone, {.tp = 8, .ep = 8})),
              ElementsAre("experts gate_up fp8 32 of 4096x7168", "experts down fp8 32 of 7168x2048"));
  const auto experts = *expert_products(v3, LoadQuantization::kNone, {.tp = 8, .ep = 8});
  EXPECT_EQ(experts[0].rows(16), 16) << "one of its 32 experts for each token";
  EXPECT_THAT(texts(*dense_products(v3, LoadQuantization::kNone, {.tp = 8, .ep = 8})),
              AllOf(Contains("shared gate_up fp8 512x7168"), Contains("shared down fp8 7168x256")))
      << "the shared expert is cut by tp, the routed ones are not";
  EXPECT_EQ((*expert_products(v3, LoadQuantization::kNone, {}))[1].rows(4), 36);
  for (const int64_t tp : {2, 4}) EXPECT_TRUE(dense_products(v3, LoadQuantization::kNone, {.tp = tp}).ok());
}

TEST(TuneShapes, V32HasTheIndexersProducts) {
  EXPECT_THAT(texts(*dense_products(preset("v3.2"), LoadQuantization::kNone, {})),
              AllOf(Contains("qkv_a fp8 2240x7168"), Contains("index_wq_b fp8 8192x1536")));
}

TEST(TuneShapes, V2LiteHasItsPublishedProducts) {
  const ModelConfig lite = preset("v2-lite");
  EXPECT_THAT(texts(*dense_products(lite, LoadQuantization::kNone, {})),
              ElementsAre("qkv_a bf16 3648x2048", "kv_b bf16 4096x512", "o_proj bf16 2048x2048",
                          "gate_up bf16 22016x2048", "down bf16 2048x11008", "router bf16 64x2048",
                          "lm_head bf16 102400x2048"));
  EXPECT_THAT(texts(*dense_products(lite, LoadQuantization::kFp8, {.tp = 2})),
              ElementsAre("qkv_a fp8 2112x2048", "kv_b fp8 2048x512", "o_proj fp8 2048x1024",
                          "gate_up fp8 11008x2048", "down fp8 2048x5504", "router bf16 64x2048",
                          "lm_head bf16 51200x2048"));
  EXPECT_THAT(texts(*expert_products(lite, LoadQuantization::kNone, {})),
              ElementsAre("experts gate_up bf16 66 of 2816x2048", "experts down bf16 66 of 2048x1408"));
}

// Intermediate sizes are cut at multiples of 128, to which a GPU pads them in any case.
TEST(TuneShapes, UnequalPartsHaveTheShapesOfEveryRank) {
  struct Case {
    const char* preset;
    LoadQuantization quantization;
    ModelSplit split;
    std::vector<int64_t> experts;  // intermediate sizes of the ranks, padded to whole blocks
    std::vector<int64_t> dense;
  };
  constexpr auto kNone = LoadQuantization::kNone;
  constexpr auto kFp8 = LoadQuantization::kFp8;
  const std::vector<Case> cases = {
      {"v2-lite", kFp8, {.tp = 1}, {1408}, {11008}},
      {"v2-lite", kFp8, {.tp = 2}, {768, 640}, {5504}},
      {"v2-lite", kFp8, {.tp = 4}, {384, 256}, {2816, 2688}},
      {"v2-lite", kFp8, {.tp = 8}, {256, 128}, {1408, 1280}},
      {"v2-lite", kFp8, {.tp = 16}, {128}, {768, 640}},  // 11 blocks for 16 ranks: 5 ranks have none
      {"v2-lite", kFp8, {.tp = 8, .ep = 4}, {768, 640}, {1408, 1280}},
      {"v2-lite", kNone, {.tp = 2}, {768, 640}, {5504}},
      {"v2-lite", kNone, {.tp = 4}, {384, 256}, {2816, 2688}},
      {"v2-lite", kNone, {.tp = 8}, {256, 128}, {1408, 1280}},
      {"v2", kFp8, {.tp = 8}, {256, 128}, {1536}},
      {"v2", kFp8, {.tp = 4}, {384}, {3072}},
      {"v2", kNone, {.tp = 8}, {256, 128}, {1536}},
      {"v3", kNone, {.tp = 8}, {256}, {2304}},
      {"v3", kNone, {.tp = 8, .ep = 8}, {2048}, {2304}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(
        fmt::format("{} tp {} ep {} {}", c.preset, c.split.tp, c.split.ep, to_string(c.quantization)));
    const ModelConfig config = preset(c.preset);
    const auto experts = expert_products(config, c.quantization, c.split);
    const auto dense = dense_products(config, c.quantization, c.split);
    const auto layers = expert_layer_shapes(config, c.quantization, WeightType::kBF16, c.split);
    ASSERT_TRUE(experts.ok() && dense.ok() && layers.ok());
    for (const bool down : {false, true}) {
      std::vector<int64_t> of_experts, of_dense;
      for (const ProductSpec& product : *experts) {
        if (product.name.down == down) of_experts.push_back(product.name.n);
      }
      for (const ProductSpec& product : *dense) {
        if (product.label == (down ? "down" : "gate_up"))
          of_dense.push_back(down ? product.name.k : product.name.n / 2);
      }
      EXPECT_EQ(of_experts, c.experts);
      EXPECT_EQ(of_dense, c.dense);
    }
    std::vector<int64_t> of_layers;
    for (const cuda::ExpertsShape& shape : *layers) of_layers.push_back(shape.intermediate);
    EXPECT_EQ(of_layers, c.experts);
  }
}

// A head has 192 rows of q_proj, so that every second head begins in the middle of a block of scales.
TEST(TuneShapes, RowsOfQBeginAtBlocksOfScales) {
  const ModelConfig lite = preset("v2-lite");
  const auto q_and_kv_a = [&](LoadQuantization quantization) {
    const auto products = *dense_products(lite, quantization, {.tp = 16});
    std::vector<int64_t> rows;
    for (const ProductSpec& product : products) {
      if (product.label == "qkv_a") rows.push_back(product.name.n);
    }
    return rows;
  };
  EXPECT_THAT(q_and_kv_a(LoadQuantization::kNone), ElementsAre(192 + 576));
  EXPECT_THAT(q_and_kv_a(LoadQuantization::kFp8), ElementsAre(256 + 576)) << "192, and 64 before it";
  const auto v3 = *dense_products(preset("v3"), LoadQuantization::kNone, {.tp = 128});
  EXPECT_EQ(std::count_if(v3.begin(), v3.end(), [](const auto& product) { return product.label == "q_b"; }),
            2)
      << "192 rows, and 256 of which the first 64 are not read";
}

TEST(TuneShapes, SizesAreThoseOfTheDeviceLayout) {
  EXPECT_THAT(texts(expert_products_of(WeightType::kFp8Block, 64, 1400, 7168, 6)),
              ElementsAre("experts gate_up fp8 64 of 2816x7168", "experts down fp8 64 of 7168x1408"));
  const auto experts = expert_products_of(WeightType::kBF16, 4, 256, 512, 2);
  EXPECT_EQ(experts[0].weight_bytes(), 4 * 512 * 512 * 2.0);
  EXPECT_EQ(experts[1].weight_bytes(), 4 * 512 * 256 * 2.0);
  EXPECT_EQ((*dense_products(preset("v3"), LoadQuantization::kNone, {}))[0].weight_bytes(), 2112.0 * 7168.0);
}

TEST(TuneShapes, SplitsThatTheModelCannotHaveAreRefused) {
  const ModelConfig lite = preset("v2-lite");
  const auto message = [&](ModelSplit split) {
    return dense_products(lite, LoadQuantization::kNone, split).status().message;
  };
  EXPECT_THAT(message({.tp = 3}), HasSubstr("--tp-size 3: must divide num_attention_heads, which is 16"));
  EXPECT_THAT(message({.tp = 4, .ep = 3}), HasSubstr("--ep-size 3: must divide --tp-size, which is 4"));
}

TEST(TuneShapes, EveryFormatOfLinearsHasItsTypes) {
  const ModelConfig lite = preset("v2-lite");
  for (const LoadQuantization quantization :
       {LoadQuantization::kFp8, LoadQuantization::kW8A8Fp8, LoadQuantization::kW8A8Int8,
        LoadQuantization::kBlockwiseInt8}) {
    const WeightType type = weight_type_of(quantization);
    const auto dense = dense_products(lite, quantization, {});
    ASSERT_TRUE(dense.ok());
    const auto of_type = [&](const char* label, WeightType expected) {
      for (const ProductSpec& product : *dense) {
        if (product.label != label) continue;
        EXPECT_EQ(product.name.type, expected) << label;
      }
    };
    of_type("qkv_a", type);
    of_type("down", type);
    of_type("kv_b", type == WeightType::kFp8Block ? type : WeightType::kBF16);
    of_type("lm_head", WeightType::kBF16);
    const auto experts = expert_products(lite, quantization, {});
    ASSERT_TRUE(experts.ok());
    for (const ProductSpec& product : *experts) EXPECT_EQ(product.name.type, type);
  }
  EXPECT_EQ((*dense_products(preset("r1-channel-int8"), LoadQuantization::kNone, {}))[0].name.type,
            WeightType::kInt8Channel);
}

// Every dense and expert shape of every model has something to choose from at decode's batches.
TEST(TuneShapes, EveryProductHasChoices) {
  for (const char* name : {"v2-lite", "v2", "v3"}) {
    for (const int64_t tp : {1, 8}) {
      const ModelConfig config = preset(name);
      const auto dense = dense_products(config, LoadQuantization::kNone, {.tp = tp});
      for (const ProductSpec& product : *dense) {
        EXPECT_GT(tune_field(product, 16, 132).candidates.size(), 10) << name << " " << product.label;
        EXPECT_FALSE(tune_field(product, 4096, 132).candidates.empty()) << name << " " << product.label;
      }
      const auto experts = expert_products(config, LoadQuantization::kNone, {.tp = tp});
      for (const ProductSpec& product : *experts) {
        EXPECT_GT(tune_field(product, 16, 132).candidates.size(), 5) << name << " " << product.label;
      }
    }
  }
}

TEST(TuneFields, ExcludeFloat32ProductsOfManyOutputs) {
  const auto v2 = dense_products(preset("v2"), LoadQuantization::kNone, {});
  for (const ProductSpec& product : *v2) {
    for (const int64_t batch : {1, 4096}) {
      const TuneField field = tune_field(product, batch, 132);
      const bool tried = std::any_of(field.candidates.begin(), field.candidates.end(),
                                     [](const auto& c) { return c.kernel == cuda::ProductKernel::kRouter; });
      EXPECT_EQ(tried, product.name.n * batch <= 65536) << product.label << " " << batch;
    }
  }
}

}  // namespace
}  // namespace hadal
