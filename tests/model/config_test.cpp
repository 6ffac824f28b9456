#include "model/config.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/model/checkpoint_files.h"

namespace hadal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Json;
using testing::tiny_config;

// These are the published config.json files, as far as the engine reads them.
Json published(const std::string& name) {
  Json json = tiny_config();
  const auto set = [&](const char* text) { json.update(Json::parse(text)); };
  const char* yarn_707 = R"({"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
    "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 0.707}})";
  const char* yarn_1 = R"({"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
    "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}})";
  set(R"({"max_position_embeddings": 163840, "vocab_size": 102400, "bos_token_id": 100000,
          "eos_token_id": 100001})");
  if (name == "V2-Lite" || name == "Coder-V2-Lite") {
    set(R"({"architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 27,
      "num_attention_heads": 16, "q_lora_rank": null, "intermediate_size": 10944, "moe_intermediate_size": 1408,
      "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "scoring_func": "softmax",
      "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": false,
      "routed_scaling_factor": 1.0, "first_k_dense_replace": 1})");
    set(yarn_707);
  } else if (name == "V2" || name == "V2.5" || name == "Coder-V2") {
    set(R"({"architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 5120, "num_hidden_layers": 60,
      "num_attention_heads": 128, "q_lora_rank": 1536, "intermediate_size": 12288,
      "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
      "scoring_func": "softmax", "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3,
      "norm_topk_prob": false, "routed_scaling_factor": 16.0, "first_k_dense_replace": 1})");
    set(name == "V2.5" ? yarn_1 : yarn_707);
  } else {
    set(R"({"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "q_lora_rank": 1536,
      "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
      "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
      "first_k_dense_replace": 3, "vocab_size": 129280, "bos_token_id": 0, "eos_token_id": 1,
      "num_nextn_predict_layers": 1})");
    set(yarn_1);
    json["quantization_config"] = testing::fp8_config_field();
    if (name == "V3.1" || name == "V3.2") json["quantization_config"]["scale_fmt"] = "ue8m0";
    if (name == "V3.2")
      set(R"({"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 64, "index_head_dim": 128,
        "index_topk": 2048})");
  }
  return json;
}

std::string error_of(const std::string& text, const std::string& override_json = {}) {
  const auto config = parse_model_config(text, "config.json", override_json);
  return config.ok() ? "no error" : config.status().message;
}
std::string error_with(const char* field, Json value) {
  Json json = tiny_config();
  json[field] = std::move(value);
  return error_of(json.dump());
}

TEST(ModelConfig, PublishedV2LiteIsParsed) {
  const ModelConfig config = testing::parsed(published("V2-Lite"));
  EXPECT_EQ(config.architecture, Architecture::kDeepseekV2);
  EXPECT_EQ(config.hidden_size, 2048);
  EXPECT_EQ(config.num_hidden_layers, 27);
  EXPECT_EQ(config.q_lora_rank, 0);
  EXPECT_EQ(config.topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(config.scoring_func, ScoringFunc::kSoftmax);
  EXPECT_FALSE(config.has_score_correction_bias());
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_FALSE(config.is_moe_layer(0));
  EXPECT_TRUE(config.is_moe_layer(1));
  EXPECT_EQ(config.torch_dtype, DType::kBF16);
  EXPECT_FALSE(config.quantization);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(100001));
  ASSERT_TRUE(config.rope_scaling);
  EXPECT_DOUBLE_EQ(config.rope_scaling->factor, 40.0);
  EXPECT_NEAR(config.softmax_scale(), 0.11472, 1e-5);
}

TEST(ModelConfig, PublishedV2AndV25AreParsed) {
  const ModelConfig v2 = testing::parsed(published("V2"));
  EXPECT_EQ(v2.topk_method, TopkMethod::kGroupLimitedGreedy);
  EXPECT_EQ(v2.n_group, 8);
  EXPECT_EQ(v2.topk_group, 3);
  EXPECT_DOUBLE_EQ(v2.routed_scaling_factor, 16.0);
  EXPECT_NEAR(v2.softmax_scale(), 0.11472, 1e-5);
  EXPECT_NEAR(testing::parsed(published("V2.5")).softmax_scale(), 0.13523, 1e-5);
  EXPECT_EQ(testing::parsed(published("Coder-V2")).n_routed_experts, 160);
}

TEST(ModelConfig, PublishedV3R1AndV31AreParsed) {
  for (const char* name : {"V3", "R1", "V3.1"}) {
    const ModelConfig config = testing::parsed(published(name));
    EXPECT_EQ(config.architecture, Architecture::kDeepseekV3);
    EXPECT_EQ(config.topk_method, TopkMethod::kNoauxTc);
    EXPECT_TRUE(config.has_score_correction_bias());
    EXPECT_EQ(config.num_nextn_predict_layers, 1);
    ASSERT_TRUE(config.quantization) << name;
    EXPECT_EQ(config.quantization->ue8m0_scales, std::string(name) == "V3.1");
    EXPECT_NEAR(config.softmax_scale(), 0.13523, 1e-5);
  }
}

TEST(ModelConfig, PublishedV32IsParsed) {
  const ModelConfig config = testing::parsed(published("V3.2"));
  EXPECT_EQ(config.architecture, Architecture::kDeepseekV32);
  EXPECT_EQ(config.topk_method, TopkMethod::kNoauxTc);
  EXPECT_TRUE(config.has_indexer());
  EXPECT_EQ(config.index_n_heads, 64);
  EXPECT_EQ(config.index_topk, 2048);
  EXPECT_TRUE(config.quantization->ue8m0_scales);
  EXPECT_FALSE(config.selects_keys(2048));
  EXPECT_TRUE(config.selects_keys(2049));
  const ModelConfig v3 = testing::parsed(published("V3"));
  EXPECT_FALSE(v3.has_indexer());
  EXPECT_FALSE(v3.selects_keys(100000));
}

TEST(ModelConfig, FieldsOfTheIndexerAreChecked) {
  const auto with = [](const char* field, const Json& value) {
    Json json = published("V3.2");
    json[field] = value;
    return error_of(json.dump());
  };
  for (const Json& heads :
       {Json(0), Json(8), Json(24), Json(80), Json(-16), Json("16"), Json(16.5), Json(1e300)}) {
    EXPECT_EQ(with("index_n_heads", heads),
              fmt::format("config.json: index_n_heads is {}; allowed: 16, 32, 48, 64", heads.dump()));
  }
  for (const int heads : {16, 32, 48, 64}) EXPECT_EQ(with("index_n_heads", heads), "no error");
  EXPECT_THAT(with("index_n_heads", nullptr), HasSubstr("index_n_heads is missing; allowed: 16, 32, 48, 64"));
  EXPECT_THAT(with("index_head_dim", 64), HasSubstr("index_head_dim is 64; only 128 is supported"));
  EXPECT_THAT(with("index_head_dim", nullptr), HasSubstr("index_head_dim is missing; only 128"));
  for (const int topk : {0, 2049, -1})
    EXPECT_THAT(with("index_topk", topk),
                HasSubstr(fmt::format("index_topk is {}; allowed: a whole number from 1 to 2048", topk)));
  EXPECT_THAT(with("index_topk", nullptr), HasSubstr("index_topk is missing; allowed: 1 to 2048"));
  EXPECT_THAT(with("indexer_rope_interleave", true),
              HasSubstr("indexer_rope_interleave is true; only false is supported"));
  EXPECT_EQ(with("indexer_rope_interleave", false), "no error");
  EXPECT_THAT(with("q_lora_rank", nullptr),
              HasSubstr("q_lora_rank is missing; allowed: a whole number from 1"));
  EXPECT_THAT(with("q_lora_rank", 0), HasSubstr("q_lora_rank is 0; allowed: a whole number from 1"));
}

TEST(ModelConfig, SoftmaxScaleWithoutScalingIsInverseRoot) {
  EXPECT_DOUBLE_EQ(testing::parsed(tiny_config()).softmax_scale(), 1.0 / std::sqrt(192.0));
}

TEST(ModelConfig, GateDefaultsFollowTheArchitecture) {
  Json json = tiny_config();
  for (const char* field : {"scoring_func", "topk_method", "norm_topk_prob", "routed_scaling_factor"})
    json.erase(field);
  const ModelConfig v3 = testing::parsed(json);
  EXPECT_EQ(v3.topk_method, TopkMethod::kNoauxTc);
  EXPECT_TRUE(v3.norm_topk_prob);
  EXPECT_DOUBLE_EQ(v3.routed_scaling_factor, 2.5);
  json["architectures"] = {"DeepseekV2ForCausalLM"};
  const ModelConfig v2 = testing::parsed(json);
  EXPECT_EQ(v2.topk_method, TopkMethod::kGreedy);
  EXPECT_FALSE(v2.norm_topk_prob);
}

TEST(ModelConfig, RopeSpellingsOldAndNewMeanTheSame) {
  const Json yarn = Json::parse(R"({"factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0,
                                    "mscale_all_dim": 1.0})");
  for (const char* key : {"type", "rope_type"}) {
    for (const char* field : {"rope_scaling", "rope_parameters"}) {
      Json json = tiny_config();
      json[field] = yarn;
      json[field][key] = "yarn";
      json[field]["rope_theta"] = 50000.0;
      const ModelConfig config = testing::parsed(json);
      ASSERT_TRUE(config.rope_scaling) << field;
      EXPECT_DOUBLE_EQ(config.rope_scaling->factor, 40.0);
      EXPECT_DOUBLE_EQ(config.rope_theta, 50000.0);
    }
  }
  Json json = tiny_config();
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 777.0}};
  EXPECT_FALSE(testing::parsed(json).rope_scaling);
  EXPECT_DOUBLE_EQ(testing::parsed(json).rope_theta, 777.0);
}

TEST(ModelConfig, EosMayBeOneOrMany) {
  Json json = tiny_config();
  json["eos_token_id"] = {1, 7};
  EXPECT_THAT(testing::parsed(json).eos_token_ids, ElementsAre(1, 7));
  json["eos_token_id"] = nullptr;
  EXPECT_TRUE(testing::parsed(json).eos_token_ids.empty());
  EXPECT_THAT(error_with("eos_token_id", {1, -2}), HasSubstr("eos_token_id contains -2"));
  EXPECT_THAT(error_with("eos_token_id", "x"), HasSubstr("eos_token_id is \"x\""));
}

TEST(ModelConfig, DtypeHasTwoSpellings) {
  Json json = tiny_config();
  json.erase("torch_dtype");
  json["dtype"] = "float32";
  EXPECT_EQ(testing::parsed(json).torch_dtype, DType::kF32);
  json["torch_dtype"] = "float16";
  EXPECT_THAT(error_of(json.dump()), HasSubstr("torch_dtype differs from dtype, which is float32"));
  EXPECT_THAT(error_with("torch_dtype", "int8"), HasSubstr("supported: float32, float16, bfloat16"));
}

TEST(ModelConfig, OverridesReplaceTopLevelFields) {
  Json json = published("V3");
  const auto config = parse_model_config(
      json.dump(), "config.json", R"({"num_hidden_layers": 4, "rope_scaling": null, "vocab_size": 512})");
  ASSERT_TRUE(config.ok()) << config.status().message;
  EXPECT_EQ(config->num_hidden_layers, 4);
  EXPECT_EQ(config->vocab_size, 512);
  EXPECT_FALSE(config->rope_scaling);

  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}};
  EXPECT_TRUE(parse_model_config(json.dump(), "config.json", R"({"rope_scaling": null})").ok());

  EXPECT_THAT(error_of(tiny_config().dump(), R"({"num_hiden_layers": 4})"),
              HasSubstr("unknown field \"num_hiden_layers\"; the nearest is num_hidden_layers"));
  EXPECT_THAT(error_of(tiny_config().dump(), "[1]"),
              HasSubstr("--json-model-override-args: must be a JSON object, but is [1]"));
  EXPECT_THAT(error_of(tiny_config().dump(), "{"),
              HasSubstr("--json-model-override-args: is not valid JSON"));
}

TEST(ModelConfig, UnknownArchitectureNamesTheSupportedOnes) {
  EXPECT_THAT(error_with("architectures", {"LlamaForCausalLM"}),
              AllOf(HasSubstr("config.json: architectures is [\"LlamaForCausalLM\"]"),
                    HasSubstr("DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, DeepseekV32ForCausalLM")));
  EXPECT_THAT(error_with("architectures", nullptr), HasSubstr("architectures is missing"));
  EXPECT_THAT(error_with("architectures", Json::array()), HasSubstr("architectures is []"));
}

TEST(ModelConfig, SizesAreChecked) {
  for (const char* field : {"hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1e300), Json(UINT64_MAX), Json("8"), Json(2.5),
                              Json(true), Json::array({1}), Json::object()}) {
      EXPECT_THAT(error_with(field, value), HasSubstr(fmt::format("config.json: {} is ", field))) << value;
    }
    Json json = tiny_config();
    json.erase(field);
    EXPECT_THAT(error_of(json.dump()), HasSubstr(fmt::format("{} is missing", field)));
  }
}

TEST(ModelConfig, HeadSizesAreFixed) {
  EXPECT_THAT(error_with("kv_lora_rank", 256), HasSubstr("kv_lora_rank is 256; only 512 is supported"));
  EXPECT_THAT(error_with("qk_nope_head_dim", 64), HasSubstr("only 128 is supported"));
  EXPECT_THAT(error_with("qk_rope_head_dim", 32), HasSubstr("only 64 is supported"));
  EXPECT_THAT(error_with("v_head_dim", nullptr), HasSubstr("v_head_dim is missing; only 128"));
}

TEST(ModelConfig, GateFieldsMustFitTogether) {
  EXPECT_THAT(error_with("num_experts_per_tok", 5),
              HasSubstr("num_experts_per_tok is 5; allowed: a whole number from 1 to 4"));
  EXPECT_THAT(error_with("num_experts_per_tok", 3), HasSubstr("at most 2 (1 groups of 2 are kept)"));
  EXPECT_THAT(error_with("n_group", 3), HasSubstr("n_group is 3; it must divide n_routed_experts 4"));
  EXPECT_THAT(error_with("n_group", 4), HasSubstr("at least two experts per group"));
  EXPECT_THAT(error_with("topk_group", 3), HasSubstr("topk_group is 3"));
  EXPECT_THAT(error_with("scoring_func", "tanh"), HasSubstr("supported: softmax, sigmoid"));
  EXPECT_THAT(error_with("scoring_func", "softmax"), HasSubstr("cannot be combined"));
  EXPECT_THAT(error_with("topk_method", "best"),
              HasSubstr("supported: greedy, group_limited_greedy, noaux_tc"));
  EXPECT_THAT(error_with("moe_layer_freq", 0), HasSubstr("moe_layer_freq is 0"));
}

TEST(ModelConfig, DenseModelNeedsNoExpertFields) {
  Json json = tiny_config();
  for (const char* field : {"n_routed_experts", "n_shared_experts", "num_experts_per_tok",
                            "moe_intermediate_size", "n_group", "topk_group"}) {
    json[field] = nullptr;
  }
  EXPECT_FALSE(testing::parsed(json).is_moe_layer(1));
}

TEST(ModelConfig, UnsupportedVariantsAreNamed) {
  EXPECT_THAT(error_with("hidden_act", "gelu"), HasSubstr("hidden_act is \"gelu\"; supported: silu"));
  EXPECT_THAT(error_with("attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(error_with("rope_interleave", false), HasSubstr("rope_interleave is false"));
  EXPECT_THAT(error_with("num_nextn_predict_layers", 2), HasSubstr("num_nextn_predict_layers is 2"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "linear"}, {"factor", 2}}),
              HasSubstr("rope_scaling.type is \"linear\"; supported: default, yarn"));
  EXPECT_THAT(error_with("rope_scaling", {{"factor", 2}}), HasSubstr("rope_scaling.type is missing"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "yarn"}}), HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(error_with("rope_scaling", "yarn"), HasSubstr("rope_scaling is \"yarn\"; allowed: an object"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "yarn"},
                                          {"factor", 40},
                                          {"original_max_position_embeddings", 4096},
                                          {"beta_fast", 1},
                                          {"beta_slow", 32}}),
              HasSubstr("beta_slow is 32; it must be below beta_fast 1"));
}

TEST(ModelConfig, Fp8BlocksThatDifferFromDeepSeeksAreNamed) {
  const auto with = [](const char* field, Json value) {
    Json quant = testing::fp8_config_field();
    quant[field] = std::move(value);
    return error_with("quantization_config", quant);
  };
  EXPECT_THAT(with("quant_method", "awq"),
              HasSubstr("quantization_config.quant_method is \"awq\"; supported: fp8, compressed-tensors"));
  EXPECT_THAT(with("quant_method", nullptr), HasSubstr("quant_method is missing"));
  EXPECT_THAT(with("weight_block_size", {64, 64}),
              HasSubstr("weight_block_size is [64,64]; supported: [128, 128]"));
  EXPECT_THAT(with("activation_scheme", "static"), HasSubstr("supported: dynamic"));
  EXPECT_THAT(with("fmt", "e5m2"), HasSubstr("supported: e4m3"));
  EXPECT_THAT(with("scale_fmt", "int"), HasSubstr("supported: float, ue8m0"));
}

TEST(ModelConfig, HostileTextIsRefused) {
  EXPECT_THAT(error_of(""), HasSubstr("config.json: is not valid JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("must be a JSON object, but is []"));
  EXPECT_THAT(error_of(R"({"hidden_size": NaN})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(R"({"hidden_size": 1e999})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"\xff\": 1}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(std::string(1'000'000, '[')), HasSubstr("nested deeper than 64"));
  std::string deep = R"({"x": )";
  for (int i = 0; i < 100'000; ++i) deep += R"({"a":)";
  EXPECT_THAT(error_of(deep), HasSubstr("nested deeper than 64"));
  std::string twice = tiny_config().dump();
  twice.insert(1, R"("hidden_size": "x",)");
  EXPECT_EQ(error_of(twice), "no error");  // JSON readers agree that the last one counts
}

TEST(TensorList, CountsMatchThePublishedModels) {
  const auto count = [](const std::string& name) {
    int64_t total = 0;
    for (const TensorSpec& spec : expected_tensors(testing::parsed(published(name)))) {
      if (!spec.nextn && spec.role != TensorRole::kScale) total += spec.num_elements();
    }
    return static_cast<double>(total) * 1e-9;
  };
  EXPECT_NEAR(count("V2-Lite"), 15.7, 0.05);
  EXPECT_NEAR(count("V2"), 235.7, 0.5);
  EXPECT_NEAR(count("V3"), 671.0, 0.5);
  // The indexer of a layer has 64 heads of 128 on a latent of 1536, one key of 128 and 64 weights on 7168.
  const double indexer = 61 * (64.0 * 128 * 1536 + 128 * 7168 + 2 * 128 + 64 * 7168) * 1e-9;
  EXPECT_NEAR(count("V3.2") - count("V3"), indexer, 1e-9);
}

TEST(TensorList, EveryLayerOfV32HasAnIndexer) {
  const auto specs = expected_tensors(testing::parsed(published("V3.2")));
  const auto find = [&](const std::string& name) {
    const auto at =
        std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& s) { return s.name == name; });
    return at == specs.end() ? TensorSpec{} : *at;
  };
  for (const int layer : {0, 3, 60, 61}) {
    const std::string prefix = fmt::format("model.layers.{}.self_attn.indexer.", layer);
    EXPECT_THAT(find(prefix + "wq_b.weight").shape, ElementsAre(8192, 1536));
    EXPECT_EQ(find(prefix + "wq_b.weight").dtype, DType::kF8E4M3);
    EXPECT_THAT(find(prefix + "wq_b.weight_scale_inv").shape, ElementsAre(64, 12));
    EXPECT_THAT(find(prefix + "wk.weight").shape, ElementsAre(128, 7168));
    EXPECT_THAT(find(prefix + "wk.weight_scale_inv").shape, ElementsAre(1, 56));
    EXPECT_THAT(find(prefix + "k_norm.weight").shape, ElementsAre(128));
    EXPECT_THAT(find(prefix + "k_norm.bias").shape, ElementsAre(128));
    EXPECT_THAT(find(prefix + "weights_proj.weight").shape, ElementsAre(64, 7168));
    EXPECT_EQ(find(prefix + "weights_proj.weight").dtype, DType::kBF16);
    EXPECT_EQ(find(prefix + "weights_proj.weight").nextn, layer == 61);
  }
  for (const TensorSpec& spec : expected_tensors(testing::parsed(published("V3"))))
    EXPECT_EQ(spec.name.find("indexer"), std::string::npos);
}

TEST(TensorList, Fp8ScalesFollowTheirRaggedLinears) {
  const auto specs = expected_tensors(testing::parsed(published("V3")));
  int found = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].role != TensorRole::kScale) continue;
    EXPECT_EQ(specs[i].name, specs[i - 1].name + "_scale_inv");
    if (specs[i].name == "model.layers.61.self_attn.kv_a_proj_with_mqa.weight_scale_inv") {
      EXPECT_THAT(specs[i].shape, ElementsAre(5, 56));
      EXPECT_TRUE(specs[i].nextn);
      ++found;
    }
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace hadal
