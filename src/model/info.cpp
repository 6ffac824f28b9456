#include "model/info.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/params/matrix_window.h"
#include "model/cuda/device_weights_plan.h"
#include "model/loaded_types.h"
#include "model/shard_tensors.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

// LoadedTypes returns the types that matrices have once loaded, for a checkpoint that is stored as its config
// says. Callers query the matrices of an MLP one after another, so that the MLP's types are computed once.
class LoadedTypes {
 public:
  LoadedTypes(const ModelConfig& config, const WeightLoadOptions& options)
      : config_(config), options_(options) {}

  WeightType of(const TensorSpec& spec) {
    if (!select_mlp(spec)) return by_itself(spec.name, spec.role);
    const std::string_view module = std::string_view(spec.name).substr(prefix_.size());
    return module.starts_with("down") ? down_ : gate_up_;
  }

  // Returns the unit at whose multiples the MLP of the matrix may be cut; 1 for other tensors.
  int64_t unit_of(const TensorSpec& spec) {
    return select_mlp(spec) ? mlp_unit(gate_up_, gate_up_, down_) : 1;
  }

 private:
  WeightType by_itself(std::string_view name, TensorRole role) const {
    const bool codes = role == TensorRole::kLinear && is_quantised(config_, name);
    const DType stored = codes ? code_dtype(config_.quantization->type) : config_.torch_dtype;
    return loaded_type(config_, options_, name, role, stored);
  }

  // Makes the MLP to which the matrix belongs the current one; returns false if it belongs to none.
  bool select_mlp(const TensorSpec& spec) {
    const std::string_view prefix = mlp_prefix(spec.name);
    if (prefix.empty()) return false;
    if (prefix == prefix_) return true;
    prefix_ = prefix;
    gate_up_ =
        common_type(by_itself(prefix_ + "gate_proj.weight", TensorRole::kLinear),
                    by_itself(prefix_ + "up_proj.weight", TensorRole::kLinear), options_.compute_dtype);
    down_ = by_itself(prefix_ + "down_proj.weight", TensorRole::kLinear);
    return true;
  }

  const ModelConfig& config_;
  const WeightLoadOptions& options_;
  std::string prefix_;  // of the current MLP
  WeightType gate_up_ = WeightType::kF32, down_ = WeightType::kF32;
};

// Returns the bytes of a rank's part of a tensor after loading, with its scales.
int64_t held_bytes(const ModelConfig& config, const TensorSpec& spec, LoadedTypes& types, ModelSplit split,
                   int64_t rank) {
  if (spec.role == TensorRole::kScale) return 0;  // counted with its matrix
  if (spec.role == TensorRole::kNorm || spec.role == TensorRole::kGateBias)
    return spec.num_elements() * dtype_bytes(DType::kF32);
  const WeightType type = types.of(spec);
  const TensorPart part = tensor_part(config, spec, split, rank, type, types.unit_of(spec));
  return matrix_bytes(type, part.rows, part.cols);
}

}  // namespace

int64_t kv_bytes_per_token(const ModelConfig& config, const KvLayout& kv_layout, bool with_nextn) {
  return (config.num_hidden_layers + (with_nextn ? 1 : 0)) * kv_layout.token_bytes();
}

RankBytes rank_bytes(const ModelConfig& config, const WeightLoadOptions& options, ModelSplit split,
                     int64_t rank) {
  LoadedTypes types(config, options);
  RankBytes bytes;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.optional || (spec.nextn && !options.load_nextn)) continue;
    const int64_t held = held_bytes(config, spec, types, split, rank);
    bytes.all += held;
    if (spec.expert) bytes.experts += held;
  }
  return bytes;
}

RankBytes gpu_rank_bytes(const ModelConfig& config, const WeightLoadOptions& options, ModelSplit split,
                         int64_t rank) {
  const DeviceWeights weights =
      device_weight_shapes(config, options.quantization, options.compute_dtype, split, rank);
  RankBytes bytes{.all = weights.bytes};
  for (const DeviceLayer& layer : weights.layers) {
    const int64_t one = matrix_bytes(layer.moe.experts.gate_up) + matrix_bytes(layer.moe.experts.down);
    bytes.experts += layer.moe.num_local_experts * one;
  }
  return bytes;
}

ModelInfo model_info(const ModelConfig& config, const WeightLoadOptions& options, const KvLayout& kv_layout,
                     int64_t memory_bytes) {
  ModelInfo info;
  info.architecture = to_string(config.architecture);
  int64_t num_expert_parameters = 0;  // over all routed experts
  LoadedTypes types(config, options);
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.optional) continue;
    if (!spec.nextn || options.load_nextn) info.weight_bytes += held_bytes(config, spec, types, {}, 0);
    if (spec.role == TensorRole::kScale) continue;
    const int64_t count = spec.num_elements();
    if (spec.nextn) {
      info.num_nextn_parameters += count;
      continue;
    }
    info.num_parameters += count;
    if (spec.expert) {
      num_expert_parameters += count;
    } else if (spec.role != TensorRole::kEmbedding || config.tie_word_embeddings) {
      info.num_active_parameters += count;
    }
  }
  if (config.n_routed_experts > 0) {  // all experts have the same size
    info.num_active_parameters +=
        num_expert_parameters / config.n_routed_experts * config.num_experts_per_tok;
  }
  info.kv_bytes_per_token = kv_bytes_per_token(config, kv_layout);
  info.index_bytes_per_token = config.num_hidden_layers * kv_layout.index_row_bytes();
  const int64_t left = std::max<int64_t>(memory_bytes - info.weight_bytes, 0);
  info.max_total_num_tokens = left / (info.kv_bytes_per_token * kPageSize) * kPageSize;
  return info;
}

}  // namespace hadal
