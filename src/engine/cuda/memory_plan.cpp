#include "engine/cuda/memory_plan.h"

#include <algorithm>

#include "kernels/params/kv_layout.h"

namespace hadal {
namespace {

double gb(int64_t bytes) {
  return static_cast<double>(bytes) * 1e-9;
}

// Returns the largest n in [1, most] that fits; 1 if none does. Numbers below one that fits must fit too.
int64_t largest_up_to(int64_t most, const std::function<bool(int64_t)>& does_fit) {
  int64_t fits = 1;
  for (int64_t fails = most + 1; fits + 1 < fails;) {
    const int64_t middle = fits + (fails - fits) / 2;
    (does_fit(middle) ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace

int64_t DeviceMemoryPlan::budget_bytes() const {
  return static_cast<int64_t>(static_cast<double>(total_bytes) * fraction);
}

void DeviceMemoryPlan::fill_cache(int64_t kv_bytes_per_token) {
  kv_bytes = std::max<int64_t>(
      budget_bytes() - weight_bytes - context_bytes - workspace_bytes - state_bytes - graph_bytes, 0);
  max_total_tokens = kv_bytes / (kv_bytes_per_token * kPageSize) * kPageSize;
}

int64_t default_running_requests(int64_t max_total_tokens, int64_t context_length) {
  const auto by_context = static_cast<int64_t>(static_cast<double>(max_total_tokens) /
                                               static_cast<double>(context_length) * 512.0);
  const int64_t wanted = std::clamp<int64_t>(by_context, 2048, kMostDefaultRequests);
  return std::max<int64_t>(std::min(wanted, max_total_tokens / kPageSize), 1);
}

int64_t most_requests_by_state(int64_t most, const std::function<int64_t(int64_t)>& state_bytes) {
  return largest_up_to(most,
                       [&](int64_t requests) { return state_bytes(requests) <= kMostDefaultStateBytes; });
}

int64_t most_requests_by_cache(int64_t most, int64_t context_length,
                               const std::function<int64_t(int64_t)>& tokens_left) {
  return largest_up_to(most, [&](int64_t requests) {
    return default_running_requests(tokens_left(requests), context_length) >= requests;
  });
}

Result<void> check_cache_fits(const DeviceMemoryPlan& plan, int64_t kv_bytes_per_token,
                              int64_t wanted_tokens) {
  const int64_t least = std::max<int64_t>(wanted_tokens, kPageSize);
  if (least <= plan.max_total_tokens) return {};
  const char* remedy = wanted_tokens > kPageSize && plan.max_total_tokens > 0
                           ? "lower --max-total-tokens"
                           : "raise --mem-fraction-static, or lower --chunked-prefill-size or "
                             "--max-running-requests";
  return make_status(
      StatusCode::kResourceExhausted,
      "a KV cache of {} tokens needs {:.2f} GB of GPU memory, but {:.2f} GB are left for it ({} "
      "tokens): {:.1f} GB · "
      "{:.2f} (--mem-fraction-static) less weights {:.2f}, CUDA and other programs {:.2f}, workspace {:.2f}, "
      "state {:.2f}, graphs {:.2f} GB; {}",
      least, gb(least * kv_bytes_per_token), gb(plan.kv_bytes), plan.max_total_tokens, gb(plan.total_bytes),
      plan.fraction, gb(plan.weight_bytes), gb(plan.context_bytes), gb(plan.workspace_bytes),
      gb(plan.state_bytes), gb(plan.graph_bytes), remedy);
}

}  // namespace hadal
