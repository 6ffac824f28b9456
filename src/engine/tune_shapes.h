// The products of a model on one of several GPUs that share it, as its device weights are laid out
// (model/cuda/device_weights.h): what `hadal tune` measures. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/kernel_config.h"
#include "model/config.h"
#include "model/quantization.h"

namespace hadal {

// How a model is shared, as SGLang's --tp-size and --ep-size: heads, dense layers and vocabulary by tp;
// experts by ep, each of them by tp / ep.
struct ModelSplit {
  int64_t tp = 1;
  int64_t ep = 1;
};

struct ProductSpec {
  std::string label;      // "q_b", "experts down"
  KernelConfigName name;  // without its device
  bool f32_y = false;     // dense
  // Of experts.
  int64_t hidden_size = 0;
  int num_shared = 0;                  // of name.num_experts: every token goes to them
  double routed_a_token = 0.0;         // the others of this GPU that a token goes to on average
  int64_t rows(int64_t tokens) const;  // of the product
  double weight_bytes() const;         // of all its matrices
};

// Dense: the linears outside of attention's absorbed ones, head and router included; experts: gate_up and
// down (empty for a model without any). Of equal shapes the first. Errors (kInvalidArgument): a split that
// does not come out even, named with what it divides; (kUnsupported) a format that no GPU kernel takes.
Result<std::vector<ProductSpec>> dense_products(const ModelConfig& config, LoadQuantization quantization,
                                                ModelSplit split);
Result<std::vector<ProductSpec>> expert_products(const ModelConfig& config, LoadQuantization quantization,
                                                 ModelSplit split);

// The published models that files come with the program for, and their splits, what is run most first. The
// other presets in these formats have the same products.
inline constexpr const char* kTunedPresets[] = {"v2-lite", "v2", "v3"};
inline constexpr int64_t kTunedTpSizes[] = {8, 4, 2, 1};
// Linears and experts of presets at every split (without expert parallelism), model and split in their
// labels; of equal ones the first. Errors: no such preset; as above.
Result<std::vector<ProductSpec>> preset_products(std::span<const std::string> presets,
                                                 std::span<const int64_t> tp_sizes);

// gate_up and down of experts that a model does not say: `top_k` of `num_experts` for each token. n, their
// intermediate size, is rounded up to whole blocks of 128, in which devices hold it.
std::vector<ProductSpec> expert_products_of(WeightType type, int64_t num_experts, int64_t n, int64_t hidden,
                                            int64_t top_k);

}  // namespace hadal
