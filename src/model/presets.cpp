#include "model/presets.h"

#include <fmt/format.h>

#include "model/config.h"

namespace hadal {
namespace {

// Preset has the differences between the members of the family; everything else is in config_text.
struct Preset {
  const char* name;
  Architecture architecture;
  int hidden_size;
  int intermediate_size;
  int moe_intermediate_size;
  int num_hidden_layers;
  int num_attention_heads;
  int q_lora_rank;  // 0: null
  int n_routed_experts;
  int n_shared_experts;
  int num_experts_per_tok;
  int n_group;
  int topk_group;
  const char* topk_method;
  const char* routed_scaling_factor;
  int first_k_dense_replace;
  int vocab_size;
  int bos_token_id;    // eos is the next id
  const char* mscale;  // and mscale_all_dim
  const char* quantization_config;
};

constexpr const char* kFp8 =
    R"({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]})";
constexpr const char* kFp8Ue8m0 =
    R"({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]})";

constexpr const char* kFp8Tensor =
    R"({"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"})";
constexpr const char* kInt8Channel = R"({"quant_method": "w8a8_int8"})";
constexpr const char* kInt8Block =
    R"({"activation_scheme": "dynamic", "quant_method": "blockwise_int8", "weight_block_size": [128, 128]})";

using enum Architecture;

// clang-format off
constexpr Preset kLite = {"v2-lite", kDeepseekV2, 2048, 10944, 1408, 27, 16, 0, 64, 2, 6, 1, 1, "greedy", "1.0",
                          1, 102400, 100000, "0.707", nullptr};
constexpr Preset kV2 = {"v2", kDeepseekV2, 5120, 12288, 1536, 60, 128, 1536, 160, 2, 6, 8, 3, "group_limited_greedy", "16.0",
                        1, 102400, 100000, "0.707", nullptr};
constexpr Preset kV3 = {"v3", kDeepseekV3, 7168, 18432, 2048, 61, 128, 1536, 256, 1, 8, 8, 4, "noaux_tc", "2.5",
                        3, 129280, 0, "1.0", kFp8};
// clang-format on

constexpr Preset named(Preset preset, const char* name) {
  preset.name = name;
  return preset;
}

constexpr Preset stored(Preset preset, const char* name, const char* quantization_config) {
  preset.name = name;
  preset.quantization_config = quantization_config;
  return preset;
}

constexpr Preset v2_5() {
  Preset preset = named(kV2, "v2.5");
  preset.mscale = "1.0";
  return preset;
}

constexpr Preset v3_2() {
  Preset preset = stored(kV3, "v3.2", kFp8Ue8m0);
  preset.architecture = kDeepseekV32;
  return preset;
}

// The last three are published conversions of other models.
constexpr Preset kPresets[] = {kLite,
                               named(kLite, "coder-v2-lite"),
                               kV2,
                               v2_5(),
                               kV3,
                               named(kV3, "r1"),
                               stored(kV3, "v3.1", kFp8Ue8m0),
                               v3_2(),
                               stored(kLite, "coder-v2-lite-fp8", kFp8Tensor),
                               stored(kV3, "r1-channel-int8", kInt8Channel),
                               stored(kV3, "r1-block-int8", kInt8Block)};

std::string config_text(const Preset& p) {
  std::string text = "{\n";
  const auto field = [&](const char* name, const auto& value) {
    text += fmt::format("  \"{}\": {},\n", name, value);
  };
  const auto word = [&](const char* name, const char* value) { field(name, fmt::format("\"{}\"", value)); };
  const bool v2 = p.architecture == kDeepseekV2;
  const bool v3_2 = p.architecture == kDeepseekV32;
  field("architectures", fmt::format(R"(["{}"])", to_string(p.architecture)));
  field("attention_bias", "false");
  field("bos_token_id", p.bos_token_id);
  field("eos_token_id", p.bos_token_id + 1);
  field("first_k_dense_replace", p.first_k_dense_replace);
  word("hidden_act", "silu");
  field("hidden_size", p.hidden_size);
  if (v3_2) {
    field("index_head_dim", 128);
    field("index_n_heads", 64);
    field("index_topk", 2048);
  }
  field("intermediate_size", p.intermediate_size);
  field("kv_lora_rank", 512);
  field("max_position_embeddings", 163840);
  word("model_type", v2 ? "deepseek_v2" : v3_2 ? "deepseek_v32" : "deepseek_v3");
  field("moe_intermediate_size", p.moe_intermediate_size);
  field("moe_layer_freq", 1);
  field("n_group", p.n_group);
  field("n_routed_experts", p.n_routed_experts);
  field("n_shared_experts", p.n_shared_experts);
  field("norm_topk_prob", !v2);
  field("num_attention_heads", p.num_attention_heads);
  field("num_experts_per_tok", p.num_experts_per_tok);
  field("num_hidden_layers", p.num_hidden_layers);
  field("num_key_value_heads", p.num_attention_heads);
  if (!v2) field("num_nextn_predict_layers", 1);
  if (p.q_lora_rank > 0) {
    field("q_lora_rank", p.q_lora_rank);
  } else {
    field("q_lora_rank", "null");
  }
  field("qk_nope_head_dim", 128);
  field("qk_rope_head_dim", 64);
  if (p.quantization_config != nullptr) field("quantization_config", p.quantization_config);
  field("rms_norm_eps", "1e-06");
  field("rope_scaling", fmt::format(R"({{"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": {0}, )"
                                    R"("mscale_all_dim": {0}, "original_max_position_embeddings": 4096, )"
                                    R"("type": "yarn"}})",
                                    p.mscale));
  field("rope_theta", 10000);
  field("routed_scaling_factor", p.routed_scaling_factor);
  word("scoring_func", v2 ? "softmax" : "sigmoid");
  field("tie_word_embeddings", "false");
  field("topk_group", p.topk_group);
  word("topk_method", p.topk_method);
  word("torch_dtype", "bfloat16");
  field("use_cache", "true");
  field("v_head_dim", 128);
  text += fmt::format("  \"vocab_size\": {}\n}}\n", p.vocab_size);
  return text;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

Result<std::string> preset_config_json(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return config_text(preset);
  }
  return invalid_argument("preset \"{}\" is unknown; allowed: {}", name, fmt::join(preset_names(), ", "));
}

}  // namespace hadal
