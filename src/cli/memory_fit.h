// Judges whether a model fits into the memory of a device, for `hadal info`. The functions are pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/cuda/memory_plan.h"

namespace hadal::cli {

struct MemoryFit {
  int64_t memory_bytes = 0;   // what weights and KV cache may use together; 0: not known
  int64_t weight_bytes = 0;   // as the device holds them
  int64_t page_bytes = 0;     // one page of the KV cache
  int64_t missing_bytes = 0;  // by how much weights and one page of cache exceed that memory; 0: they fit
  bool fits() const { return missing_bytes == 0; }
};

// `memory_bytes` 0 stands for an unknown amount, which everything fits into.
MemoryFit judge_fit(int64_t weight_bytes, int64_t kv_bytes_per_token, int64_t memory_bytes);

// Judges by what the plan's budget leaves for weights and KV cache.
MemoryFit judge_fit(const DeviceMemoryPlan& plan, int64_t kv_bytes_per_token);

// Writes a size like "12.34 GB", "1.50 MB" or "17 B".
std::string readable_bytes(int64_t bytes);

// Returns an error (kResourceExhausted) if the model does not fit, so that nothing would run. The message
// says what is needed (with the page only if the weights alone fit), what is there and what is missing;
// `place` ends its "23.00 GB are …", for example "available to the CPU".
Result<void> check_fit(const MemoryFit& fit, const std::string& place);

}  // namespace hadal::cli
