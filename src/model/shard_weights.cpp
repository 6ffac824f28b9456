#include "model/shard_weights.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "kernels/params/matrix_window.h"

namespace hadal {
namespace {

MatrixWeight rows(const MatrixWeight& w, Range range) {
  return row_window(w, range.begin, range.size());
}

MatrixWeight columns(const MatrixWeight& w, Range range) {
  return column_window(w, range.begin, range.size());
}

Range scaled(Range heads, int64_t size) {
  return {heads.begin * size, heads.end * size};
}

class Shard {
 public:
  Shard(const ModelConfig& config, ModelSplit split, int64_t rank)
      : config_(config), split_(split), rank_(rank) {}

  AttentionWeights attention(const AttentionWeights& whole) const {
    AttentionWeights part = whole;
    const Range heads = heads_of(config_, split_, rank_);
    MatrixWeight& q = config_.q_lora_rank == 0 ? part.q_proj : part.q_b;
    const RowWindow window = q_rows_of(heads, q.type);
    q = row_window(q, window.first, window.count);
    part.q_skip = window.skip;
    part.kv_b = rows(whole.kv_b, scaled(heads, kQkNopeHeadDim + kVHeadDim));
    part.o = columns(whole.o, scaled(heads, kVHeadDim));
    return part;
  }

  MlpWeights mlp(const MlpWeights& whole) const {
    return cut(whole, mlp_width_of(whole.gate.n, split_, unit_of(whole), rank_));
  }

  MoeWeights moe(const MoeWeights& whole) const {
    MoeWeights part{.gate = whole.gate, .correction_bias = whole.correction_bias};
    const Range local = experts_of(config_, split_, rank_);
    part.first_expert = local.begin;
    for (int64_t i = local.begin; i < local.end; ++i) {
      const MlpWeights& expert = whole.experts[static_cast<size_t>(i)];
      part.experts.push_back(cut(expert, expert_width_of(config_, split_, unit_of(expert), rank_)));
    }
    const bool empty = std::all_of(part.experts.begin(), part.experts.end(),
                                   [](const MlpWeights& expert) { return expert.gate.n == 0; });
    if (empty) part.experts.clear();
    if (!whole.shared) return part;
    const MlpWeights shared = mlp(*whole.shared);
    if (shared.gate.n > 0) part.shared = shared;
    return part;
  }

  LayerWeights layer(const LayerWeights& whole) const {
    LayerWeights part{.input_norm = whole.input_norm,
                      .post_attention_norm = whole.post_attention_norm,
                      .attention = attention(whole.attention)};
    if (whole.mlp) part.mlp = mlp(*whole.mlp);
    if (whole.moe) part.moe = moe(*whole.moe);
    return part;
  }

 private:
  static int64_t unit_of(const MlpWeights& weights) {
    return mlp_unit(weights.gate.type, weights.up.type, weights.down.type);
  }

  static MlpWeights cut(const MlpWeights& whole, Range width) {
    return {.gate = rows(whole.gate, width), .up = rows(whole.up, width), .down = columns(whole.down, width)};
  }

  const ModelConfig& config_;
  const ModelSplit split_;
  const int64_t rank_;
};

int64_t bytes_of(const LayerWeights& layer, int64_t hidden) {
  constexpr int64_t kF32 = sizeof(float);
  const AttentionWeights& attention = layer.attention;
  int64_t bytes = (2 * hidden + attention.q_a.n + kKvLoraRank) * kF32;  // norms
  for (const MatrixWeight* w :
       {&attention.q_proj, &attention.q_a, &attention.q_b, &attention.kv_a, &attention.kv_b, &attention.o})
    bytes += matrix_bytes(*w);
  if (attention.indexer) bytes += bytes_of(*attention.indexer);
  if (layer.mlp) bytes += bytes_of(*layer.mlp);
  if (!layer.moe) return bytes;
  bytes += matrix_bytes(layer.moe->gate);
  if (layer.moe->correction_bias != nullptr) bytes += layer.moe->gate.n * kF32;
  for (const MlpWeights& expert : layer.moe->experts) bytes += bytes_of(expert);
  return layer.moe->shared ? bytes + bytes_of(*layer.moe->shared) : bytes;
}

// Returns true if `part` is a view into the rows of `whole`.
bool lies_in(const MatrixWeight& part, const MatrixWeight& whole) {
  const auto* begin = static_cast<const std::byte*>(whole.data);
  const auto* at = static_cast<const std::byte*>(part.data);
  return at >= begin && at < begin + whole.n * whole.row_stride * weight_element_bytes(whole.type);
}

}  // namespace

ModelWeights shard_weights(const ModelWeights& whole, const ModelConfig& config, ModelSplit split,
                           int64_t rank) {
  const Shard shard(config, split, rank);
  ModelWeights part;
  part.embedding = whole.embedding;
  part.lm_head = rows(whole.lm_head, vocabulary_of(config, split, rank));
  part.final_norm = whole.final_norm;
  part.layers.reserve(whole.layers.size());
  for (const LayerWeights& layer : whole.layers) part.layers.push_back(shard.layer(layer));
  if (whole.mtp) {
    part.mtp = *whole.mtp;
    part.mtp->layer = shard.layer(whole.mtp->layer);
    part.mtp->lm_head = rows(whole.mtp->lm_head, vocabulary_of(config, split, rank));
  }
  part.compute_dtype = whole.compute_dtype;
  part.storage = whole.storage;
  return part;
}

int64_t bytes_of(const IndexerWeights& weights) {
  return matrix_bytes(weights.wq_b) + matrix_bytes(weights.wk) + matrix_bytes(weights.weights_proj) +
         2 * weights.wk.n * static_cast<int64_t>(sizeof(float));
}

int64_t bytes_of(const MlpWeights& weights) {
  return matrix_bytes(weights.gate) + matrix_bytes(weights.up) + matrix_bytes(weights.down);
}

int64_t bytes_of(const ModelWeights& weights) {
  const int64_t hidden = weights.embedding.k;
  const auto unless_shared = [](const MatrixWeight& w, const MatrixWeight& other) {
    return lies_in(w, other) ? 0 : matrix_bytes(w);
  };
  constexpr int64_t kF32 = sizeof(float);
  int64_t bytes = matrix_bytes(weights.embedding) + unless_shared(weights.lm_head, weights.embedding);
  bytes += hidden * kF32;  // the final norm
  for (const LayerWeights& layer : weights.layers) bytes += bytes_of(layer, hidden);
  if (!weights.mtp) return bytes;
  const MtpWeights& mtp = *weights.mtp;
  bytes += bytes_of(mtp.layer, hidden) + 3 * hidden * kF32 + matrix_bytes(mtp.eh_proj);
  return bytes + unless_shared(mtp.embedding, weights.embedding) +
         (lies_in(mtp.lm_head, weights.embedding) ? 0 : unless_shared(mtp.lm_head, weights.lm_head));
}

}  // namespace hadal
