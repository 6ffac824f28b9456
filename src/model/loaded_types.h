// Says which type each matrix has once it is loaded, by the table at the top of weights.h. The loader and the
// computation of sizes (info.h) call the same functions, which are pure.
#pragma once

#include <string_view>

#include "model/tensor_list.h"
#include "model/weights_loader.h"

namespace hadal {

// Returns the type of matrices that are stored in 16 or 32 bits, unless an exception applies.
WeightType compute_type(DType compute_dtype);

// Returns the type of the matrix `weight_name`, without regard to other matrices. `stored` is the type of its
// elements in the checkpoint; codes (F8_E4M3, I8) need config.quantization.
WeightType loaded_type(const ModelConfig& config, const WeightLoadOptions& options,
                       std::string_view weight_name, TensorRole role, DType stored);

// Returns the common type of gate and up of an MLP. Because the two are read side by side, both get the
// compute type if their types differ.
WeightType common_type(WeightType gate, WeightType up, DType compute_dtype);

}  // namespace hadal
