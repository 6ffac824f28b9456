// What a model weighs, from its config alone: parameters, bytes, KV bytes a token, tokens that fit. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/params/kv_layout.h"
#include "model/config.h"
#include "model/weights_loader.h"

namespace hadal {

struct ModelInfo {
  std::string architecture;  // as in config.json, "DeepseekV3ForCausalLM"
  // Of the model itself: without the NextN layer, each tied tensor once, scales not counted.
  int64_t num_parameters = 0;
  // Used by one token: the router's top experts instead of all, and no embedding table (one row is read).
  int64_t num_active_parameters = 0;
  int64_t num_nextn_parameters = 0;  // of the NextN layer, without what it shares with the target
  // In memory once loaded, scales and (if it is loaded) the NextN layer included.
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;    // all layers, in the given format
  int64_t max_total_num_tokens = 0;  // whole pages that fit beside the weights in memory_bytes; 0 if none
};

// `options` says what loading would make of the weights (compute_dtype, quantization, load_nextn).
// `kv_layout` is the cache's format, `memory_bytes` what weights and cache may take together.
ModelInfo model_info(const ModelConfig& config, const WeightLoadOptions& options, const KvLayout& kv_layout,
                     int64_t memory_bytes);

// Bytes that one token takes in the cache: one record in every layer.
int64_t kv_bytes_per_token(const ModelConfig& config, const KvLayout& kv_layout);

}  // namespace hadal
