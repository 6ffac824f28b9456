// Wraps the PTX of programmatic dependent launch, with which a kernel starts while the previous kernel ends.
// kernels/cuda/launch.h states the rules.
#pragma once

namespace hadal::cuda {

// Returns when every earlier kernel of the stream has ended and its writes are visible. Does nothing in a
// kernel launched without the attribute.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start once every block has called this (or ended). The next kernel still waits in
// pdl_wait for the end of this kernel, so the call only decides when the next kernel's blocks may occupy the
// multiprocessors. Call it when the block's main work is done.
__device__ __forceinline__ void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace hadal::cuda
