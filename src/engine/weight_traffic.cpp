#include "engine/weight_traffic.h"

#include <cmath>

#include "base/check.h"

namespace hadal {

int64_t bytes_of(const MatrixWeight& weight) {
  if (weight.data == nullptr) return 0;
  int64_t num_scales = 0;
  if (is_block_scaled(weight.type)) {
    num_scales =
        ((weight.n + kFp8BlockSize - 1) / kFp8BlockSize) * ((weight.k + kFp8BlockSize - 1) / kFp8BlockSize);
  } else if (is_channel_scaled(weight.type)) {
    num_scales = weight.n;
  }
  return weight.n * weight.k * weight_element_bytes(weight.type) + num_scales * 4;
}

namespace {

int64_t bytes_of(const MlpWeights& mlp) {
  return bytes_of(mlp.gate) + bytes_of(mlp.up) + bytes_of(mlp.down);
}

}  // namespace

int64_t weight_bytes_read(const ModelWeights& weights, std::span<const int32_t> distinct_experts) {
  int64_t total = bytes_of(weights.lm_head);
  size_t moe_idx = 0;
  for (const LayerWeights& layer : weights.layers) {
    const AttentionWeights& a = layer.attention;
    total += bytes_of(a.q_proj) + bytes_of(a.q_a) + bytes_of(a.q_b) + bytes_of(a.kv_a) + bytes_of(a.kv_b) +
             bytes_of(a.o);
    total += 2 * a.kv_a.k * 4;  // the two norms
    if (layer.mlp) total += bytes_of(*layer.mlp);
    if (!layer.moe) continue;
    HADAL_CHECK_LT(moe_idx, distinct_experts.size());
    const int64_t hit = distinct_experts[moe_idx++];
    total += bytes_of(layer.moe->gate) + hit * bytes_of(layer.moe->experts[0]);
    if (layer.moe->shared) total += bytes_of(*layer.moe->shared);
  }
  return total;
}

int64_t kv_bytes_read(const ModelConfig& config, const KvLayout& layout, int64_t num_sequences,
                      int64_t kv_len) {
  return config.num_hidden_layers * num_sequences * kv_len * layout.row_bytes();
}

double expected_distinct_experts(const ModelConfig& config, int64_t num_tokens) {
  if (config.n_routed_experts == 0) return 0.0;
  const auto experts = static_cast<double>(config.n_routed_experts);
  const double missed = 1.0 - static_cast<double>(config.num_experts_per_tok) / experts;
  return experts * (1.0 - std::pow(missed, static_cast<double>(num_tokens)));
}

}  // namespace hadal
