// The plain kernels of sampling: one block per row, any vocabulary, doubles. Free of CUDA headers.
#pragma once

#include "kernels/cuda/sampling/sampling.h"

namespace hadal::cuda::reference {

void sample(const SampleParams& params, const Launch& launch);
void score_tokens(const ScoreParams& params, const Launch& launch);

}  // namespace hadal::cuda::reference
