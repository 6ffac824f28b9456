#include "model/info.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "model/tensor_list.h"

namespace hadal {
namespace {

// For the weight or the scale of a gate_proj or up_proj, returns the module of the other of the two; else
// empty.
std::string partner_module(std::string_view name) {
  for (const auto& [own, other] : {std::pair{".gate_proj.", ".up_proj"}, {".up_proj.", ".gate_proj"}}) {
    if (const size_t at = name.find(own); at != std::string_view::npos)
      return std::string(name.substr(0, at)) + other;
  }
  return {};
}

// Returns the bytes of a tensor after loading, by the table at the top of weights.h.
int64_t loaded_bytes(const ModelConfig& config, const TensorSpec& spec, const WeightLoadOptions& options) {
  const int64_t count = spec.num_elements();
  if (spec.role == TensorRole::kNorm || spec.role == TensorRole::kGateBias) {
    return count * dtype_bytes(DType::kF32);
  }
  const int64_t compute_bytes =
      dtype_bytes(options.compute_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32);
  const bool of_linear = spec.role == TensorRole::kLinear || spec.role == TensorRole::kScale;
  const bool of_kv_b = of_linear && is_kv_b(spec.name);
  if (config.quantization && of_linear) {
    const WeightQuantization& quantization = *config.quantization;
    const bool is_coded = spec.role == TensorRole::kScale || dtype_bytes(spec.dtype) == 1;
    const std::string partner = partner_module(spec.name);
    const bool widens = (is_coded && of_kv_b && is_channel_scaled(quantization.type)) ||
                        (!partner.empty() && quantization.covers(partner) != is_coded);
    if (spec.role == TensorRole::kScale) return widens ? 0 : count * dtype_bytes(DType::kF32);
    if (widens) return count * compute_bytes;
    // A single scale of a matrix is repeated for its rows; the next kScale counts the one in the file.
    if (is_coded) return count + (quantization.one_scale ? spec.shape[0] - 1 : 0) * dtype_bytes(DType::kF32);
  }
  if (spec.role == TensorRole::kLinear && options.quantization != LoadQuantization::kNone &&
      !config.quantization) {
    const WeightType type = weight_type_of(options.quantization);
    const auto blocks = [](int64_t size) { return (size + kFp8BlockSize - 1) / kFp8BlockSize; };
    if (is_block_scaled(type))
      return count + blocks(spec.shape[0]) * blocks(spec.shape[1]) * dtype_bytes(DType::kF32);
    if (!of_kv_b) return count + spec.shape[0] * dtype_bytes(DType::kF32);
  }
  const bool rounded = options.compute_dtype == DType::kBF16 && spec.role != TensorRole::kGate;
  const bool bf16 = spec.dtype == DType::kBF16 || rounded;
  return count * dtype_bytes(bf16 ? DType::kBF16 : DType::kF32);
}

}  // namespace

int64_t kv_bytes_per_token(const ModelConfig& config, const KvLayout& kv_layout) {
  return config.num_hidden_layers * kv_layout.row_bytes();
}

ModelInfo model_info(const ModelConfig& config, const WeightLoadOptions& options, const KvLayout& kv_layout,
                     int64_t memory_bytes) {
  ModelInfo info;
  info.architecture = to_string(config.architecture);
  int64_t num_expert_parameters = 0;  // over all routed experts
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.optional) continue;
    if (!spec.nextn || options.load_nextn) info.weight_bytes += loaded_bytes(config, spec, options);
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
  const int64_t left = std::max<int64_t>(memory_bytes - info.weight_bytes, 0);
  info.max_total_num_tokens = left / (info.kv_bytes_per_token * kPageSize) * kPageSize;
  return info;
}

}  // namespace hadal
