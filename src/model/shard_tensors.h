// Says which part of each tensor of a checkpoint a rank holds, from the config alone. These are the sizes of
// the views that shard_weights.h makes. The functions are pure.
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

// Returns the part of `spec` that `rank` holds, which may be empty. `type` is the type of the matrix once
// loaded. For matrices of MLPs, `unit` is the unit at whose multiples the MLP may be cut (mlp_unit). `spec`
// must not be a scale (kScale), because a scale has the part of its matrix. For a NextN layer it returns what
// the rank would hold.
TensorPart tensor_part(const ModelConfig& config, const TensorSpec& spec, ModelSplit split, int64_t rank,
                       WeightType type, int64_t unit);

// Returns "model.layers.3.mlp.experts.7." for the matrices of that MLP, and an empty text for other tensors.
std::string_view mlp_prefix(std::string_view tensor_name);

}  // namespace hadal
