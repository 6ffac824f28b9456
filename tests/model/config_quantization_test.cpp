#include <gmock/gmock.h>

#include "base/check.h"
#include "model/config.h"
#include "model/quantization.h"
#include "model/tensor_list.h"
#include "tests/model/checkpoint_files.h"

namespace hadal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Json;

Json compressed(const char* type, const char* strategy) {
  Json json = Json::parse(R"({
    "quant_method": "compressed-tensors", "quantization_status": "compressed",
    "global_compression_ratio": null, "ignore": ["lm_head", "re:.*mlp.gate$"], "kv_cache_scheme": null,
    "sparsity_config": {}, "transform_config": {}, "version": "0.10.2",
    "config_groups": {"group_0": {
      "format": null, "output_activations": null, "targets": ["Linear"],
      "input_activations": {"actorder": null, "block_structure": null, "dynamic": true, "group_size": null,
        "num_bits": 8, "observer": null, "observer_kwargs": {}, "strategy": "token", "symmetric": true},
      "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null,
        "num_bits": 8, "observer": "minmax", "observer_kwargs": {}, "symmetric": true}}}})");
  json["format"] = std::string(type) + "-quantized";
  Json& group = json["config_groups"]["group_0"];
  group["input_activations"]["type"] = type;
  group["weights"]["type"] = type;
  group["weights"]["strategy"] = strategy;
  return json;
}

ModelConfig config_of(const Json& quantization, const char* field = "quantization_config") {
  Json json = testing::tiny_config();
  json[field] = quantization;
  return testing::parsed(json);
}

WeightQuantization parsed(const Json& quantization, const char* field = "quantization_config") {
  return config_of(quantization, field).quantization.value();
}

std::string quantization_error(const Json& quantization, const char* field = "quantization_config") {
  Json json = testing::tiny_config();
  json[field] = quantization;
  const auto config = parse_model_config(json.dump(), "config.json");
  return config.ok() ? "no error" : config.status().message;
}

TEST(QuantizationConfig, CompressedTensorsFormsAreUnderstood) {
  struct Case {
    const char* type;
    const char* strategy;
    WeightType expected;
    bool one_scale;
  };
  for (const Case& c : {Case{"float", "tensor", WeightType::kFp8Channel, true},
                        Case{"float", "channel", WeightType::kFp8Channel, false},
                        Case{"int", "channel", WeightType::kInt8Channel, false},
                        Case{"int", "tensor", WeightType::kInt8Channel, true}}) {
    for (const char* field : {"quantization_config", "compression_config"}) {
      const WeightQuantization found = parsed(compressed(c.type, c.strategy), field);
      EXPECT_EQ(found.type, c.expected) << c.type << " " << c.strategy;
      EXPECT_EQ(found.one_scale, c.one_scale);
      EXPECT_EQ(found.scale_suffix, "_scale");
      EXPECT_TRUE(found.covers("model.layers.0.mlp.up_proj"));
      EXPECT_FALSE(found.covers("model.layers.3.mlp.gate"));
      EXPECT_FALSE(found.covers("lm_head"));
    }
  }
  Json blocks = compressed("float", "block");
  EXPECT_THAT(quantization_error(blocks),
              HasSubstr("weights.block_structure is missing; supported: [128, 128]"));
  for (const Json& size : {Json::array({128, 128}), Json("128x128")}) {
    blocks["config_groups"]["group_0"]["weights"]["block_structure"] = size;
    blocks["config_groups"]["group_0"]["input_activations"]["strategy"] = "group";
    EXPECT_EQ(parsed(blocks).type, WeightType::kFp8Block);
    EXPECT_EQ(parsed(blocks).scale_suffix, "_scale");
  }
}

TEST(QuantizationConfig, OneScalePerMatrixMayHaveStaticOrDynamicActivations) {
  for (const char* scheme : {"static", "dynamic"}) {
    const Json json = {{"quant_method", "fp8"},
                       {"activation_scheme", scheme},
                       {"ignored_layers", {"lm_head", "model.layers.1.mlp.gate"}}};
    const WeightQuantization found = parsed(json);
    EXPECT_EQ(found.type, WeightType::kFp8Channel);
    EXPECT_TRUE(found.one_scale);
    EXPECT_EQ(found.scale_suffix, "_scale");
    EXPECT_THAT(found.unquantised.entries(), ElementsAre("lm_head", "model.layers.1.mlp.gate"));
  }
}

TEST(QuantizationConfig, Int8FormsAreUnderstood) {
  EXPECT_EQ(parsed({{"quant_method", "w8a8_int8"}}).type, WeightType::kInt8Channel);
  EXPECT_EQ(parsed({{"quant_method", "w8a8_int8"}, {"is_dynamic", true}}).scale_suffix, "_scale");
  EXPECT_EQ(parsed({{"quant_method", "w8a8_fp8"}, {"activation_scheme", "dynamic"}}).type,
            WeightType::kFp8Channel);
  const WeightQuantization blocks = parsed({{"quant_method", "blockwise_int8"},
                                            {"activation_scheme", "dynamic"},
                                            {"weight_block_size", {128, 128}}});
  EXPECT_EQ(blocks.type, WeightType::kInt8Block);
  EXPECT_EQ(blocks.scale_suffix, "_scale_inv");
}

TEST(QuantizationConfig, UnsupportedSettingsAreNamed) {
  const auto with_weights = [](const char* field, Json value) {
    Json json = compressed("int", "channel");
    json["config_groups"]["group_0"]["weights"][field] = std::move(value);
    return quantization_error(json);
  };
  EXPECT_THAT(with_weights("num_bits", 4),
              HasSubstr("quantization_config.config_groups.group_0.weights.num_bits is 4; only 8"));
  EXPECT_THAT(with_weights("strategy", "group"),
              HasSubstr("weights.strategy is \"group\"; supported: tensor, channel, block"));
  EXPECT_THAT(with_weights("group_size", 128), HasSubstr("weights.group_size is 128; only null"));
  EXPECT_THAT(with_weights("symmetric", false), HasSubstr("weights.symmetric is false; only true"));
  EXPECT_THAT(with_weights("dynamic", true), HasSubstr("weights.dynamic is true; only false"));
  EXPECT_THAT(with_weights("actorder", "group"), HasSubstr("weights.actorder is \"group\"; only null"));
  EXPECT_THAT(with_weights("type", "bool"), HasSubstr("weights.type is \"bool\"; supported: float, int"));
  EXPECT_THAT(with_weights("type", "float"),
              HasSubstr("input_activations.type differs from the weights', which is float"));

  const auto with = [](const char* field, Json value) {
    Json json = compressed("float", "channel");
    json[field] = std::move(value);
    return quantization_error(json);
  };
  EXPECT_THAT(with("format", "pack-quantized"),
              HasSubstr("format is \"pack-quantized\"; supported: float-quantized, int-quantized"));
  EXPECT_THAT(with("kv_cache_scheme", {{"num_bits", 8}}),
              HasSubstr("kv_cache_scheme is an object; only null is supported"));
  EXPECT_THAT(with("sparsity_config", {{"format", "sparse-24-bitmask"}}),
              HasSubstr("sparsity_config.format is \"sparse-24-bitmask\"; supported: dense"));
  EXPECT_EQ(with("sparsity_config", {{"format", "dense"}}), "no error");
  EXPECT_THAT(with("transform_config", {{"config_groups", 1}}), HasSubstr("transform_config is an object"));
  EXPECT_THAT(with("quantization_status", "initialized"), HasSubstr("supported: compressed, frozen"));
  EXPECT_THAT(with("config_groups", Json::object()), HasSubstr("config_groups is missing or empty"));
  EXPECT_THAT(with("config_groups", {{"g", 1}}), HasSubstr("config_groups.g is 1; allowed: an object"));
  EXPECT_THAT(with("ignore", "lm_head"), HasSubstr("ignore is \"lm_head\"; allowed: a list"));
  EXPECT_THAT(with("ignore", {"lm_head", 7}), HasSubstr("ignore contains 7; allowed: module names"));
  EXPECT_THAT(with("ignore", {"re:(oops"}),
              HasSubstr("ignore contains \"re:(oops\", which is not a regular"));
  EXPECT_THAT(with("quant_method", "gptq"),
              HasSubstr("quant_method is \"gptq\"; supported: fp8, compressed"));

  Json targets = compressed("int", "channel");
  targets["config_groups"]["group_0"]["targets"] = {"Embedding"};
  EXPECT_THAT(quantization_error(targets),
              HasSubstr("targets contains \"Embedding\"; the only supported class"));
  targets["config_groups"]["group_0"].erase("targets");
  EXPECT_THAT(quantization_error(targets), HasSubstr("config_groups.group_0.targets is missing or empty"));
  Json two = compressed("int", "channel");
  two["config_groups"]["group_1"] = compressed("float", "channel")["config_groups"]["group_0"];
  EXPECT_THAT(quantization_error(two), HasSubstr("config_groups contains different schemes"));

  Json both = testing::tiny_config();
  both["quantization_config"] = both["compression_config"] = compressed("int", "channel");
  EXPECT_THAT(parse_model_config(both.dump(), "config.json").status().message,
              HasSubstr("compression_config and quantization_config are both given"));
  EXPECT_THAT(quantization_error({{"quant_method", "fp8"}, {"kv_cache_scheme", {{"num_bits", 8}}}}),
              HasSubstr("kv_cache_scheme is an object"));
  EXPECT_THAT(quantization_error({{"quant_method", "fp8"}, {"scale_fmt", "ue8m0"}}),
              HasSubstr("scale_fmt is \"ue8m0\", which needs weight_block_size"));
  EXPECT_THAT(quantization_error({{"quant_method", "blockwise_int8"}}),
              HasSubstr("weight_block_size is missing; supported: [128, 128]"));
  EXPECT_THAT(quantization_error({{"quant_method", "w8a8_int8"}, {"activation_scheme", "static"}}),
              HasSubstr("activation_scheme is \"static\"; supported: dynamic"));
}

TEST(QuantizationConfig, ListedModulesKeepTheTypeOfTheConfig) {
  Json json = compressed("int", "channel");
  json["ignore"] = {"re:.*kv_b_proj$", "model.layers.0.mlp", "lm_head"};
  const ModelConfig config = config_of(json);
  int64_t num_scales = 0, num_int8 = 0;
  for (const TensorSpec& spec : expected_tensors(config)) {
    const bool left_out =
        spec.name.find("kv_b_proj") != std::string::npos || spec.name.starts_with("model.layers.0.mlp.");
    num_scales += spec.role == TensorRole::kScale;
    num_int8 += spec.dtype == DType::kI8;
    if (left_out) {
      EXPECT_EQ(spec.dtype, DType::kBF16) << spec.name;
    } else if (spec.role == TensorRole::kLinear) {
      EXPECT_EQ(spec.dtype, DType::kI8) << spec.name;
    }
    if (spec.role == TensorRole::kScale) {
      EXPECT_THAT(spec.shape, ElementsAre(::testing::Gt(1), 1)) << spec.name;
    }
  }
  EXPECT_EQ(num_scales, num_int8);
  EXPECT_GT(num_int8, 10);

  json["ignore"] = Json::array();
  json["config_groups"]["group_0"]["targets"] = {"re:.*mlp.experts", "model.layers.0.self_attn.o_proj"};
  const WeightQuantization some = parsed(json);
  EXPECT_TRUE(some.covers("model.layers.1.mlp.experts.3.up_proj"));
  EXPECT_TRUE(some.covers("model.layers.0.self_attn.o_proj"));
  EXPECT_FALSE(some.covers("model.layers.1.self_attn.o_proj"));
}

TEST(QuantizationConfig, ConfigsWrittenByTheToolsAreReadBack) {
  EXPECT_EQ(published_formats().size(), 8U);
  for (const PublishedFormat& format : published_formats()) {
    const std::vector<std::string> left_out = {"re:.*\\.o_proj\"?$", "model.layers.1.mlp"};
    const auto text = with_quantization_config(testing::tiny_config().dump(), "config.json",
                                               quantization_config_json(format, left_out));
    ASSERT_TRUE(text.ok()) << format.name << ": " << text.status().message;
    const auto config = parse_model_config(*text, "config.json");
    ASSERT_TRUE(config.ok()) << format.name << ": " << config.status().message;
    const WeightQuantization& found = config->quantization.value();
    EXPECT_EQ(found.type, format.quantization.type) << format.name;
    EXPECT_EQ(found.one_scale, format.quantization.one_scale) << format.name;
    EXPECT_EQ(found.scale_suffix, format.quantization.scale_suffix) << format.name;
    EXPECT_THAT(found.unquantised.entries(), ElementsAre("lm_head", left_out[0], left_out[1]));
    EXPECT_EQ(find_published_format(format.name), &format);
  }
  EXPECT_EQ(find_published_format("int4"), nullptr);
  Json json = testing::tiny_config();
  json["compression_config"] = compressed("int", "channel");
  const auto plain = with_quantization_config(json.dump(), "config.json", "");
  EXPECT_EQ(Json::parse(*plain), testing::tiny_config());
}

TEST(ModuleList, NamesSelectWholeComponents) {
  const ModuleList list = *ModuleList::parse({"model.layers.0.self_attn", "mlp.gate", "lm_head"});
  EXPECT_TRUE(list.contains("model.layers.0.self_attn"));
  EXPECT_TRUE(list.contains("model.layers.0.self_attn.o_proj"));
  EXPECT_TRUE(list.contains("model.layers.5.mlp.gate"));
  EXPECT_TRUE(list.contains("lm_head"));
  EXPECT_FALSE(list.contains("model.layers.10.self_attn.o_proj"));
  EXPECT_FALSE(list.contains("model.layers.0.self_attn_norm"));
  EXPECT_FALSE(list.contains("model.layers.5.mlp.gate_proj"));
  EXPECT_FALSE(list.contains(""));
  EXPECT_FALSE(ModuleList().contains("lm_head"));
}

TEST(ModuleList, PatternsMatchFromTheStart) {
  const ModuleList list =
      *ModuleList::parse({"re:model\\.layers\\.\\d+\\.mlp\\.gate$", "re:.*(q|kv)_a_proj"});
  EXPECT_TRUE(list.contains("model.layers.12.mlp.gate"));
  EXPECT_FALSE(list.contains("model.layers.12.mlp.gate_proj"));
  EXPECT_FALSE(list.contains("x.model.layers.12.mlp.gate"));
  EXPECT_TRUE(list.contains("model.layers.0.self_attn.kv_a_proj_with_mqa"));
  EXPECT_FALSE(list.contains("model.layers.0.self_attn.kv_b_proj"));
}

TEST(ModuleList, HostileListsAreBounded) {
  EXPECT_THAT(ModuleList::parse({""}).status().message, HasSubstr("an entry of 0 bytes; allowed: 1 to 512"));
  EXPECT_FALSE(ModuleList::parse({std::string(513, 'x')}).ok());
  EXPECT_FALSE(ModuleList::parse(std::vector<std::string>(33, "re:x")).ok());
  EXPECT_TRUE(ModuleList::parse(std::vector<std::string>(5000, "model.layers.0.mlp")).ok());
  EXPECT_FALSE(ModuleList::parse({"re:["}).ok());
}

TEST(ModuleList, PatternsThatNeedTooManyStepsAreRefusedAndNamed) {
  for (const char* entry : {"re:(.+)+[!?]", "re:.*.*.*.*.*[!?]"}) {
    const auto list = ModuleList::parse({"lm_head", "re:.*mlp.gate$", entry});
    ASSERT_FALSE(list.ok()) << entry;
    EXPECT_THAT(list.status().message, HasSubstr(entry));
    EXPECT_THAT(list.status().message, HasSubstr("needs more than 4000 steps to match "));
  }
  // Published patterns stay far below the limit.
  for (const char* entry : {"re:.*mlp.gate$", "re:.*self_attn.(q|kv)_a_proj.*", "re:.*lm_head", "re:visual.*",
                            "re:model\\.layers\\.(\\d+)\\.mlp\\..*", "re:.*mlp\\.experts\\..*down.*",
                            "re:.*(gate|up|down)_proj$"})
    EXPECT_TRUE(ModuleList::parse({entry}).ok()) << entry;

  // Only this name needs many steps.
  const ModuleList slow = *ModuleList::parse({"re:(b+)+$"});
  const std::string name = std::string(100, 'b') + "c";
  try {
    slow.contains(name);
    ADD_FAILURE() << "all 2^100 ways were tried";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"re:(b+)+$\" needs more than 4000 steps to match " + name));
  }
  EXPECT_TRUE(slow.contains("bbb"));
  EXPECT_TRUE(slow.contains("bbb"));  // still the cached answer
  EXPECT_FALSE(slow.contains("lm_head"));
  EXPECT_FALSE(slow.contains("lm_head"));
}

// The tests below are about --quantization.

using testing::FileTensors;

std::string flag_error(ModelConfig config, LoadQuantization flag) {
  const auto applied = apply_quantization_flag(config, flag, {});
  return applied.ok() ? "no error" : applied.status().message;
}

TEST(QuantizationFlag, MustAgreeWithTheConfig) {
  const ModelConfig block = config_of(testing::fp8_config_field());
  const ModelConfig tensor = config_of({{"quant_method", "fp8"}});
  const ModelConfig channel = config_of(compressed("float", "channel"));
  const ModelConfig int8 = config_of(compressed("int", "channel"));
  const ModelConfig int8_block =
      config_of({{"quant_method", "blockwise_int8"}, {"weight_block_size", {128, 128}}});
  using enum LoadQuantization;
  EXPECT_EQ(flag_error(block, kFp8), "no error");
  EXPECT_EQ(flag_error(tensor, kFp8), "no error");
  EXPECT_EQ(flag_error(tensor, kW8A8Fp8), "no error");
  EXPECT_EQ(flag_error(channel, kW8A8Fp8), "no error");
  EXPECT_EQ(flag_error(int8, kW8A8Int8), "no error");
  EXPECT_EQ(flag_error(int8_block, kBlockwiseInt8), "no error");
  EXPECT_EQ(flag_error(testing::parsed(testing::tiny_config()), kW8A8Int8), "no error");
  EXPECT_EQ(flag_error(int8, kNone), "no error");
  EXPECT_EQ(flag_error(int8, kFp8),
            "--quantization fp8 means fp8 e4m3, 128x128 blocks, but the checkpoint is stored as int8, one "
            "scale per row; allowed: w8a8_int8, or leave the flag out");
  EXPECT_THAT(flag_error(block, kW8A8Fp8), HasSubstr("stored as fp8 e4m3, 128x128 blocks; allowed: fp8,"));
  EXPECT_THAT(flag_error(channel, kFp8),
              HasSubstr("stored as fp8 e4m3, one scale per row; allowed: w8a8_fp8,"));
  EXPECT_THAT(flag_error(tensor, kW8A8Int8),
              HasSubstr("one scale per matrix; allowed: fp8, w8a8_fp8, or leave"));
  EXPECT_THAT(flag_error(int8, kBlockwiseInt8), HasSubstr("means int8, 128x128 blocks"));
}

TEST(Quantization, DescriptionsCountTheLinearsThatAConfigLeavesOut) {
  const auto described = [](nlohmann::json left_out) {
    nlohmann::json field = testing::fp8_config_field();
    field["ignored_layers"] = std::move(left_out);
    return describe(config_of(field), LoadQuantization::kNone);
  };
  EXPECT_EQ(described(nlohmann::json::array({"lm_head"})), "fp8 e4m3, 128x128 blocks");
  EXPECT_THAT(described({"model.layers.0.self_attn.o_proj"}),
              ::testing::MatchesRegex("fp8 e4m3, 128x128 blocks; 1 of [0-9]+ linears are not quantised"));
  EXPECT_EQ(described({"re:.*"}), "none (config.json leaves every linear out of fp8 e4m3, 128x128 blocks)");
}

TEST(QuantizationFlag, WordsAreThoseOfSglang) {
  for (const char* word : {"fp8", "w8a8_fp8", "w8a8_int8", "blockwise_int8"})
    EXPECT_STREQ(to_string(*parse_load_quantization(word)), word);
  EXPECT_THAT(parse_load_quantization("awq").status().message,
              HasSubstr("\"awq\" is unknown; allowed: fp8, w8a8_fp8, w8a8_int8, blockwise_int8"));
}

TEST(QuantizationFlag, FilesWithoutAConfigRevealTheirFormat) {
  const ModelConfig plain = testing::parsed(testing::tiny_config());
  const auto applied = [&](const FileTensors& tensors, LoadQuantization flag) -> Result<ModelConfig> {
    testing::TempDir dir;
    testing::write_file(dir.path() / "model.safetensors", testing::safetensors_file(tensors));
    ModelConfig config = plain;
    HADAL_RETURN_IF_ERROR(apply_quantization_flag(config, flag, dir.path()));
    return config;
  };
  using enum LoadQuantization;
  for (const PublishedFormat& format : published_formats()) {
    ModelConfig stored = plain;
    stored.quantization = format.quantization;
    const FileTensors tensors = testing::tensors_of(stored);
    for (const LoadQuantization flag : {kFp8, kW8A8Fp8, kW8A8Int8, kBlockwiseInt8}) {
      const auto found = applied(tensors, flag);
      const bool same = flag_error(stored, flag) == "no error";
      ASSERT_EQ(found.ok(), same) << format.name << " " << to_string(flag);
      if (!same) {
        EXPECT_THAT(found.status().message,
                    HasSubstr("but the checkpoint is stored as " + describe(format.quantization)));
        continue;
      }
      EXPECT_EQ(found->quantization->type, format.quantization.type);
      EXPECT_EQ(found->quantization->one_scale, format.quantization.one_scale);
      EXPECT_EQ(found->quantization->scale_suffix, format.quantization.scale_suffix);
    }
  }
  EXPECT_FALSE(applied(testing::tensors_of(plain), kW8A8Int8)->quantization);
  FileTensors bare = testing::tensors_of(plain);
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  bare[name] = {"I8", {144, 256}, std::string(144 * 256, '\1')};
  EXPECT_THAT(applied(bare, kW8A8Int8).status().message,
              HasSubstr(name + " is I8 but has neither " + name + "_scale nor " + name + "_scale_inv"));
  ModelConfig untouched = plain;
  EXPECT_TRUE(apply_quantization_flag(untouched, kW8A8Int8, "/nowhere").ok());
  EXPECT_FALSE(untouched.quantization);
}

}  // namespace
}  // namespace hadal
