// Declares the fused norm that exchanges the partial sums of all ranks itself, in lines
// (kernels/cuda/comm/lines.cuh), where add_rms_norm would read them after an exchange of flags. It has the
// same bits.
#pragma once

#include "kernels/cuda/elementwise/elementwise.h"

namespace hadal::cuda {

// Runs add_rms_norm for an input with `exchange`. The shape must be one that norm_exchanges takes; only
// add_rms_norm calls it.
void exchanging_norm(const AddRmsNormParams& params, const Launch& launch);

// Returns how many blocks compute a row of `threads` · 8 values, of m rows: more than one while there are
// multiprocessors for them and the row's warps divide among them. Rows of up to 4,096 values are finished
// before a cluster's barrier would be; two blocks are faster only with experts' rows.
inline int cluster_blocks(int64_t m, int threads, bool has_experts, const Launch& launch) {
  if (threads < 640) return 1;
  for (const int blocks : {7, 4, 2}) {
    if (blocks == 2 && !has_experts) break;
    if (threads / 32 % blocks == 0 && m * blocks <= launch.num_sms) return blocks;
  }
  return 1;
}

}  // namespace hadal::cuda
