#include "model/tensor_list.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "kernels/params/indexer.h"

namespace hadal {
namespace {

class ListBuilder {
 public:
  explicit ListBuilder(const ModelConfig& config) : config_(config) {}

  std::vector<TensorSpec> build() {
    const int64_t hidden = config_.hidden_size;
    add("model.embed_tokens.weight", {config_.vocab_size, hidden}, TensorRole::kEmbedding);
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) add_layer(layer);
    add("model.norm.weight", {hidden}, TensorRole::kNorm);
    add("lm_head.weight", {config_.vocab_size, hidden}, TensorRole::kHead).optional =
        config_.tie_word_embeddings;
    nextn_ = true;
    for (int64_t i = 0; i < config_.num_nextn_predict_layers; ++i) add_nextn(config_.num_hidden_layers + i);
    return std::move(specs_);
  }

 private:
  TensorSpec& add(std::string name, std::vector<int64_t> shape, TensorRole role) {
    TensorSpec& spec = specs_.emplace_back();
    spec.name = std::move(name);
    spec.dtype = config_.torch_dtype;
    spec.shape = std::move(shape);
    spec.role = role;
    spec.nextn = nextn_;
    spec.expert = expert_;
    return spec;
  }

  void add_linear(std::string name, int64_t n, int64_t k) {
    TensorSpec& weight = add(std::move(name), {n, k}, TensorRole::kLinear);
    weight.left_out = config_.quantization && !is_quantised(config_, weight.name);
    if (!is_quantised(config_, weight.name)) return;
    const WeightQuantization& quantization = *config_.quantization;
    weight.dtype = code_dtype(quantization.type);
    const auto blocks = [](int64_t size) { return (size + kFp8BlockSize - 1) / kFp8BlockSize; };
    std::vector<int64_t> shape{blocks(n), blocks(k)};
    if (is_channel_scaled(quantization.type)) shape = {n, 1};
    if (quantization.one_scale) shape = {1};
    TensorSpec& scale = add(scale_name(quantization, weight.name), std::move(shape), TensorRole::kScale);
    scale.dtype = DType::kF32;
    scale.fan_in = k;
  }

  void add_mlp(const std::string& prefix, int64_t intermediate) {
    add_linear(prefix + "gate_proj.weight", intermediate, config_.hidden_size);
    add_linear(prefix + "up_proj.weight", intermediate, config_.hidden_size);
    add_linear(prefix + "down_proj.weight", config_.hidden_size, intermediate);
  }

  void add_attention(const std::string& prefix) {
    const int64_t hidden = config_.hidden_size;
    const int64_t heads = config_.num_attention_heads;
    if (config_.q_lora_rank == 0) {
      add_linear(prefix + "q_proj.weight", heads * kQkHeadDim, hidden);
    } else {
      add_linear(prefix + "q_a_proj.weight", config_.q_lora_rank, hidden);
      add(prefix + "q_a_layernorm.weight", {config_.q_lora_rank}, TensorRole::kNorm);
      add_linear(prefix + "q_b_proj.weight", heads * kQkHeadDim, config_.q_lora_rank);
    }
    if (config_.has_indexer()) add_indexer(prefix + "indexer.");
    add_linear(prefix + "kv_a_proj_with_mqa.weight", kKvLoraRank + kQkRopeHeadDim, hidden);
    add(prefix + "kv_a_layernorm.weight", {kKvLoraRank}, TensorRole::kNorm);
    add_linear(prefix + "kv_b_proj.weight", heads * (kQkNopeHeadDim + kVHeadDim), kKvLoraRank);
    add_linear(prefix + "o_proj.weight", hidden, heads * kVHeadDim);
  }

  void add_indexer(const std::string& prefix) {
    add_linear(prefix + "wq_b.weight", config_.index_n_heads * kIndexHeadDim, config_.q_lora_rank);
    add_linear(prefix + "wk.weight", kIndexHeadDim, config_.hidden_size);
    add(prefix + "k_norm.weight", {kIndexHeadDim}, TensorRole::kNorm);
    add(prefix + "k_norm.bias", {kIndexHeadDim}, TensorRole::kNorm);
    add(prefix + "weights_proj.weight", {config_.index_n_heads, config_.hidden_size}, TensorRole::kGate);
  }

  void add_moe(const std::string& prefix) {
    add(prefix + "gate.weight", {config_.n_routed_experts, config_.hidden_size}, TensorRole::kGate);
    if (config_.has_score_correction_bias()) {
      add(prefix + "gate.e_score_correction_bias", {config_.n_routed_experts}, TensorRole::kGateBias).dtype =
          DType::kF32;
    }
    expert_ = true;
    for (int64_t expert = 0; expert < config_.n_routed_experts; ++expert) {
      add_mlp(fmt::format("{}experts.{}.", prefix, expert), config_.moe_intermediate_size);
    }
    expert_ = false;
    if (config_.n_shared_experts > 0) {
      add_mlp(prefix + "shared_experts.", config_.n_shared_experts * config_.moe_intermediate_size);
    }
  }

  void add_layer(int64_t layer_idx) {
    const std::string prefix = layer_prefix(layer_idx);
    add(prefix + "input_layernorm.weight", {config_.hidden_size}, TensorRole::kNorm);
    add_attention(prefix + "self_attn.");
    add(prefix + "post_attention_layernorm.weight", {config_.hidden_size}, TensorRole::kNorm);
    if (config_.is_moe_layer(layer_idx)) {
      add_moe(prefix + "mlp.");
    } else {
      add_mlp(prefix + "mlp.", config_.intermediate_size);
    }
  }

  // The NextN layer of DeepSeek-V3 (arXiv 2412.19437 §2.2) consists of an ordinary decoder layer and the
  // tensors that connect it to the main model.
  void add_nextn(int64_t layer_idx) {
    const std::string prefix = layer_prefix(layer_idx);
    const int64_t hidden = config_.hidden_size;
    add(prefix + "embed_tokens.weight", {config_.vocab_size, hidden}, TensorRole::kEmbedding).optional = true;
    add(prefix + "enorm.weight", {hidden}, TensorRole::kNorm);
    add(prefix + "hnorm.weight", {hidden}, TensorRole::kNorm);
    add(prefix + "eh_proj.weight", {hidden, 2 * hidden}, TensorRole::kEhProj);
    add_layer(layer_idx);
    add(prefix + "shared_head.norm.weight", {hidden}, TensorRole::kNorm);
    add(prefix + "shared_head.head.weight", {config_.vocab_size, hidden}, TensorRole::kHead).optional = true;
  }

  const ModelConfig& config_;
  std::vector<TensorSpec> specs_;
  bool nextn_ = false;
  bool expert_ = false;
};

}  // namespace

int64_t TensorSpec::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  return ListBuilder(config).build();
}

std::string layer_prefix(int64_t layer_idx) {
  return fmt::format("model.layers.{}.", layer_idx);
}

std::string scale_name(const WeightQuantization& quantization, std::string_view weight_name) {
  return std::string(weight_name).append(quantization.scale_suffix);
}

std::string_view module_name(std::string_view weight_name) {
  constexpr std::string_view kWeight = ".weight";
  if (weight_name.ends_with(kWeight)) weight_name.remove_suffix(kWeight.size());
  return weight_name;
}

bool is_quantised(const ModelConfig& config, std::string_view weight_name) {
  return config.quantization && config.quantization->covers(module_name(weight_name));
}

DType code_dtype(WeightType type) {
  HADAL_CHECK(has_scales(type), "only types with scales have codes");
  return type == WeightType::kFp8Block || type == WeightType::kFp8Channel ? DType::kF8E4M3 : DType::kI8;
}

bool is_code(std::optional<DType> dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kI8;
}

bool is_kv_b(std::string_view tensor_name) {
  return tensor_name.find(".kv_b_proj.weight") != std::string_view::npos;
}

}  // namespace hadal
