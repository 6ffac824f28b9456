#include "tune/tune_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/blocks/feed_forward.h"
#include "model/presets.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

int64_t whole_blocks(int64_t size) {
  return (size + kFp8BlockSize - 1) / kFp8BlockSize * kFp8BlockSize;
}

Result<void> divides(const char* flag, int64_t by, const char* what, int64_t size) {
  if (size % by == 0) return {};
  return invalid_argument("{} {}: must divide {}, which is {}", flag, by, what, size);
}

Result<void> check_split(const ModelConfig& config, ModelSplit split) {
  HADAL_RETURN_IF_ERROR(divides("--tp-size", split.tp, "num_attention_heads", config.num_attention_heads));
  HADAL_RETURN_IF_ERROR(divides("--tp-size", split.tp, "intermediate_size", config.intermediate_size));
  HADAL_RETURN_IF_ERROR(divides("--ep-size", split.ep, "--tp-size", split.tp));
  if (config.n_routed_experts == 0) return {};
  HADAL_RETURN_IF_ERROR(divides("--ep-size", split.ep, "n_routed_experts", config.n_routed_experts));
  return divides("--tp-size / --ep-size", split.tp / split.ep, "moe_intermediate_size",
                 config.moe_intermediate_size);
}

// Returns the types of stacks of linears on the GPU (model/cuda/device_weights.h), for the layers for which
// `has` is true: 8 bits if the checkpoint's config covers all modules of a layer's stack, otherwise bf16.
template <typename Has>
std::vector<WeightType> stack_types(const ModelConfig& config, LoadQuantization quantization, const Has& has,
                                    const std::vector<std::string>& modules) {
  const WeightType type = linear_type(config, quantization);
  std::vector<WeightType> types;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    if (!has(i)) continue;
    const bool covered =
        !config.quantization || std::all_of(modules.begin(), modules.end(), [&](const std::string& module) {
          return config.quantization->covers(layer_prefix(i) + module);
        });
    const WeightType found = covered ? type : WeightType::kBF16;
    if (std::find(types.begin(), types.end(), found) == types.end()) types.push_back(found);
  }
  return types;
}

// Returns `projections` of all MLPs of an expert layer.
std::vector<std::string> expert_modules(const ModelConfig& config,
                                        std::initializer_list<const char*> projections) {
  std::vector<std::string> modules;
  for (const char* projection : projections) {
    for (int64_t i = 0; i < config.n_routed_experts; ++i)
      modules.push_back(fmt::format("mlp.experts.{}.{}", i, projection));
    if (config.n_shared_experts > 0) modules.push_back(fmt::format("mlp.shared_experts.{}", projection));
  }
  return modules;
}

class SpecList {
 public:
  void dense(const char* label, WeightType type, int64_t n, int64_t k, bool f32_y = false) {
    ProductSpec spec{.label = label, .name = {.n = n, .k = k, .type = type}, .f32_y = f32_y};
    const bool there = std::any_of(specs_.begin(), specs_.end(),
                                   [&](const ProductSpec& other) { return other.name == spec.name; });
    if (!there) specs_.push_back(std::move(spec));
  }
  std::vector<ProductSpec> take() { return std::move(specs_); }

 private:
  std::vector<ProductSpec> specs_;
};

void append_experts(std::vector<ProductSpec>& specs, bool down, WeightType type, int64_t num_experts,
                    int num_shared, int64_t n, int64_t hidden, double routed_per_token) {
  specs.push_back({.label = down ? "experts down" : "experts gate_up",
                   .name = {.num_experts = num_experts, .n = n, .down = down, .type = type},
                   .hidden_size = hidden,
                   .num_shared = num_shared,
                   .routed_per_token = routed_per_token});
}

}  // namespace

int64_t ProductSpec::rows(int64_t tokens) const {
  return std::max<int64_t>(1, std::llround((routed_per_token + num_shared) * static_cast<double>(tokens)));
}

double ProductSpec::weight_bytes() const {
  const auto element = static_cast<double>(weight_element_bytes(name.type));
  const auto n = static_cast<double>(name.n);
  if (name.num_experts == 0) return n * static_cast<double>(name.k) * element;
  return static_cast<double>(name.num_experts) * (name.down ? 1.0 : 2.0) * n *
         static_cast<double>(hidden_size) * element;
}

Result<std::vector<ProductSpec>> dense_products(const ModelConfig& config, LoadQuantization quantization,
                                                ModelSplit split) {
  HADAL_RETURN_IF_ERROR(check_split(config, split));
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_attention_heads / split.tp;
  const int64_t kv_a = kKvLoraRank + kQkRopeHeadDim;
  const bool low_rank = config.q_lora_rank != 0;
  const int64_t q_width = low_rank ? config.q_lora_rank : heads * kQkHeadDim;
  const auto any = [](int64_t) { return true; };
  const auto types = [&](const auto& has, const std::vector<std::string>& modules) {
    return stack_types(config, quantization, has, modules);
  };
  SpecList list;
  for (const WeightType type :
       types(any, {low_rank ? "self_attn.q_a_proj" : "self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"}))
    list.dense("qkv_a", type, (has_scales(type) ? whole_blocks(q_width) : q_width) + kv_a, hidden);
  if (low_rank) {
    for (const WeightType type : types(any, {"self_attn.q_b_proj"}))
      list.dense("q_b", type, heads * kQkHeadDim, config.q_lora_rank);
  }
  for (const WeightType type : types(any, {"self_attn.kv_b_proj"})) {
    // Codes of other formats are widened at load.
    const WeightType kv_b = type == WeightType::kFp8Block ? type : WeightType::kBF16;
    list.dense("kv_b", kv_b, heads * (kQkNopeHeadDim + kVHeadDim), kKvLoraRank);
  }
  for (const WeightType type : types(any, {"self_attn.o_proj"}))
    list.dense("o_proj", type, hidden, heads * kVHeadDim);
  const auto is_dense = [&](int64_t i) { return !config.is_moe_layer(i); };
  const int64_t intermediate = whole_blocks(config.intermediate_size / split.tp);
  for (const WeightType type : types(is_dense, {"mlp.gate_proj", "mlp.up_proj"}))
    list.dense("gate_up", type, 2 * intermediate, hidden);
  for (const WeightType type : types(is_dense, {"mlp.down_proj"}))
    list.dense("down", type, hidden, intermediate);
  if (config.n_routed_experts > 0)
    list.dense("router", WeightType::kBF16, config.n_routed_experts, hidden, true);
  list.dense("lm_head", WeightType::kBF16, (config.vocab_size + split.tp - 1) / split.tp, hidden, true);
  return list.take();
}

Result<std::vector<ProductSpec>> expert_products(const ModelConfig& config, LoadQuantization quantization,
                                                 ModelSplit split) {
  HADAL_RETURN_IF_ERROR(check_split(config, split));
  if (config.n_routed_experts == 0) return std::vector<ProductSpec>();
  const int64_t shared = config.n_shared_experts;
  const int64_t routed = config.n_routed_experts / split.ep;
  const int64_t n = whole_blocks(config.moe_intermediate_size / (split.tp / split.ep));
  const auto is_moe = [&](int64_t i) { return config.is_moe_layer(i); };
  std::vector<ProductSpec> specs;
  for (const bool down : {false, true}) {
    const std::vector<WeightType> types = stack_types(
        config, quantization, is_moe,
        down ? expert_modules(config, {"down_proj"}) : expert_modules(config, {"gate_proj", "up_proj"}));
    for (const WeightType type : types)
      append_experts(specs, down, type, routed + shared, static_cast<int>(shared), n, config.hidden_size,
                     static_cast<double>(config.num_experts_per_tok) / static_cast<double>(split.ep));
  }
  return specs;
}

Result<std::vector<cuda::ExpertsShape>> expert_layer_shapes(const ModelConfig& config,
                                                            LoadQuantization quantization, WeightType plain,
                                                            ModelSplit split) {
  HADAL_RETURN_IF_ERROR(check_split(config, split));
  std::vector<cuda::ExpertsShape> shapes;
  if (config.n_routed_experts == 0) return shapes;
  const Router router = make_router(config);
  const std::vector<std::string> gate_up = expert_modules(config, {"gate_proj", "up_proj"});
  const std::vector<std::string> down = expert_modules(config, {"down_proj"});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_moe_layer(layer)) continue;
    const auto type_of = [&](const std::vector<std::string>& modules) {
      const WeightType type = stack_types(
                                  config, quantization, [&](int64_t i) { return i == layer; }, modules)
                                  .front();
      return has_scales(type) ? type : plain;
    };
    const cuda::ExpertsShape shape{
        .num_experts = static_cast<int>(config.n_routed_experts / split.ep),
        .num_shared = static_cast<int>(config.n_shared_experts),
        .top_k = static_cast<int>(router.top_k),
        .num_groups = router.gate.num_groups,
        .topk_groups = router.gate.topk_groups,
        .gate_kind = router.gate.kind,
        .hidden = config.hidden_size,
        .intermediate = whole_blocks(config.moe_intermediate_size / (split.tp / split.ep)),
        .gate = plain,
        .gate_up = type_of(gate_up),
        .down = type_of(down)};
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  }
  return shapes;
}

Result<std::vector<ProductSpec>> preset_products(std::span<const std::string> presets,
                                                 std::span<const int64_t> tp_sizes) {
  std::vector<ProductSpec> products;
  const auto append = [&](const std::string& preset, int64_t tp, std::vector<ProductSpec> more) {
    for (ProductSpec& product : more) {
      const bool there = std::any_of(products.begin(), products.end(),
                                     [&](const ProductSpec& p) { return p.name == product.name; });
      product.label = fmt::format("{} {} tp{}", product.label, preset, tp);
      if (!there) products.push_back(std::move(product));
    }
  };
  for (const std::string& preset : presets) {
    HADAL_ASSIGN_OR_RETURN(const std::string text, preset_config_json(preset));
    HADAL_ASSIGN_OR_RETURN(const ModelConfig config, parse_model_config(text, preset));
    for (const int64_t tp : tp_sizes) {
      HADAL_ASSIGN_OR_RETURN(auto dense, dense_products(config, LoadQuantization::kNone, {.tp = tp}));
      HADAL_ASSIGN_OR_RETURN(auto experts, expert_products(config, LoadQuantization::kNone, {.tp = tp}));
      append(preset, tp, std::move(dense));
      append(preset, tp, std::move(experts));
    }
  }
  return products;
}

std::vector<ProductSpec> expert_products_of(WeightType type, int64_t num_experts, int64_t n, int64_t hidden,
                                            int64_t top_k) {
  std::vector<ProductSpec> specs;
  for (const bool down : {false, true})
    append_experts(specs, down, type, num_experts, 0, whole_blocks(n), hidden, static_cast<double>(top_k));
  return specs;
}

}  // namespace hadal
