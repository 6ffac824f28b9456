#include "model/draft_layer.h"

#include <fmt/format.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "model/checkpoint.h"
#include "model/config_json.h"
#include "model/other_models.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;
using config_json::Json;

constexpr const char* kExportArchitecture = "DeepseekV3ForCausalLMNextN";

std::string eh_proj_of(int64_t layer_idx) {
  return layer_prefix(layer_idx) + "eh_proj.weight";
}

// Parses the text of a config.json so that the NextN layer is model.layers.<num_hidden_layers> in both forms.
// `checkpoint` contains the weights, or is null if they are not read.
Result<ModelConfig> parse_draft_config(std::string_view text, const std::string& source,
                                       const Checkpoint* checkpoint) {
  HADAL_RETURN_IF_ERROR(refuse_other_model(text, source));
  HADAL_ASSIGN_OR_RETURN(const Json fields, config_json::parse_object(text, source));
  const auto is = [&](const char* name, const Json& value) {
    return fields.contains(name) && fields[name] == value;
  };
  const bool is_export = is("architectures", Json::array({kExportArchitecture}));
  const bool is_alone = is("num_hidden_layers", 1) &&
                        (is_export || (checkpoint != nullptr && checkpoint->find(eh_proj_of(0)) != nullptr));
  Json overrides = Json::object();
  if (is_export) {
    const bool has_indexer = fields.contains("index_topk") && !fields["index_topk"].is_null();
    overrides["architectures"] =
        Json::array({to_string(has_indexer ? Architecture::kDeepseekV32 : Architecture::kDeepseekV3)});
  }
  if (is_export || is_alone) overrides["num_nextn_predict_layers"] = 1;
  if (is_alone) overrides["first_k_dense_replace"] = 0;
  HADAL_ASSIGN_OR_RETURN(
      ModelConfig config,
      parse_model_config(text, source, overrides.empty() ? std::string() : overrides.dump()));
  if (is_alone) {
    config.num_hidden_layers = 0;
    if (config.quantization) {
      // The lists have the names of the layer's original checkpoint, so the stored tensors decide instead.
      config.quantization->targets = {};
      config.quantization->unquantised = {};
    }
  }
  return config;
}

Result<DraftLayer> read(const DraftRequest& request) {
  const fs::path config_path = request.dir / "config.json";
  std::error_code ignored;
  if (!fs::exists(config_path, ignored)) return not_found("{} has no config.json", request.dir.string());
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(config_path, kMaxConfigBytes));
  std::optional<Checkpoint> checkpoint;
  if (request.format != LoadFormat::kDummy) {
    HADAL_ASSIGN_OR_RETURN(checkpoint, Checkpoint::open(request.dir));
  }
  auto parsed = parse_draft_config(text, config_path.string(), checkpoint ? &*checkpoint : nullptr);
  if (!parsed.ok()) {
    Status status = parsed.status();
    if (status.code == StatusCode::kInvalidArgument)
      status.code = StatusCode::kDataLoss;  // the file is wrong
    return status;
  }
  DraftLayer draft{.dir = request.dir, .config = std::move(parsed).value(), .format = request.format};
  ModelConfig& config = draft.config;
  if (config.num_nextn_predict_layers == 0) {
    return invalid_argument("{}: num_nextn_predict_layers is 0, so that it has no NextN layer; allowed: 1",
                            config_path.string());
  }
  if (checkpoint) {
    if (const std::string name = eh_proj_of(config.num_hidden_layers); checkpoint->find(name) == nullptr)
      return data_loss("{}: has no tensor {}, and so no NextN layer", request.dir.string(), name);
    if (!config.quantization) {
      HADAL_ASSIGN_OR_RETURN(config.quantization, undeclared_quantization(config, request.dir));
    }
  }
  draft.quantization = request.quantization.value_or(config.quantization ? LoadQuantization::kNone
                                                                         : request.model_quantization);
  HADAL_RETURN_IF_ERROR(apply_quantization_flag(config, draft.quantization, {}, kDraftQuantizationFlag));
  return draft;
}

// Field is a value in which a draft layer and its model must agree.
struct Field {
  const char* name;
  std::string (*text)(const ModelConfig& config);
};

template <auto kMember>
std::string text_of(const ModelConfig& config) {
  return fmt::format("{}", config.*kMember);
}

template <auto kMember>
std::string yarn_text_of(const ModelConfig& config) {
  return config.rope_scaling ? fmt::format("{}", (*config.rope_scaling).*kMember) : "absent";
}

constexpr Field kFields[] = {
    {"hidden_size", text_of<&ModelConfig::hidden_size>},
    {"vocab_size", text_of<&ModelConfig::vocab_size>},
    {"num_attention_heads", text_of<&ModelConfig::num_attention_heads>},
    {"q_lora_rank", text_of<&ModelConfig::q_lora_rank>},
    {"index_n_heads", text_of<&ModelConfig::index_n_heads>},
    {"index_topk", text_of<&ModelConfig::index_topk>},
    {"n_routed_experts", text_of<&ModelConfig::n_routed_experts>},
    {"n_shared_experts", text_of<&ModelConfig::n_shared_experts>},
    {"num_experts_per_tok", text_of<&ModelConfig::num_experts_per_tok>},
    {"moe_intermediate_size", text_of<&ModelConfig::moe_intermediate_size>},
    {"n_group", text_of<&ModelConfig::n_group>},
    {"topk_group", text_of<&ModelConfig::topk_group>},
    {"scoring_func",
     [](const ModelConfig& config) -> std::string {
       return config.scoring_func == ScoringFunc::kSoftmax ? "softmax" : "sigmoid";
     }},
    {"topk_method",
     [](const ModelConfig& config) -> std::string {
       if (config.topk_method == TopkMethod::kGreedy) return "greedy";
       return config.topk_method == TopkMethod::kNoauxTc ? "noaux_tc" : "group_limited_greedy";
     }},
    {"norm_topk_prob", text_of<&ModelConfig::norm_topk_prob>},
    {"routed_scaling_factor", text_of<&ModelConfig::routed_scaling_factor>},
    {"rms_norm_eps", text_of<&ModelConfig::rms_norm_eps>},
    {"rope_theta", text_of<&ModelConfig::rope_theta>},
    {"rope_scaling.factor", yarn_text_of<&RopeScaling::factor>},
    {"rope_scaling.original_max_position_embeddings",
     yarn_text_of<&RopeScaling::original_max_position_embeddings>},
    {"rope_scaling.beta_fast", yarn_text_of<&RopeScaling::beta_fast>},
    {"rope_scaling.beta_slow", yarn_text_of<&RopeScaling::beta_slow>},
    {"rope_scaling.mscale", yarn_text_of<&RopeScaling::mscale>},
    {"rope_scaling.mscale_all_dim", yarn_text_of<&RopeScaling::mscale_all_dim>},
};

}  // namespace

Status about_draft(Status status) {
  status.message = fmt::format("{}: {}", kDraftFlag, status.message);
  return status;
}

Result<DraftLayer> read_draft_layer(const DraftRequest& request) {
  auto draft = read(request);
  if (!draft.ok()) return about_draft(draft.status());
  return draft;
}

Result<void> check_draft_fits(const DraftLayer& draft, const ModelConfig& model) {
  for (const Field& field : kFields) {
    const std::string of_draft = field.text(draft.config), of_model = field.text(model);
    if (of_draft == of_model) continue;
    return invalid_argument("{} {}: its {} is {}, but the model's is {}; both must be equal", kDraftFlag,
                            draft.dir.string(), field.name, of_draft, of_model);
  }
  return {};
}

Result<void> check_gpu_draft(const DraftLayer& draft, const ModelConfig& model,
                             LoadQuantization quantization) {
  const auto& of_draft = draft.config.quantization;
  const auto& of_model = model.quantization;
  // Where the files have codes, the plan uses the model's config to find the scales of these codes.
  const bool fits = of_draft ? of_model && of_model->type == of_draft->type &&
                                   of_model->scale_suffix == of_draft->scale_suffix
                             : draft.quantization == quantization;
  if (!fits) {
    return unsupported(
        "{} {}: on a GPU a draft layer has its model's format of linears, but it has {}, and the model {}; "
        "use --device cpu, or a layer in the model's format",
        kDraftFlag, draft.dir.string(), describe(draft.config, draft.quantization),
        describe(model, quantization));
  }
  if (draft.config.is_moe_layer(draft.config.num_hidden_layers) !=
      model.is_moe_layer(model.num_hidden_layers)) {
    return unsupported(
        "{} {}: on a GPU a draft layer has experts only if first_k_dense_replace and moe_layer_freq of its "
        "model give them to the layer after the last one",
        kDraftFlag, draft.dir.string());
  }
  return {};
}

}  // namespace hadal
