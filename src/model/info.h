// Computes the size of a model from its config alone: parameters, bytes, KV bytes per token and tokens that
// fit. The functions are pure.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/params/kv_layout.h"
#include "model/config.h"
#include "model/shard.h"
#include "model/weights_loader.h"

namespace hadal {

struct ModelInfo {
  std::string architecture;  // as in config.json, "DeepseekV3ForCausalLM"
  // The parameters of the model itself, without the NextN layer and without scales; a tied tensor counts
  // once.
  int64_t num_parameters = 0;
  // The parameters that one token uses: the router's top experts instead of all, and no embedding table,
  // because only one row of it is read.
  int64_t num_active_parameters = 0;
  int64_t num_nextn_parameters = 0;  // in the NextN layer, without what it shares with the target
  // Bytes in memory once loaded, including scales and (if it is loaded) the NextN layer.
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;     // over all layers, in the given format, with index keys
  int64_t index_bytes_per_token = 0;  // of index keys, over all layers; 0 without an indexer
  int64_t max_total_num_tokens = 0;   // whole pages that fit beside the weights in memory_bytes; 0 if none
};

// `options` tells how loading would convert the weights (compute_dtype, quantization, load_nextn).
// `kv_layout` is the cache's format, `memory_bytes` the memory that weights and cache may use together.
ModelInfo model_info(const ModelConfig& config, const WeightLoadOptions& options, const KvLayout& kv_layout,
                     int64_t memory_bytes);

struct RankBytes {
  int64_t all = 0;
  int64_t experts = 0;  // of routed experts; 0: the rank holds none of them
};

// Returns the bytes of the weights that a rank holds once loaded (shard_weights.h). The split has been
// checked (check_split); `options` are as above.
RankBytes rank_bytes(const ModelConfig& config, const WeightLoadOptions& options, ModelSplit split,
                     int64_t rank);

// Returns the same for a rank on a GPU, without the NextN layer. `all` is its block of device memory,
// including padding and everything that is laid out for the kernels (cuda/device_weights.h).
RankBytes gpu_rank_bytes(const ModelConfig& config, const WeightLoadOptions& options, ModelSplit split,
                         int64_t rank);

// Returns the bytes that one token needs in the cache: one record in every layer, and one index key if the
// layout has them. `with_nextn` counts the NextN layer, too.
int64_t kv_bytes_per_token(const ModelConfig& config, const KvLayout& kv_layout, bool with_nextn = false);

}  // namespace hadal
