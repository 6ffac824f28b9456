// Declares the plain kernels of the indexer, which support any shape and alignment and return the same bits
// as the CPU's operations.
#pragma once

#include <cmath>

#include "kernels/cuda/indexer/indexer.h"

namespace hadal::cuda {

// Returns the factor num_heads^−0.5 · 128^−0.5, by which a head's weight is multiplied before the scale.
inline float index_query_factor(int num_heads) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(num_heads) * kIndexHeadDim));
}

namespace reference {
void index_write(const DeviceIndexWriteParams& params, const Launch& launch);
void index_query(const DeviceIndexQueryParams& params, const Launch& launch);
void index_select(const DeviceIndexSelectParams& params, const IndexSelectPlan& plan, const Launch& launch);
}  // namespace reference

}  // namespace hadal::cuda
