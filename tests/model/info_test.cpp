#include "model/info.h"

#include <gtest/gtest.h>

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
