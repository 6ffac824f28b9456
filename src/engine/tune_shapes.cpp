#include "engine/tune_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/presets.h"

namespace hadal {
namespace {

int64_t whole_blocks(int64_t size) {
  return (size + kFp8BlockSize - 1) / kFp8BlockSize * kFp8BlockSize;
}

// What linears are on the GPU.
WeightType linear_type(const ModelConfig& config, LoadQuantization quantization) {
  if (config.quantization) return config.quantization->type;
  return quantization != LoadQuantization::kNone ? weight_type_of(quantization) : WeightType::kBF16;
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

std::vector<ProductSpec> both_products(WeightType type, int64_t num_experts, int num_shared, int64_t n,
                                       int64_t hidden, double routed_a_token) {
  std::vector<ProductSpec> specs;
  for (const bool down : {false, true}) {
    specs.push_back({.label = down ? "experts down" : "experts gate_up",
                     .name = {.num_experts = num_experts, .n = n, .down = down, .type = type},
                     .hidden_size = hidden,
                     .num_shared = num_shared,
                     .routed_a_token = routed_a_token});
  }
  return specs;
}

}  // namespace

int64_t ProductSpec::rows(int64_t tokens) const {
  return std::max<int64_t>(1, std::llround((routed_a_token + num_shared) * static_cast<double>(tokens)));
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
  const WeightType type = linear_type(config, quantization);
  HADAL_RETURN_IF_ERROR(check_split(config, split));
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_attention_heads / split.tp;
  const int64_t kv_a = kKvLoraRank + kQkRopeHeadDim;
  const int64_t q_width = config.q_lora_rank != 0 ? config.q_lora_rank : heads * kQkHeadDim;
  SpecList list;
  list.dense("qkv_a", type, (has_scales(type) ? whole_blocks(q_width) : q_width) + kv_a, hidden);
  if (config.q_lora_rank != 0) list.dense("q_b", type, heads * kQkHeadDim, config.q_lora_rank);
  // Codes of other formats are widened at load.
  const WeightType kv_b = type == WeightType::kFp8Block ? type : WeightType::kBF16;
  list.dense("kv_b", kv_b, heads * (kQkNopeHeadDim + kVHeadDim), kKvLoraRank);
  list.dense("o_proj", type, hidden, heads * kVHeadDim);
  bool has_dense = config.n_routed_experts == 0;
  for (int64_t i = 0; i < config.num_hidden_layers && !has_dense; ++i) has_dense = !config.is_moe_layer(i);
  if (has_dense) {
    const int64_t intermediate = whole_blocks(config.intermediate_size / split.tp);
    list.dense("gate_up", type, 2 * intermediate, hidden);
    list.dense("down", type, hidden, intermediate);
  }
  if (config.n_routed_experts > 0)
    list.dense("router", WeightType::kBF16, config.n_routed_experts, hidden, true);
  list.dense("lm_head", WeightType::kBF16, (config.vocab_size + split.tp - 1) / split.tp, hidden, true);
  return list.take();
}

Result<std::vector<ProductSpec>> expert_products(const ModelConfig& config, LoadQuantization quantization,
                                                 ModelSplit split) {
  const WeightType type = linear_type(config, quantization);
  HADAL_RETURN_IF_ERROR(check_split(config, split));
  if (config.n_routed_experts == 0) return std::vector<ProductSpec>();
  const int64_t shared = config.n_shared_experts;
  const int64_t routed = config.n_routed_experts / split.ep;
  const int64_t n = whole_blocks(config.moe_intermediate_size / (split.tp / split.ep));
  return both_products(type, routed + shared, static_cast<int>(shared), n, config.hidden_size,
                       static_cast<double>(config.num_experts_per_tok) / static_cast<double>(split.ep));
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
  return both_products(type, num_experts, 0, whole_blocks(n), hidden, static_cast<double>(top_k));
}

}  // namespace hadal
