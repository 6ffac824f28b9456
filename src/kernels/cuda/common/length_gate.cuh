// Ends a kernel early whose result no row of the step needs.
#pragma once

#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/length_gate.h"

namespace hadal::cuda {

// Returns true if the kernel may end; all threads of all blocks get the same answer. Such a kernel has waited
// for the previous one, so that the next kernel, which waits for this one alone, still begins after both. It
// must be called before anything is loaded, by all threads of a block.
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
