// Computes the bytes that a decode step must read at least, with which `bench one-batch` compares its times.
// The functions are pure.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/params/kv_layout.h"
#include "model/model.h"

namespace hadal {

// Returns the bytes of the layers' weights, including norms and router, with only the experts that were hit
// (distinct_experts: one number per MoE layer, in order), and the head. The embedding table is not counted,
// because only one row per token is read. For V3.2's indexer, the weights that make index keys are counted;
// those that make scores are counted only with `selects_keys` (ModelConfig::selects_keys).
int64_t weight_bytes_read(const ModelWeights& weights, std::span<const int32_t> distinct_experts,
                          bool selects_keys = false);

// Returns the bytes of the records that `num_sequences` sequences of `kv_len` tokens read, in all layers.
// With an indexer and more than index_topk tokens these are index_topk records and all index keys.
int64_t kv_bytes_read(const ModelConfig& config, const KvLayout& layout, int64_t num_sequences,
                      int64_t kv_len);

// Returns the expected number of distinct experts of a layer if `num_tokens` tokens choose k of E at random:
// E·(1−(1−k/E)^num_tokens).
double expected_distinct_experts(const ModelConfig& config, int64_t num_tokens);

}  // namespace hadal
