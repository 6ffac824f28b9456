// Computes the feed-forward half of a layer: a dense SwiGLU MLP, or router, routed experts and shared expert.
#pragma once

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/cpu/ops/moe.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace hadal {

// Router holds the router's constants, from the config.
struct Router {
  GateOptions gate;
  int64_t top_k = 0;
};
Router make_router(const ModelConfig& config);

// Computes y [m, hidden] = experts(x) + shared(x), or with one rank's weights that rank's part of the sum. It
// returns the number of distinct experts, on all ranks together, to which tokens were routed.
int32_t moe_block(const MoeWeights& weights, const Router& router, const Tensor& x, const Tensor& y,
                  ExecContext& exec);

}  // namespace hadal
