// Makes small models whose sizes cannot be divided evenly: 11 blocks of 128 in dense layers, experts of less
// than three blocks, an odd vocabulary, and three heads for each of four ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/shard.h"
#include "model/weights_loader.h"
#include "tests/model/checkpoint_files.h"
#include "tests/sanitized.h"

namespace hadal::testing {

// Returns a V3-like model with 8 heads, for "v3.2" the same with an indexer, or for "v2-lite" one with 12
// heads, two shared experts and no low-rank query.
inline Json uneven_config(const std::string& family) {
  Json json = tiny_config();
  json.update(Json::parse(R"({"hidden_size": 136, "intermediate_size": 1408, "moe_intermediate_size": 336,
    "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 72, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "vocab_size": 581})"));
  if (family == "v3") return json;
  if (family == "v3.2") {
    json.update(Json::parse(R"({"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 16,
      "index_head_dim": 128, "index_topk": 5})"));
    return json;
  }
  json.update(Json::parse(R"({"architectures": ["DeepseekV2ForCausalLM"], "num_attention_heads": 12,
    "num_key_value_heads": 12, "q_lora_rank": null, "n_shared_experts": 2, "scoring_func": "softmax",
    "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": false})"));
  return json;
}

inline const std::vector<std::string> kFamilies = {"v3", "v2-lite", "v3.2"};

// Format describes how a model's weights are stored in memory.
struct Format {
  std::string name;
  DType compute = DType::kBF16;
  LoadQuantization at_load = LoadQuantization::kNone;
  const char* stored = nullptr;  // a published format; null: torch_dtype
  std::vector<std::string> left_out = {};
};

inline const std::vector<Format> kFormats = {
    {.name = "bf16"},
    {.name = "f32", .compute = DType::kF32},
    {.name = "fp8 blocks", .at_load = LoadQuantization::kFp8},
    {.name = "fp8 channels", .at_load = LoadQuantization::kW8A8Fp8},
    {.name = "int8 channels", .at_load = LoadQuantization::kW8A8Int8},
    {.name = "int8 blocks", .at_load = LoadQuantization::kBlockwiseInt8},
    {.name = "stored fp8 blocks, an MLP's matrices of two kinds",
     .stored = "fp8",
     .left_out = {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.experts.2.up_proj",
                  "model.layers.1.mlp.experts.5.gate_proj", "model.layers.1.mlp.experts.5.up_proj",
                  "model.layers.1.mlp.experts.5.down_proj", "model.layers.1.self_attn.o_proj"}},
    {.name = "stored fp8, one scale per matrix", .stored = "fp8-tensor"},
};

// Returns the config as the format stores it, in float32 if the compute type is.
inline Json json_in(Json json, const Format& format) {
  if (format.compute == DType::kF32) json["torch_dtype"] = "float32";
  if (format.stored != nullptr) {
    json["quantization_config"] =
        Json::parse(quantization_config_json(*find_published_format(format.stored), format.left_out));
  }
  return json;
}
inline ModelConfig config_in(const Json& json, const Format& format) {
  return parsed(json_in(json, format));
}

inline WeightLoadOptions options_of(const Format& format) {
  return {.format = LoadFormat::kDummy,
          .quantization = format.at_load,
          .compute_dtype = format.compute,
          .seed = 3};
}

// Returns the splits of up to 8 ranks, or under a sanitizer 4, that a model allows.
inline std::vector<ModelSplit> splits_of(const ModelConfig& config, int64_t max_ranks = kSanitized ? 4 : 8) {
  std::vector<ModelSplit> splits;
  for (int64_t tp = 1; tp <= max_ranks; ++tp) {
    for (int64_t ep = 1; ep <= tp; ++ep) {
      if (check_split(config, {tp, ep}).ok()) splits.push_back({tp, ep});
    }
  }
  return splits;
}

}  // namespace hadal::testing
