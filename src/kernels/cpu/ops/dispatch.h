// Dispatches the CPU op families by device and implementation; only ops/ includes it.
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/exec_context.h"

namespace hadal {

// Lends a kernel scratch memory from the step's workspace until the op returns.
class WorkspaceScratch final : public cpu::Scratch {
 public:
  explicit WorkspaceScratch(Arena& arena) : arena_(arena), scope_(arena) {}
  void* allocate(size_t size_bytes) override { return arena_.allocate(size_bytes); }

 private:
  Arena& arena_;
  Arena::Scope scope_;
};

}  // namespace hadal

// Calls cpu::simd::family or cpu::reference::family, depending on exec.kernels.
#define HADAL_DISPATCH_CPU(family, params, exec)                                                   \
  do {                                                                                             \
    HADAL_CHECK((exec).device.type == ::hadal::DeviceType::kCpu, #family " runs on the CPU only"); \
    ::hadal::WorkspaceScratch hadal_scratch_((exec).workspace);                                    \
    ::hadal::cpu::Context hadal_context_{(exec).pool, hadal_scratch_};                             \
    if ((exec).kernels == ::hadal::KernelSet::kReference) {                                        \
      ::hadal::cpu::reference::family(params, hadal_context_);                                     \
    } else {                                                                                       \
      ::hadal::cpu::simd::family(params, hadal_context_);                                          \
    }                                                                                              \
  } while (0)
