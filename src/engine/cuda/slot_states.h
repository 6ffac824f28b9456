// Holds the state that the device keeps for every slot from the step that starts it: sampling values, biases,
// token counts and the last token. Only the engine thread may use it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda/staging_ring.h"
#include "engine/step_executor.h"
#include "kernels/cuda/sampling/sampling.h"

namespace hadal {

class SlotStates {
 public:
  SlotStates(int64_t max_slots, int64_t vocab_size);

  // Returns the bytes of device memory, without the lists of token ids from which penalties start.
  static int64_t device_bytes(int64_t max_slots, int64_t vocab_size);

  // Copies the slots that the step starts to the device. step_idx is that of the StagingRing.
  void start(std::span<const SlotStart> starts, int step_idx, const cuda::Launch& launch);

  // Sets the arrays of `params` that belong to slots.
  void bind(cuda::SampleParams& params) const;
  int32_t* last_token() const { return last_token_.as<int32_t>(); }

  const LogprobOptions& logprobs(int32_t slot) const { return host_[slot].logprobs; }
  // Returns why rows of the slot cannot be sampled on the device, or an empty string if they can.
  const std::string& error(int32_t slot) const { return host_[slot].error; }

 private:
  struct HostSlot {
    LogprobOptions logprobs;
    std::string error;
  };

  const int64_t vocab_size_;
  std::vector<HostSlot> host_;
  DeviceBuffer slots_, last_token_, bias_ids_, bias_values_, counts_;
  DeviceBuffer lists_;  // prompt and generated tokens of slots that need counts; grows
  StagingRing staging_;
};

}  // namespace hadal
