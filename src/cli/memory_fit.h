// Judges whether a model fits into the memory of a device, for `hadal info`. The functions are pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/cuda/memory_plan.h"

namespace hadal::cli {

struct MemoryFit {
  int64_t memory_bytes = 0;   // for weights and KV cache together; 0: not known
  int64_t weight_bytes = 0;   // as the device holds them
  int64_t page_bytes = 0;     // one page of the KV cache
  int64_t missing_bytes = 0;  // how far weights and one page of cache exceed that memory; 0: they fit
  bool fits() const { return missing_bytes == 0; }
};

// A `memory_bytes` of 0 stands for an unknown amount, into which everything fits.
MemoryFit judge_fit(int64_t weight_bytes, int64_t kv_bytes_per_token, int64_t memory_bytes);

// Judges by the memory that the plan's budget leaves for weights and KV cache.
MemoryFit judge_fit(const DeviceMemoryPlan& plan, int64_t kv_bytes_per_token);

// Writes a size like "12.34 GB", "1.50 MB" or "17 B".
std::string readable_bytes(int64_t bytes);

// Returns an error (kResourceExhausted) if the model does not fit, because then it cannot run. The message
// says how many bytes are needed (with the page only if the weights alone fit), available and missing.
// `place` completes its phrase "23.00 GB are …", for example with "available to the CPU".
Result<void> check_fit(const MemoryFit& fit, const std::string& place);

}  // namespace hadal::cli
