// StreamHandle is an opaque device stream (a cudaStream_t on CUDA, null on the CPU). It lets headers name a
// stream without including CUDA's headers.
#pragma once

namespace hadal {

struct StreamHandle {
  void* native = nullptr;
};

}  // namespace hadal
