#include "engine/speculation/weight_traffic.h"

#include <cmath>

#include "base/check.h"
#include "kernels/params/matrix_window.h"
#include "model/shard_weights.h"

namespace hadal {

int64_t weight_bytes_read(const ModelWeights& weights, std::span<const int32_t> distinct_experts,
                          bool selects_keys) {
  int64_t total = matrix_bytes(weights.lm_head);
  size_t moe_idx = 0;
  for (const LayerWeights& layer : weights.layers) {
    const AttentionWeights& a = layer.attention;
    total += matrix_bytes(a.q_proj) + matrix_bytes(a.q_a) + matrix_bytes(a.q_b) + matrix_bytes(a.kv_a) +
             matrix_bytes(a.kv_b) + matrix_bytes(a.o);
    total += 2 * a.kv_a.k * 4;  // the two norms
    if (a.indexer) {
      const int64_t of_scores = matrix_bytes(a.indexer->wq_b) + matrix_bytes(a.indexer->weights_proj);
      total += bytes_of(*a.indexer) - (selects_keys ? 0 : of_scores);
    }
    if (layer.mlp) total += bytes_of(*layer.mlp);
    if (!layer.moe) continue;
    HADAL_CHECK_LT(moe_idx, distinct_experts.size());
    const int64_t hit = distinct_experts[moe_idx++];
    total += matrix_bytes(layer.moe->gate) + hit * bytes_of(layer.moe->experts[0]);
    if (layer.moe->shared) total += bytes_of(*layer.moe->shared);
  }
  return total;
}

int64_t kv_bytes_read(const ModelConfig& config, const KvLayout& layout, int64_t num_sequences,
                      int64_t kv_len) {
  const int64_t of_sequence = config.selects_keys(kv_len)
                                  ? config.index_topk * layout.row_bytes() + kv_len * layout.index_row_bytes()
                                  : kv_len * layout.row_bytes();
  return config.num_hidden_layers * num_sequences * of_sequence;
}

double expected_distinct_experts(const ModelConfig& config, int64_t num_tokens) {
  if (config.n_routed_experts == 0) return 0.0;
  const auto experts = static_cast<double>(config.n_routed_experts);
  const double missed = 1.0 - static_cast<double>(config.num_experts_per_tok) / experts;
  return experts * (1.0 - std::pow(missed, static_cast<double>(num_tokens)));
}

}  // namespace hadal
