#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/nearest_word.h"
#include "kernels/params/indexer.h"
#include "model/config.h"
#include "model/config_json.h"
#include "model/config_quantization.h"

namespace hadal {
namespace {

using config_json::ConfigReader;
using config_json::describe;
using config_json::Json;

// The bounds are generous: a few times the sizes of the largest published model. They are small enough that
// no product of them overflows, and that listing the tensors of a hostile config stays cheap.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 22;
constexpr int64_t kMaxPositions = int64_t{1} << 26;
constexpr int64_t kMaxLayers = 512;
constexpr int64_t kMaxExperts = 1024;
// Limits the experts per token, and the groups from which they are chosen, to the capacity of the gate's
// lists.
constexpr int64_t kMaxChosen = 64;
constexpr int64_t kMaxExpertsInAll = 65536;
constexpr double kMinTheta = 1.001;  // YaRN divides by its logarithm

void read_architecture(ConfigReader& in, ModelConfig& config) {
  constexpr const char* kSupported = "DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, DeepseekV32ForCausalLM";
  const Json* list = in.find("architectures");
  if (list == nullptr || !list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
    return in.fail("architectures", "is {}; supported: a list of one of {}",
                   list == nullptr ? std::string("missing") : describe(*list), kSupported);
  }
  const std::string& name = (*list)[0].get_ref<const std::string&>();
  for (const Architecture candidate :
       {Architecture::kDeepseekV2, Architecture::kDeepseekV3, Architecture::kDeepseekV32}) {
    if (name != to_string(candidate)) continue;
    config.architecture = candidate;
    return;
  }
  in.fail("architectures", "is {}; supported: {}", describe(*list), kSupported);
}

void read_sizes(ConfigReader& in, ModelConfig& config) {
  config.hidden_size = in.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = in.integer("intermediate_size", 1, kMaxWidth);
  config.num_hidden_layers = in.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = in.integer("num_attention_heads", 1, 1024);
  config.vocab_size = in.integer("vocab_size", 1, kMaxVocab);
  config.max_position_embeddings = in.integer("max_position_embeddings", 1, kMaxPositions);
  // The kernels and the KV record rely on these four.
  in.fixed("kv_lora_rank", kKvLoraRank);
  in.fixed("qk_nope_head_dim", kQkNopeHeadDim);
  in.fixed("qk_rope_head_dim", kQkRopeHeadDim);
  in.fixed("v_head_dim", kVHeadDim);
  config.q_lora_rank = in.integer("q_lora_rank", 0, kMaxWidth, 0);
  config.rms_norm_eps = in.number("rms_norm_eps", 1e-12, 1.0, 1e-6);
  config.tie_word_embeddings = in.boolean("tie_word_embeddings", false);
  config.num_nextn_predict_layers = in.integer("num_nextn_predict_layers", 0, 1, 0);
  in.one_of("hidden_act", {"silu"}, 0);
  if (in.boolean("attention_bias", false)) in.fail("attention_bias", "is true; only false is supported");
  if (!in.boolean("rope_interleave", true)) in.fail("rope_interleave", "is false; only true is supported");
}

// Reads the fields of V3.2's indexer, whose input is the query's low-rank latent.
void read_indexer(ConfigReader& in, ModelConfig& config) {
  if (config.architecture != Architecture::kDeepseekV32) return;
  if (in.ok() && config.q_lora_rank == 0) {
    const Json* rank = in.find("q_lora_rank");
    in.fail("q_lora_rank",
            "is {}; allowed: a whole number from 1 to {}, because the indexer reads that latent",
            rank == nullptr ? std::string("missing") : describe(*rank), kMaxWidth);
  }
  constexpr int64_t kHeads[] = {16, 32, 48, 64};
  static_assert(kHeads[3] == kMaxIndexHeads);
  const Json* heads = in.find("index_n_heads");
  const bool is_number = heads != nullptr && heads->is_number_integer();
  const auto* found = std::find_if(std::begin(kHeads), std::end(kHeads),
                                   [&](int64_t allowed) { return is_number && *heads == allowed; });
  if (found == std::end(kHeads)) {
    in.fail("index_n_heads", "is {}; allowed: {}",
            heads == nullptr ? std::string("missing") : describe(*heads), fmt::join(kHeads, ", "));
  } else {
    config.index_n_heads = *found;
  }
  in.fixed("index_head_dim", kIndexHeadDim);
  config.index_topk = in.integer("index_topk", 1, kMaxIndexTopk);
  if (in.boolean("indexer_rope_interleave", false))
    in.fail("indexer_rope_interleave", "is true; only false is supported");
}

void read_experts(ConfigReader& in, ModelConfig& config) {
  const bool v2 = config.architecture == Architecture::kDeepseekV2;
  const int64_t experts = config.n_routed_experts = in.integer("n_routed_experts", 0, kMaxExperts, 0);
  const bool moe = experts > 0;
  config.moe_intermediate_size = moe ? in.integer("moe_intermediate_size", 1, kMaxWidth)
                                     : in.integer("moe_intermediate_size", 0, kMaxWidth, 0);
  config.n_shared_experts = in.integer("n_shared_experts", 0, 64, 0);
  const int64_t top_k = config.num_experts_per_tok =
      moe ? in.integer("num_experts_per_tok", 1, std::min(experts, kMaxChosen))
          : in.integer("num_experts_per_tok", 0, kMaxExperts, 0);
  config.n_group = in.integer("n_group", 1, kMaxExperts, 1);
  config.topk_group = in.integer("topk_group", 1, std::min(config.n_group, kMaxChosen), 1);
  config.first_k_dense_replace = in.integer("first_k_dense_replace", 0, kMaxLayers, 0);
  config.moe_layer_freq = in.integer("moe_layer_freq", 1, kMaxLayers, 1);
  // If these fields are absent, the architecture's published modelling code determines their values.
  config.norm_topk_prob = in.boolean("norm_topk_prob", !v2);
  config.routed_scaling_factor = in.number("routed_scaling_factor", 1e-6, 1e6, v2 ? 1.0 : 2.5);
  config.scoring_func =
      static_cast<ScoringFunc>(in.one_of("scoring_func", {"softmax", "sigmoid"}, v2 ? 0 : 1));
  config.topk_method = static_cast<TopkMethod>(
      in.one_of("topk_method", {"greedy", "group_limited_greedy", "noaux_tc"}, v2 ? 0 : 2));
  if (!moe || !in.ok()) return;

  const bool noaux = config.topk_method == TopkMethod::kNoauxTc;
  if (noaux != (config.scoring_func == ScoringFunc::kSigmoid)) {
    in.fail("topk_method",
            "and scoring_func cannot be combined; supported: softmax with greedy or group_limited_greedy, "
            "sigmoid with noaux_tc");
  }
  if (config.num_hidden_layers * experts > kMaxExpertsInAll) {
    in.fail("n_routed_experts", "is {} in each of {} layers; at most {} in total are supported", experts,
            config.num_hidden_layers, kMaxExpertsInAll);
  }
  if (experts % config.n_group != 0) {
    return in.fail("n_group", "is {}; it must divide n_routed_experts {}", config.n_group, experts);
  }
  if (config.topk_method == TopkMethod::kGreedy) return;  // does not use groups
  const int64_t group_size = experts / config.n_group;
  if (noaux && group_size < 2) {  // a group's score is the sum of its two best
    in.fail("n_group", "is {} for {} experts; noaux_tc needs at least two experts per group", config.n_group,
            experts);
  }
  if (top_k > config.topk_group * group_size) {
    in.fail("num_experts_per_tok", "is {}; at most {} ({} groups of {} are kept)", top_k,
            config.topk_group * group_size, config.topk_group, group_size);
  }
}

// The older field is rope_scaling; transformers 5 writes rope_parameters, which contains rope_theta too.
void read_rope(ConfigReader& in, std::string_view source, ModelConfig& config) {
  config.rope_theta = in.number("rope_theta", kMinTheta, 1e12, 10000.0);
  const char* name = "rope_scaling";
  const Json* object = in.object(name);
  const Json* parameters = in.object("rope_parameters");
  if (object == nullptr && parameters != nullptr) {
    name = "rope_parameters";
    object = parameters;
  }
  if (object == nullptr) return;
  ConfigReader rope(*object, source, fmt::format("{}.", name));
  config.rope_theta = rope.number("rope_theta", kMinTheta, 1e12, config.rope_theta);
  const char* type_key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  if (rope.one_of(type_key, {"default", "yarn"}) == 1) {
    RopeScaling& yarn = config.rope_scaling.emplace();
    yarn.factor = rope.number("factor", 1.0, 1e6);
    yarn.original_max_position_embeddings =
        rope.integer("original_max_position_embeddings", 1, kMaxPositions);
    yarn.beta_fast = rope.number("beta_fast", 1e-3, 1e6, yarn.beta_fast);
    yarn.beta_slow = rope.number("beta_slow", 1e-3, 1e6, yarn.beta_slow);
    yarn.mscale = rope.number("mscale", 0.0, 100.0, yarn.mscale);
    yarn.mscale_all_dim = rope.number("mscale_all_dim", 0.0, 100.0, yarn.mscale_all_dim);
    if (yarn.beta_slow >= yarn.beta_fast) {
      rope.fail("beta_slow", "is {}; it must be below beta_fast {}", yarn.beta_slow, yarn.beta_fast);
    }
    if (const Json* factor = rope.find("attention_factor")) {
      rope.fail("attention_factor", "is {}; only null is supported (mscale is used)", describe(*factor));
    }
    if (!rope.boolean("truncate", true)) rope.fail("truncate", "is false; only true is supported");
  }
  if (!rope.ok()) in.fail(rope.status());
}

void read_dtype(ConfigReader& in, ModelConfig& config) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const bool has_torch_dtype = in.find("torch_dtype") != nullptr;
  const bool has_dtype = in.find("dtype") != nullptr;
  // Config files without either field come from tools that remove it; the family is published in bfloat16.
  config.torch_dtype =
      kTypes[in.one_of(has_dtype ? "dtype" : "torch_dtype", {"float32", "float16", "bfloat16"}, 2)];
  if (has_dtype && has_torch_dtype &&
      kTypes[in.one_of("torch_dtype", {"float32", "float16", "bfloat16"}, 2)] != config.torch_dtype) {
    in.fail("torch_dtype", "differs from dtype, which is {}", to_string(config.torch_dtype));
  }
}

void read_token_ids(ConfigReader& in, ModelConfig& config) {
  constexpr int64_t kMaxId = INT32_MAX;  // not vocab_size, because an override may reduce the vocabulary
  if (in.find("bos_token_id") != nullptr) config.bos_token_id = in.integer("bos_token_id", 0, kMaxId);
  const Json* eos = in.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    config.eos_token_ids = {in.integer("eos_token_id", 0, kMaxId)};
    return;
  }
  for (const Json& id : *eos) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{kMaxId}) {
      return in.fail("eos_token_id", "contains {}; allowed: whole numbers from 0 to {}", describe(id),
                     kMaxId);
    }
    config.eos_token_ids.push_back(id.get<int64_t>());
  }
}

// Top-level fields of `override` replace those of `json`. If `override` has one of two spellings of a field,
// the other spelling is removed.
void apply_override(Json& json, Json override_json) {
  for (auto& [key, value] : override_json.items()) {
    if (key == "rope_scaling") json.erase("rope_parameters");
    if (key == "rope_parameters") json.erase("rope_scaling");
    if (key == "dtype") json.erase("torch_dtype");
    if (key == "torch_dtype") json.erase("dtype");
    if (key == "rope_theta" && json.contains("rope_parameters") && json["rope_parameters"].is_object()) {
      json["rope_parameters"].erase("rope_theta");
    }
    json[key] = std::move(value);
  }
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view json, std::string_view source,
                                       std::string_view override_json) {
  HADAL_ASSIGN_OR_RETURN(Json fields, config_json::parse_object(json, source));
  std::vector<std::string> new_fields;
  if (!override_json.empty()) {
    constexpr const char* kOverrideSource = "--json-model-override-args";
    HADAL_ASSIGN_OR_RETURN(Json overrides, config_json::parse_object(override_json, kOverrideSource));
    for (const auto& [key, value] : overrides.items()) {
      if (!fields.contains(key)) new_fields.push_back(key);
    }
    apply_override(fields, std::move(overrides));
  }

  ModelConfig config;
  ConfigReader in(fields, source);
  read_architecture(in, config);
  if (!in.ok()) return in.status();  // defaults below depend on these fields
  read_sizes(in, config);
  read_indexer(in, config);
  read_experts(in, config);
  read_rope(in, source, config);
  config_json::read_quantization(in, source, config);
  read_dtype(in, config);
  read_token_ids(in, config);
  if (!in.ok()) return in.status();

  for (const std::string& field : new_fields) {
    if (std::find(in.known().begin(), in.known().end(), field) != in.known().end()) continue;
    const std::vector<std::string_view> known(in.known().begin(), in.known().end());
    const std::string_view near = nearest_word(field, known);
    return invalid_argument("--json-model-override-args: unknown field {}{}", describe(Json(field)),
                            near.empty() ? std::string() : fmt::format("; the nearest is {}", near));
  }
  return config;
}

Result<std::string> with_quantization_config(std::string_view json, std::string_view source,
                                             std::string_view quantization_config) {
  HADAL_ASSIGN_OR_RETURN(Json fields, config_json::parse_object(json, source));
  fields.erase("quantization_config");
  fields.erase("compression_config");
  if (!quantization_config.empty()) {
    HADAL_ASSIGN_OR_RETURN(Json quantization,
                           config_json::parse_object(quantization_config, "quantization_config"));
    fields["quantization_config"] = std::move(quantization);
  }
  return fields.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hadal
