// Runs a staged batch on the model: owns the KV pools, the step's workspace and the logits. Engine thread
// only.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "model/model.h"
#include "tensor/buffer.h"

namespace hadal {

class ModelRunner {
 public:
  // Throws hadal::Error when the pools cannot be allocated.
  ModelRunner(Model& model, ThreadPool& pool, int64_t num_pages, KvLayout layout,
              KernelSet kernels = KernelSet::kOptimised);

  // logits float32 [batch.logit_rows.size(), vocab], valid until the next call.
  std::span<const float> forward(const ForwardBatch& batch);

  const KvCache& cache() const { return cache_; }

 private:
  Model& model_;
  ThreadPool& pool_;
  KernelSet kernels_;
  KvCache cache_;
  Arena workspace_;
  Buffer logits_;
};

}  // namespace hadal
