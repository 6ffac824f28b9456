// This is an opaque device stream (a cudaStream_t on CUDA, null on the CPU), so that headers stay free of
// CUDA.
#pragma once

namespace hadal {

struct StreamHandle {
  void* native = nullptr;
};

}  // namespace hadal
