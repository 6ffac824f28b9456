// Declares the ways to compute cuda::grouped_linear, among which experts/grouped/linear.cpp chooses. This
// header is internal to kernels/cuda/experts, its benches and the measurements of `hadal tune`
// (tune/product_measurer.cpp); it includes no CUDA header.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda {

// Returns the shape by which the kernel is chosen.
GroupedShape grouped_shape(const GroupedLinearParams& params, int num_sms);

namespace reference {
// Runs plain loops with one output per thread, for any shape and type.
void grouped_linear(const GroupedLinearParams& params, const Launch& launch);
}  // namespace reference

// Streams the weights past few rows per expert (experts/grouped/skinny.cpp) and gathers rows of x by
// token_of. It is correct for any number of rows; an expert with more rows than one tile reads its weights
// once per tile.
void grouped_skinny_linear(const GroupedLinearParams& params, const Launch& launch,
                           const skinny::Schedule& schedule);

// Runs the tiled WGMMA kernel for many rows per expert (experts/grouped/tiled.cpp), in bf16 and the 8-bit
// types. Rows must be sorted (token_of null); every tile is correct for any number of rows.
void wgmma_grouped_linear(const GroupedLinearParams& params, const Launch& launch, GroupedTile tile);

}  // namespace hadal::cuda
