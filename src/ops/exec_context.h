// What an op needs to run: passed down by reference from the engine, so that no state is ambient.
#pragma once

#include "base/stream_handle.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace hadal {

// Which of the two implementations every op uses (--kernels).
enum class KernelSet { kOptimised, kReference };

struct ExecContext {
  Device device;
  ThreadPool& pool;
  Arena& workspace;  // scratch of the current step
  StreamHandle stream;
  KernelSet kernels = KernelSet::kOptimised;
};

}  // namespace hadal
