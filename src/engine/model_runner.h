// Runs one batch at a time and returns its logits, for commands and tests that run a model without the
// engine, and for the CPU's executor. One thread uses it.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "model/model.h"
#include "tensor/buffer.h"

namespace hadal {

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // Returns logits float32 [batch.logit_rows.size(), vocab] in host memory, valid until the next call. It
  // throws hadal::Error.
  virtual std::span<const float> forward(const ForwardBatch& batch) = 0;
};

// Owns the KV pools, the step's workspace and the logits.
class CpuRunner final : public ModelRunner {
 public:
  // Both must outlive the runner. The constructor throws hadal::Error when the pools cannot be allocated.
  CpuRunner(Model& model, ThreadPool& pool, int64_t num_pages, KvLayout layout,
            KernelSet kernels = KernelSet::kOptimised);

  std::span<const float> forward(const ForwardBatch& batch) override;

  const KvCache& cache() const { return cache_; }
  // Returns statistics of the latest forward pass.
  const ExpertStats& expert_stats() const { return model_.expert_stats(); }

 private:
  Model& model_;
  ThreadPool& pool_;
  KernelSet kernels_;
  KvCache cache_;
  Arena workspace_;
  Buffer logits_;
};

}  // namespace hadal
