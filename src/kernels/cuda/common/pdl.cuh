// Programmatic dependent launch: a kernel starts while the one before it ends. Rules in
// kernels/cuda/launch.h.
#pragma once

namespace hadal::cuda {

// Returns when every kernel before this one in the stream has ended and its writes are visible. Does nothing
// in a kernel launched without the attribute.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start once every block has called this (or ended). It still waits for this one's end
// in pdl_wait, so this decides only when its blocks may occupy the multiprocessors: call it when the block's
// main work is done.
__device__ __forceinline__ void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace hadal::cuda
