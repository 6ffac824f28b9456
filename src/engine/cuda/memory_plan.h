// Plans a GPU's memory: what is used before the KV cache is made, and the bytes that are left for the cache.
// Its functions are pure.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "kernels/cuda/padding.h"

namespace hadal {

struct DeviceMemoryPlan {
  int64_t total_bytes = 0;  // the device's memory
  // the part of it that may be used; the rest is left for padding of graphs and for what libraries allocate
  double fraction = 0.88;
  int64_t weight_bytes = 0;
  int64_t context_bytes = 0;     // used by others: CUDA itself, libraries, other processes
  int64_t workspace_bytes = 0;   // scratch of a step
  int64_t state_bytes = 0;       // logits, sampling state per slot, staged inputs and results
  int64_t graph_bytes = 0;       // reserved for graphs
  int64_t kv_bytes = 0;          // what is left
  int64_t max_total_tokens = 0;  // whole pages of kv_bytes

  int64_t budget_bytes() const;  // what everything may use together: total · fraction

  // Computes the budget minus everything else, and sets kv_bytes and max_total_tokens (0 when no page fits).
  void fill_cache(int64_t kv_bytes_per_token);
};

// default_running_requests is the number of requests that run together when no flag sets it, before memory
// for their state is considered. It is SGLang's rule, by the number of requests of the longest context that
// the cache holds: clamp(tokens / context · 512, 2,048, kMostDefaultRequests), at least 1. It is at most the
// number of pages, because every running request has a page of its own. kMostDefaultRequests is
// kMostGraphTokens, so every batch that runs by default has a graph.
inline constexpr int64_t kMostDefaultRequests = cuda::kMostGraphTokens;
int64_t default_running_requests(int64_t max_total_tokens, int64_t context_length);

// By default the state of the requests' slots (logits, sampling values, page tables) may use this much device
// memory.
inline constexpr int64_t kMostDefaultStateBytes = 1'000'000'000;

// Returns the largest number of requests up to `most` whose state fits into kMostDefaultStateBytes, at least
// 1. state_bytes(n) must not fall as n grows.
int64_t most_requests_by_state(int64_t most, const std::function<int64_t(int64_t)>& state_bytes);

// Returns the largest number n of requests up to `most`, at least 1, for which a plan for n requests leaves a
// cache large enough that default_running_requests allows n requests. tokens_left(n) is the size of that
// cache in tokens; it must not rise as n grows. Each number is tested with its own plan, because the state,
// graphs and workspace of more requests may leave no cache at all.
int64_t most_requests_by_cache(int64_t most, int64_t context_length,
                               const std::function<int64_t(int64_t)>& tokens_left);

// Reserved for the executable graph of one bucket: its nodes and their arguments.
inline constexpr int64_t kGraphBytes = int64_t{2} << 20;

// Returns kResourceExhausted when fewer than `wanted_tokens` (0: one page) fit. The error says what is
// needed, what is available and which flags help.
Result<void> check_cache_fits(const DeviceMemoryPlan& plan, int64_t kv_bytes_per_token,
                              int64_t wanted_tokens);

}  // namespace hadal
