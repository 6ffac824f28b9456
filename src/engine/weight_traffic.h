// Bytes that a decode step has to read at least: the yardstick of bench one-batch. Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/params/kv_layout.h"
#include "model/model.h"

namespace hadal {

// Of one matrix, scales included; 0 where there is none.
int64_t bytes_of(const MatrixWeight& weight);

// Weights of the layers, norms and router included, with only the experts that were hit (distinct_experts:
// of each MoE layer in order), and the head. The embedding table is not counted: a row a token is read.
int64_t weight_bytes_read(const ModelWeights& weights, std::span<const int32_t> distinct_experts);

// Records of `num_sequences` sequences of `kv_len` tokens, in all layers.
int64_t kv_bytes_read(const ModelConfig& config, const KvLayout& layout, int64_t num_sequences,
                      int64_t kv_len);

// Distinct experts of a layer when `num_tokens` tokens choose k of E at random: E·(1−(1−k/E)^num_tokens).
double expected_distinct_experts(const ModelConfig& config, int64_t num_tokens);

}  // namespace hadal
