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
// Plain loops, one output a thread: any shape and type.
void grouped_linear(const GroupedLinearParams& params, const Launch& launch);
}  // namespace reference

// Weight streaming for few rows an expert (experts/grouped/skinny.cu), gathering rows of x by token_of. Right
// for any number of rows; an expert with more rows than one tile reads its weights once a tile.
void grouped_skinny_linear(const GroupedLinearParams& params, const Launch& launch);
void grouped_skinny_linear(const GroupedLinearParams& params, const Launch& launch,
                           const skinny::Schedule& schedule);

// Tiled WGMMA kernel for many rows an expert (experts/grouped/tiled.cpp): all types but float32, rows sorted
// (token_of null).
void wgmma_grouped_linear(const GroupedLinearParams& params, const Launch& launch);
// With a given tile: any is right for any rows.
void wgmma_grouped_linear(const GroupedLinearParams& params, const Launch& launch, GroupedTile tile);

}  // namespace hadal::cuda
