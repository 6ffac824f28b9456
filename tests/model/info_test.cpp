#include "model/info.h"

#include <gtest/gtest.h>

#include "model/model.h"
#include "model/presets.h"
#include "tests/model/checkpoint_files.h"

namespace hadal {
namespace {

ModelConfig v2_lite() {
  testing::Json json = testing::tiny_config();
  json.update(testing::Json::parse(R"({"architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048,
    "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": null, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "scoring_func": "softmax", "topk_method": "greedy", "n_group": 1, "topk_group": 1, "vocab_size": 102400})"));
  return testing::parsed(json);
}

TEST(ModelInfo, V2LiteIsAsPublished) {
  const ModelInfo info = model_info(v2_lite(), {}, {.format = KvFormat::kBF16}, int64_t{40} << 30);
  EXPECT_EQ(info.architecture, "DeepseekV2ForCausalLM");
  EXPECT_NEAR(static_cast<double>(info.num_parameters) * 1e-9, 15.7, 0.05);
  EXPECT_NEAR(static_cast<double>(info.num_active_parameters) * 1e-9, 2.4, 0.1);
  EXPECT_NEAR(static_cast<double>(info.weight_bytes), 2.0 * static_cast<double>(info.num_parameters), 1e6);
  EXPECT_EQ(info.num_nextn_parameters, 0);
  EXPECT_EQ(info.kv_bytes_per_token, 27 * 1152);
  const int64_t left = (int64_t{40} << 30) - info.weight_bytes;
  EXPECT_EQ(info.max_total_num_tokens % kPageSize, 0);
  EXPECT_LE(info.max_total_num_tokens * info.kv_bytes_per_token, left);
  EXPECT_GT((info.max_total_num_tokens + kPageSize) * info.kv_bytes_per_token, left);
}

TEST(ModelInfo, KvBytesFollowTheFormat) {
  const ModelConfig config = v2_lite();
  EXPECT_EQ(kv_bytes_per_token(config, {.format = KvFormat::kF32}), 27 * 2304);
  EXPECT_EQ(kv_bytes_per_token(config, {.format = KvFormat::kFp8E4M3}), 27 * 656);
  EXPECT_EQ(kv_bytes_per_token(config, {.format = KvFormat::kFp8E5M2}), 27 * 576);
}

TEST(ModelInfo, TheCacheOfV32HasIndexKeys) {
  const ModelConfig config = parse_model_config(preset_config_json("v3.2").value(), "v3.2").value();
  const auto bytes = [&](KvFormat format) {
    return model_info(config, {}, cache_layout(config, format).value(), 0);
  };
  EXPECT_EQ(bytes(KvFormat::kFp8E4M3).kv_bytes_per_token, 48'068);
  EXPECT_EQ(bytes(KvFormat::kBF16).kv_bytes_per_token, 78'324);
  EXPECT_EQ(bytes(KvFormat::kBF16).index_bytes_per_token, 61 * 132);
  EXPECT_EQ(bytes(KvFormat::kF32).kv_bytes_per_token, 61 * (2304 + 512));
  EXPECT_EQ(model_info(v2_lite(), {}, {}, 0).index_bytes_per_token, 0);
}

TEST(ModelInfo, TheCacheOfV32HasScalesThatArePowersOfTwo) {
  const ModelConfig config = parse_model_config(preset_config_json("v3.2").value(), "v3.2").value();
  const auto scales = [&](std::optional<KvScales> wanted) {
    return cache_layout(config, KvFormat::kFp8E4M3, wanted)->scales;
  };
  EXPECT_EQ(scales({}), KvScales::kPer128PowersOfTwo);
  EXPECT_EQ(scales(KvScales::kPer128), KvScales::kPer128PowersOfTwo);
  EXPECT_EQ(scales(KvScales::kPerToken), KvScales::kPerToken);
  EXPECT_EQ(cache_layout(v2_lite(), KvFormat::kFp8E4M3)->scales, KvScales::kPerToken);
  EXPECT_EQ(cache_layout(v2_lite(), KvFormat::kFp8E4M3, KvScales::kPer128)->scales, KvScales::kPer128);
  const auto refused = cache_layout(config, KvFormat::kFp8E5M2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code, StatusCode::kUnsupported);
  EXPECT_NE(refused.status().message.find("--kv-cache-dtype fp8_e5m2: DeepseekV32ForCausalLM"),
            std::string::npos);
}

TEST(ModelInfo, NothingFitsBesideTooLargeWeights) {
  EXPECT_EQ(model_info(v2_lite(), {}, {}, 1 << 20).max_total_num_tokens, 0);
}

TEST(ModelInfo, QuantisingHalvesTheLinears) {
  const ModelInfo bf16 = model_info(v2_lite(), {}, {}, 0);
  const ModelInfo fp8 = model_info(v2_lite(), {.quantization = LoadQuantization::kFp8}, {}, 0);
  EXPECT_LT(fp8.weight_bytes, bf16.weight_bytes * 52 / 100);
  EXPECT_EQ(fp8.num_parameters, bf16.num_parameters);
}

}  // namespace
}  // namespace hadal
