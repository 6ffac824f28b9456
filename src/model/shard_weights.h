// Makes a rank's weights from the whole model's, for ranks that share the process's memory. Every matrix is a
// view into the whole matrix, with its codes and scales, so nothing is copied or rounded again.
#pragma once

#include "model/config.h"
#include "model/shard.h"
#include "model/weights.h"

namespace hadal {

// Returns the weights of `rank`, which keep whole.storage alive. The split has been checked (check_split).
// AttentionWeights::q_skip, MoeWeights::first_expert and empty matrices (n or k 0) describe the rank's part.
// A shared expert or routed experts of which the rank holds nothing are absent. The NextN layer is divided
// like the others. mapped_bytes and owned_bytes are 0, because views have no bytes of their own.
ModelWeights shard_weights(const ModelWeights& whole, const ModelConfig& config, ModelSplit split,
                           int64_t rank);

// Returns the bytes of a model's weights, each matrix with its scales, whether mapped or owned; a head that
// lies in the embedding counts once.
int64_t bytes_of(const ModelWeights& weights);
int64_t bytes_of(const MlpWeights& weights);
int64_t bytes_of(const IndexerWeights& weights);

}  // namespace hadal
