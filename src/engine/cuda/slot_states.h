// What the device keeps for every running request by slot, from the step that starts the slot on: sampling
// values, biases, token counts, the last token. Engine thread only.
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

  // Bytes of device memory, without the lists of token ids that penalties start from.
  static int64_t device_bytes(int64_t max_slots, int64_t vocab_size);

  // Brings the slots that the step starts to the device. step_idx: of the StagingRing.
  void start(std::span<const SlotStart> starts, int step_idx, const cuda::Launch& launch);

  // The arrays of `params` that belong to slots.
  void bind(cuda::SampleParams& params) const;
  int32_t* last_token() const { return last_token_.as<int32_t>(); }

  const LogprobOptions& logprobs(int32_t slot) const { return host_[slot].logprobs; }
  // Why rows of the slot cannot be sampled on the device; empty: they can.
  const std::string& error(int32_t slot) const { return host_[slot].error; }

 private:
  struct HostSlot {
    LogprobOptions logprobs;
    std::string error;
  };

  const int64_t vocab_size_;
  std::vector<HostSlot> host_;
  DeviceBuffer slots_, last_token_, bias_ids_, bias_values_, counts_;
  DeviceBuffer lists_;  // prompt and generated tokens of the slots that count them; grows
  StagingRing staging_;
};

}  // namespace hadal
