// The ways to compute cuda::grouped_linear, among which experts/grouped/linear.cpp chooses. Internal to
// kernels/cuda/experts, its benches and the measurements of `hadal tune` (tune/product_measurer.cpp); free
// of CUDA headers.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda {

// The shape that the parameters have for the choice of the kernel.
GroupedShape grouped_shape(const GroupedLinearParams& params, int num_sms);

namespace reference {
// Plain loops with one output per thread, for any shape and type.
void grouped_linear(const GroupedLinearParams& params, const Launch& launch);
}  // namespace reference

// Weight streaming for few rows per expert (experts/grouped/skinny.cpp), which gathers rows of x by token_of.
// It is right for any number of rows; an expert with more rows than one tile reads its weights once per tile.
void grouped_skinny_linear(const GroupedLinearParams& params, const Launch& launch);
void grouped_skinny_linear(const GroupedLinearParams& params, const Launch& launch,
                           const skinny::Schedule& schedule);

// The tiled WGMMA kernel for many rows per expert (experts/grouped/tiled.cpp), for bf16 and the 8-bit types;
// rows must be sorted (token_of null).
void wgmma_grouped_linear(const GroupedLinearParams& params, const Launch& launch);
// With a given tile: any is right for any rows.
void wgmma_grouped_linear(const GroupedLinearParams& params, const Launch& launch, GroupedTile tile);

}  // namespace hadal::cuda
