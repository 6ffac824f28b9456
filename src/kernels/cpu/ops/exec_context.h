// ExecContext holds everything that an op needs to run. The engine passes it down by reference, so that no
// state is global.
#pragma once

#include "base/stream_handle.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace hadal {

class Communicator;  // comm/communicator.h

// Selects one of the two implementations for every op (--kernels).
enum class KernelSet { kOptimised, kReference };

struct ExecContext {
  Device device;
  ThreadPool& pool;
  Arena& workspace;  // scratch of the current step
  StreamHandle stream;
  KernelSet kernels = KernelSet::kOptimised;
  Communicator* comm = nullptr;  // of the ranks that share the model; null: one rank
};

}  // namespace hadal
