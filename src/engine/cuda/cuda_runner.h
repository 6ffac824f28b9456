// Runs batches on one GPU, one at a time, kernel by kernel, and copies the logits to the host. With several
// ranks each rank has a runner, and only rank 0's returns logits. Only one thread may use a runner.
#pragma once

#include <vector>

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
  bool has_nextn() const override { return model_.decoder.has_nextn(); }
  ForwardRows forward_with_hidden(const ForwardBatch& batch) override;
  ForwardRows forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) override;

 private:
  // Copies the batch's inputs to the device and reserves memory for its logits.
  DeviceStep begin(const ForwardBatch& batch);
  // Calls pass(exec), which launches a forward pass, once all ranks have reserved their memory.
  template <typename Pass>
  void run(const Pass& pass);
  // Copies logits and `num_hidden` hidden states to the host, and waits.
  ForwardRows hand_over(int64_t num_logits, int64_t num_hidden);
  int64_t hidden_bytes(int64_t num_rows) const;

  CudaModel& model_;
  const RankEnd end_;
  CudaStream stream_;
  DeviceInputs inputs_;
  DeviceKvCache cache_;
  DeviceArena workspace_;
  DeviceBuffer logits_;  // grows
  PinnedBuffer host_;    // grows
  DeviceBuffer hidden_;  // 16-bit hidden states that a pass gives; grows, and so do these:
  DeviceBuffer input_;   // those that NextN reads
  std::vector<uint16_t> host_hidden_;
  std::vector<float> hidden_values_;
};

}  // namespace hadal
