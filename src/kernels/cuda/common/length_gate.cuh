// Ends a kernel early if no row of the step needs its result.
#pragma once

#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/length_gate.h"

namespace hadal::cuda {

// Returns true if the kernel may end; the result is the same in all threads of all blocks. Before it returns
// true it has called pdl_wait(), so that the next kernel, which waits for this kernel alone, also runs after
// the previous one. All threads of a block must call this before they load anything.
__device__ __forceinline__ bool is_closed(const LengthGate& gate) {
  if (gate.lengths == nullptr) return false;
  if (!gate.settled) pdl_wait();
  bool needed = false;
  // The reads bypass the L1, which may hold the lengths of an earlier step.
  for (int i = static_cast<int>(threadIdx.x); i < gate.count; i += static_cast<int>(blockDim.x))
    needed |= __ldcg(gate.lengths + i) > gate.limit;
  if (__syncthreads_or(needed ? 1 : 0) != 0) return false;
  pdl_wait();
  return true;
}

}  // namespace hadal::cuda
