// Runs batches on one GPU, one at a time, kernel by kernel, and copies the logits to the host. With several
// ranks each has one, and only rank 0's hands logits over. Only one thread may use it.
#pragma once

#include "engine/cuda/cuda_model.h"
#include "engine/cuda/device_inputs.h"
#include "engine/cuda/rank_links.h"
#include "engine/model_runner.h"

namespace hadal {

class CudaRunner final : public ModelRunner {
 public:
  // Allocates memory for batches of up to max_tokens rows; workspace_bytes is that of step_bytes(). Throws
  // OutOfDeviceMemory.
  CudaRunner(CudaModel& model, int64_t num_pages, int64_t max_tokens, KvLayout layout, size_t workspace_bytes,
             RankEnd end = {});
  // Returns what a batch of up to max_tokens rows needs.
  static DeviceDecoder::StepBytes step_bytes(CudaModel& model, int64_t max_tokens, KvLayout layout);
  ~CudaRunner() override;

  std::span<const float> forward(const ForwardBatch& batch) override;

 private:
  CudaModel& model_;
  const RankEnd end_;
  CudaStream stream_;
  DeviceInputs inputs_;
  DeviceKvCache cache_;
  DeviceArena workspace_;
  DeviceBuffer logits_;  // grows
  PinnedBuffer host_;    // grows
};

}  // namespace hadal
