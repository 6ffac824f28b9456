// Declares the fused norm that exchanges the partial sums of all ranks itself, in lines
// (kernels/cuda/comm/lines.cuh). Its results are bit-identical to those of the norm that reads the partial
// sums after an exchange of flags.
#pragma once

#include "kernels/cuda/elementwise/elementwise.h"

namespace hadal::cuda {

// Runs add_rms_norm for an input with `exchange`. norm_exchanges() must return true for the shape. Only
// add_rms_norm calls this function.
void exchanging_norm(const AddRmsNormParams& params, const Launch& launch);

// Returns the number of blocks that compute each of m rows of `threads` · 8 values. It is more than one if
// there are enough multiprocessors and the row's warps can be divided evenly among the blocks. For rows of up
// to 4,096 values a cluster's barrier costs more than it saves; two blocks are faster only with experts'
// rows.
inline int cluster_blocks(int64_t m, int threads, bool has_experts, const Launch& launch) {
  if (threads < 640) return 1;
  for (const int blocks : {7, 4, 2}) {
    if (blocks == 2 && !has_experts) break;
    if (threads / 32 % blocks == 0 && m * blocks <= launch.num_sms) return blocks;
  }
  return 1;
}

}  // namespace hadal::cuda
