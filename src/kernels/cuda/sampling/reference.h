// Declares the plain kernels of sampling, which have one block per row, support any vocabulary and compute in
// doubles. This header includes no CUDA header.
#pragma once

#include "kernels/cuda/sampling/sampling.h"

namespace hadal::cuda::reference {

void sample(const SampleParams& params, const Launch& launch);
void choose_drafts(const SampleParams& params, int count, DraftGuess* guesses, const Launch& launch);
void score_tokens(const ScoreParams& params, const Launch& launch);

}  // namespace hadal::cuda::reference
