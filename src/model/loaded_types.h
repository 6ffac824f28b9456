// Says which type each matrix has once it is loaded, by the table at the top of weights.h. The loader and the
// computation of sizes (info.h) ask the same functions. They are pure.
#pragma once

#include <string_view>

#include "model/tensor_list.h"
#include "model/weights_loader.h"

namespace hadal {

// Returns the type of matrices that are stored in 16 or 32 bits, unless an exception applies.
WeightType compute_type(DType compute_dtype);

// Returns the type that the matrix `weight_name` gets by itself. `stored` is the type of its elements in the
// checkpoint; codes (F8_E4M3, I8) need config.quantization.
WeightType loaded_type(const ModelConfig& config, const WeightLoadOptions& options,
                       std::string_view weight_name, TensorRole role, DType stored);

// Returns the type that gate and up of an MLP get together: they are read side by side, so that both have the
// compute type if they would differ.
WeightType common_type(WeightType gate, WeightType up, DType compute_dtype);

}  // namespace hadal
