// How a GPU's memory is dealt out: what is there before the KV cache, and what is left for it. Pure
// functions.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace hadal {

struct DeviceMemoryPlan {
  int64_t total_bytes = 0;  // of the device
  double fraction = 0.88;   // of it, for everything but graphs' padding and libraries' growth
  int64_t weight_bytes = 0;
  int64_t context_bytes = 0;     // in use besides: CUDA's own, libraries', other processes'
  int64_t workspace_bytes = 0;   // scratch of a step
  int64_t state_bytes = 0;       // logits, sampling state by slot, staged inputs and results
  int64_t graph_bytes = 0;       // set aside for graphs
  int64_t kv_bytes = 0;          // what is left
  int64_t max_total_tokens = 0;  // whole pages of it

  // total · fraction − everything else; sets kv_bytes and max_total_tokens (0 when not a page is left).
  void fill_cache(int64_t kv_bytes_per_token);
};

// Set aside for the executable graph of one bucket: its nodes and their arguments.
inline constexpr int64_t kGraphBytes = int64_t{2} << 20;

// kResourceExhausted with what is needed, what is there and which flags help, when less than `wanted_tokens`
// (0: one page) fit.
Result<void> check_cache_fits(const DeviceMemoryPlan& plan, int64_t kv_bytes_per_token,
                              int64_t wanted_tokens);

}  // namespace hadal
