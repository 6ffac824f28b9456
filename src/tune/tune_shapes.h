// Lists the products that `hadal tune` measures: the products of a model on the GPUs that share it, in the
// layout of its device weights (model/cuda/device_weights.h). The functions are pure.
//
// model/shard.h cuts the model. If its parts are unequal, the ranks run different shapes, and the lists hold
// all of them, that of rank 0 first. Shared experts are listed with the routed experts of their rank and in
// the same width, because a stack has one width. If they are a product of their own (shared_is_apart), they
// are listed as dense products.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/experts/shape.h"
#include "model/config.h"
#include "model/quantization.h"
#include "model/shard.h"
#include "tune/kernel_config.h"

namespace hadal {

struct ProductSpec {
  std::string label;      // "q_b", "experts down"
  KernelConfigName name;  // without its device
  bool f32_y = false;     // dense
  // The three fields below are for experts only.
  int64_t hidden_size = 0;
  int num_shared = 0;                  // part of name.num_experts: every token uses them
  double routed_per_token = 0.0;       // the number of this GPU's other experts that a token uses on average
  int64_t rows(int64_t tokens) const;  // rows of the product
  double weight_bytes() const;         // bytes of all its matrices
};

// Returns the dense products (all linears, including head and router, except attention's absorbed ones) or
// the experts' gate_up and down (empty for a model without experts). If shapes are equal, the first is
// returned. The errors are those of check_split.
Result<std::vector<ProductSpec>> dense_products(const ModelConfig& config, LoadQuantization quantization,
                                                ModelSplit split);
Result<std::vector<ProductSpec>> expert_products(const ModelConfig& config, LoadQuantization quantization,
                                                 ModelSplit split);

// Returns the shapes of the MoE layers for the planner of experts (kernels/cuda/experts/plan.h), with tokens
// and num_sms at their defaults. If shapes are equal, it returns the first; for a model without experts it
// returns none. `plain` is the type of weights without scales, and of the router. Errors are as above.
Result<std::vector<cuda::ExpertsShape>> expert_layer_shapes(const ModelConfig& config,
                                                            LoadQuantization quantization, WeightType plain,
                                                            ModelSplit split);

// Names the published models for which the program ships files, and their splits, the most used first. Other
// presets with the same formats have the same products.
inline constexpr const char* kTunedPresets[] = {"v2-lite", "v2", "v3", "v3.2"};
inline constexpr int64_t kTunedTpSizes[] = {8, 4, 2, 1};
// Returns linears and experts of presets at every split (without expert parallelism), labelled with model and
// split. They have the checkpoint's types and, where these have 16 bits, also those of `--quantization fp8`.
// If products are equal, it returns the first. The errors are an unknown preset, and those above.
Result<std::vector<ProductSpec>> preset_products(std::span<const std::string> presets,
                                                 std::span<const int64_t> tp_sizes);

// Returns gate_up and down of experts that belong to no known model: `top_k` of `num_experts` per token. n,
// the intermediate size, is rounded up to whole blocks of 128, which is the devices' layout.
std::vector<ProductSpec> expert_products_of(WeightType type, int64_t num_experts, int64_t n, int64_t hidden,
                                            int64_t top_k);

}  // namespace hadal
