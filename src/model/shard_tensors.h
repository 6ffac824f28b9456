// Says what a rank holds of each tensor of a checkpoint, from the config alone: the sizes of the views that
// shard_weights.h makes. The functions are pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/shard.h"
#include "model/tensor_list.h"

namespace hadal {

struct TensorPart {
  int64_t rows = 0;  // 1 for a vector
  int64_t cols = 0;
};

// Returns the part of `spec` that `rank` holds, which may be empty. `type` is that of the matrix once loaded.
// `unit` is where its MLP may be cut (mlp_unit), for matrices of MLPs. Scales have the part of their matrix,
// so that `spec` is none (kScale). In a NextN layer it says what the rank would hold.
TensorPart tensor_part(const ModelConfig& config, const TensorSpec& spec, ModelSplit split, int64_t rank,
                       WeightType type, int64_t unit);

// Returns "model.layers.3.mlp.experts.7." for the matrices of that MLP, and an empty text for other tensors.
std::string_view mlp_prefix(std::string_view tensor_name);

}  // namespace hadal
