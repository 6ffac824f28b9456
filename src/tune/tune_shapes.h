// Lists the products that `hadal tune` measures: those of a model on the GPUs that share it, in the layout of
// its device weights (model/cuda/device_weights.h). The functions are pure.
//
// model/shard.h cuts the model. Where its parts are unequal, the ranks run different shapes and the lists
// hold all of them, that of rank 0 first. Shared experts are listed with the routed ones of their rank and in
// their width, because a stack has one width; where they are a product of their own (shared_is_apart) they
// are dense ones.
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
  // This is for experts only.
  int64_t hidden_size = 0;
  int num_shared = 0;                  // part of name.num_experts: every token uses them
  double routed_per_token = 0.0;       // the number of this GPU's other experts that a token uses on average
  int64_t rows(int64_t tokens) const;  // rows of the product
  double weight_bytes() const;         // bytes of all its matrices
};

// Returns the dense products (the linears except attention's absorbed ones, including head and router) or the
// experts' gate_up and down (empty for a model without experts). If shapes are equal, the first is returned.
// The errors are those of check_split.
Result<std::vector<ProductSpec>> dense_products(const ModelConfig& config, LoadQuantization quantization,
                                                ModelSplit split);
Result<std::vector<ProductSpec>> expert_products(const ModelConfig& config, LoadQuantization quantization,
                                                 ModelSplit split);

// Returns the shapes of the MoE layers for the planner of experts (kernels/cuda/experts/plan.h), with tokens
// and num_sms at their defaults. Where several are equal, it returns the first; a model without experts has
// none. `plain` is the type of weights without scales, and of the router. Errors are as above.
Result<std::vector<cuda::ExpertsShape>> expert_layer_shapes(const ModelConfig& config,
                                                            LoadQuantization quantization, WeightType plain,
                                                            ModelSplit split);

// Names the published models for which the program ships files, and their splits, the most used first. The
// other presets in these formats have the same products.
inline constexpr const char* kTunedPresets[] = {"v2-lite", "v2", "v3", "v3.2"};
inline constexpr int64_t kTunedTpSizes[] = {8, 4, 2, 1};
// Returns linears and experts of presets at every split (without expert parallelism), labelled with model and
// split: in the checkpoint's types and, where these have 16 bits, with `--quantization fp8` too. Where
// several are equal, it returns the first. The errors are an unknown preset, and those above.
Result<std::vector<ProductSpec>> preset_products(std::span<const std::string> presets,
                                                 std::span<const int64_t> tp_sizes);

// Returns gate_up and down of experts that belong to no known model: `top_k` of `num_experts` per token. n,
// the intermediate size, is rounded up to whole blocks of 128, which is the devices' layout.
std::vector<ProductSpec> expert_products_of(WeightType type, int64_t num_experts, int64_t n, int64_t hidden,
                                            int64_t top_k);

}  // namespace hadal
