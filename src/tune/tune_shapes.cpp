#include "tune/tune_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/params/indexer.h"
#include "model/blocks/feed_forward.h"
#include "model/presets.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

int64_t whole_blocks(int64_t size) {
  return (size + kFp8BlockSize - 1) / kFp8BlockSize * kFp8BlockSize;
}

// Returns the distinct values of `size_of(rank)` over all ranks, except 0, because such a rank has no such
// product. The first value is that of rank 0, which has the largest part.
template <typename SizeOf>
std::vector<int64_t> sizes_of_ranks(ModelSplit split, const SizeOf& size_of) {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < split.tp; ++rank) {
    const int64_t size = size_of(rank);
    if (size > 0 && std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
  }
  return sizes;
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

// MlpStacks holds the types of the two stacks of an MLP or of a layer's experts, and the padded intermediate
// sizes that ranks have of them.
struct MlpStacks {
  WeightType gate_up;
  WeightType down;
  std::vector<int64_t> widths;
};

MlpStacks stacks_of(const ModelConfig& config, LoadQuantization quantization, ModelSplit split,
                    int64_t layer) {
  const auto type = [&](std::initializer_list<const char*> projections) {
    std::vector<std::string> modules;
    if (config.is_moe_layer(layer)) {
      modules = expert_modules(config, projections);
    } else {
      for (const char* projection : projections) modules.push_back(fmt::format("mlp.{}", projection));
    }
    return stack_types(
               config, quantization, [&](int64_t i) { return i == layer; }, modules)
        .front();
  };
  MlpStacks stacks{.gate_up = type({"gate_proj", "up_proj"}), .down = type({"down_proj"})};
  stacks.widths = sizes_of_ranks(split, [&](int64_t rank) {
    const Range part = config.is_moe_layer(layer)
                           ? expert_width_of(config, split, kGpuMlpUnit, rank)
                           : mlp_width_of(config.intermediate_size, split, kGpuMlpUnit, rank);
    return whole_blocks(part.size());
  });
  return stacks;
}

// Returns true if the shared MLP of an expert layer with these stacks is a product of its own.
bool shared_is_apart(const ModelConfig& config, ModelSplit split, const MlpStacks& stacks) {
  return hadal::shared_is_apart(config, split, is_block_scaled(stacks.down) ? stacks.down : stacks.gate_up);
}

// Returns the padded sizes that ranks have of a shared MLP that is a product of its own.
std::vector<int64_t> shared_widths(const ModelConfig& config, ModelSplit split) {
  const int64_t size = config.n_shared_experts * config.moe_intermediate_size;
  return sizes_of_ranks(
      split, [&](int64_t rank) { return whole_blocks(mlp_width_of(size, split, kGpuMlpUnit, rank).size()); });
}

class SpecList {
 public:
  void dense(const char* label, WeightType type, int64_t n, int64_t k, bool f32_y = false) {
    add({.label = label, .name = {.n = n, .k = k, .type = type}, .f32_y = f32_y});
  }
  void add(ProductSpec spec) {
    const bool there = std::any_of(specs_.begin(), specs_.end(),
                                   [&](const ProductSpec& other) { return other.name == spec.name; });
    if (!there) specs_.push_back(std::move(spec));
  }
  std::vector<ProductSpec> take() { return std::move(specs_); }

 private:
  std::vector<ProductSpec> specs_;
};

ProductSpec expert_product(bool down, WeightType type, int64_t num_experts, int num_shared, int64_t n,
                           int64_t hidden, double routed_per_token) {
  return {.label = down ? "experts down" : "experts gate_up",
          .name = {.num_experts = num_experts, .n = n, .down = down, .type = type},
          .hidden_size = hidden,
          .num_shared = num_shared,
          .routed_per_token = routed_per_token};
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
  const int64_t heads = heads_of(config, split, 0).size();  // the same on all ranks
  const int64_t kv_a = kKvLoraRank + kQkRopeHeadDim;
  const bool low_rank = config.q_lora_rank != 0;
  const auto q_rows = [&](WeightType type) {
    return sizes_of_ranks(split,
                          [&](int64_t rank) { return q_rows_of(heads_of(config, split, rank), type).count; });
  };
  const auto any = [](int64_t) { return true; };
  const auto types = [&](const auto& has, const std::vector<std::string>& modules) {
    return stack_types(config, quantization, has, modules);
  };
  SpecList list;
  std::vector<std::string> stack = {low_rank ? "self_attn.q_a_proj" : "self_attn.q_proj",
                                    "self_attn.kv_a_proj_with_mqa"};
  if (config.has_indexer()) stack.emplace_back("self_attn.indexer.wk");
  const int64_t below_q = kv_a + (config.has_indexer() ? kIndexHeadDim : 0);
  for (const WeightType type : types(any, stack)) {
    for (const int64_t q_width : low_rank ? std::vector{config.q_lora_rank} : q_rows(type))
      list.dense("qkv_a", type, (has_scales(type) ? whole_blocks(q_width) : q_width) + below_q, hidden);
  }
  if (config.has_indexer()) {
    for (const WeightType type : types(any, {"self_attn.indexer.wq_b"}))
      list.dense("index_wq_b", type, config.index_n_heads * kIndexHeadDim, config.q_lora_rank);
  }
  if (low_rank) {
    for (const WeightType type : types(any, {"self_attn.q_b_proj"})) {
      for (const int64_t rows : q_rows(type)) list.dense("q_b", type, rows, config.q_lora_rank);
    }
  }
  for (const WeightType type : types(any, {"self_attn.kv_b_proj"})) {
    // Codes of other formats are widened at load.
    const WeightType kv_b = type == WeightType::kFp8Block ? type : WeightType::kBF16;
    list.dense("kv_b", kv_b, heads * (kQkNopeHeadDim + kVHeadDim), kKvLoraRank);
  }
  for (const WeightType type : types(any, {"self_attn.o_proj"}))
    list.dense("o_proj", type, hidden, heads * kVHeadDim);
  for (const bool down : {false, true}) {
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      const bool is_moe = config.is_moe_layer(layer);
      const MlpStacks mlp = stacks_of(config, quantization, split, layer);
      if (is_moe && !shared_is_apart(config, split, mlp)) continue;
      for (const int64_t width : is_moe ? shared_widths(config, split) : mlp.widths) {
        if (down)
          list.dense(is_moe ? "shared down" : "down", mlp.down, hidden, width);
        else
          list.dense(is_moe ? "shared gate_up" : "gate_up", mlp.gate_up, 2 * width, hidden);
      }
    }
  }
  if (config.n_routed_experts > 0)
    list.dense("router", WeightType::kBF16, config.n_routed_experts, hidden, true);
  for (const int64_t rows :
       sizes_of_ranks(split, [&](int64_t rank) { return vocabulary_of(config, split, rank).size(); }))
    list.dense("lm_head", WeightType::kBF16, rows, hidden, true);
  return list.take();
}

Result<std::vector<ProductSpec>> expert_products(const ModelConfig& config, LoadQuantization quantization,
                                                 ModelSplit split) {
  HADAL_RETURN_IF_ERROR(check_split(config, split));
  if (config.n_routed_experts == 0) return std::vector<ProductSpec>();
  const int64_t routed = experts_of(config, split, 0).size();  // the same on all ranks
  const double routed_per_token =
      static_cast<double>(config.num_experts_per_tok) / static_cast<double>(split.ep);
  std::vector<MlpStacks> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_moe_layer(layer)) layers.push_back(stacks_of(config, quantization, split, layer));
  }
  SpecList list;
  for (const bool down : {false, true}) {
    for (const MlpStacks& stacks : layers) {
      const int64_t shared = shared_is_apart(config, split, stacks) ? 0 : config.n_shared_experts;
      for (const int64_t width : stacks.widths)
        list.add(expert_product(down, down ? stacks.down : stacks.gate_up, routed + shared,
                                static_cast<int>(shared), width, config.hidden_size, routed_per_token));
    }
  }
  return list.take();
}

Result<std::vector<cuda::ExpertsShape>> expert_layer_shapes(const ModelConfig& config,
                                                            LoadQuantization quantization, WeightType plain,
                                                            ModelSplit split) {
  HADAL_RETURN_IF_ERROR(check_split(config, split));
  std::vector<cuda::ExpertsShape> shapes;
  if (config.n_routed_experts == 0) return shapes;
  const Router router = make_router(config);
  const auto loaded = [&](WeightType type) { return has_scales(type) ? type : plain; };
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_moe_layer(layer)) continue;
    const MlpStacks stacks = stacks_of(config, quantization, split, layer);
    const int64_t shared = shared_is_apart(config, split, stacks) ? 0 : config.n_shared_experts;
    const int64_t held = experts_of(config, split, 0).size();
    for (const int64_t width : stacks.widths) {
      const cuda::ExpertsShape shape{.num_experts = static_cast<int>(config.n_routed_experts),
                                     .num_shared = static_cast<int>(shared),
                                     .top_k = static_cast<int>(router.top_k),
                                     .num_held = static_cast<int>(held == config.n_routed_experts ? 0 : held),
                                     .num_groups = router.gate.num_groups,
                                     .topk_groups = router.gate.topk_groups,
                                     .gate_kind = router.gate.kind,
                                     .hidden = config.hidden_size,
                                     .intermediate = width,
                                     .gate = plain,
                                     .gate_up = loaded(stacks.gate_up),
                                     .down = loaded(stacks.down)};
      if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    }
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
    std::vector<LoadQuantization> quantizations = {LoadQuantization::kNone};
    if (!config.quantization) quantizations.push_back(LoadQuantization::kFp8);
    for (const LoadQuantization quantization : quantizations) {
      for (const int64_t tp : tp_sizes) {
        HADAL_ASSIGN_OR_RETURN(auto dense, dense_products(config, quantization, {.tp = tp}));
        HADAL_ASSIGN_OR_RETURN(auto experts, expert_products(config, quantization, {.tp = tp}));
        append(preset, tp, std::move(dense));
        append(preset, tp, std::move(experts));
      }
    }
  }
  return products;
}

std::vector<ProductSpec> expert_products_of(WeightType type, int64_t num_experts, int64_t n, int64_t hidden,
                                            int64_t top_k) {
  std::vector<ProductSpec> specs;
  for (const bool down : {false, true})
    specs.push_back(
        expert_product(down, type, num_experts, 0, whole_blocks(n), hidden, static_cast<double>(top_k)));
  return specs;
}

}  // namespace hadal
