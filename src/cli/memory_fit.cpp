#include "cli/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/info.h"

namespace hadal::cli {

MemoryFit judge_fit(int64_t weight_bytes, int64_t kv_bytes_per_token, int64_t memory_bytes) {
  MemoryFit fit{.memory_bytes = std::max<int64_t>(memory_bytes, 0),
                .weight_bytes = weight_bytes,
                .page_bytes = kv_bytes_per_token * kPageSize};
  if (memory_bytes > 0)
    fit.missing_bytes = std::max<int64_t>(weight_bytes + fit.page_bytes - memory_bytes, 0);
  return fit;
}

MemoryFit judge_fit(const DeviceMemoryPlan& plan, int64_t kv_bytes_per_token) {
  const int64_t others = plan.context_bytes + plan.workspace_bytes + plan.state_bytes + plan.graph_bytes;
  // The value is at least 1, because 0 would stand for an unknown amount.
  const int64_t memory_bytes = std::max<int64_t>(plan.budget_bytes() - others, 1);
  return judge_fit(plan.weight_bytes, kv_bytes_per_token, memory_bytes);
}

std::string readable_bytes(int64_t bytes) {
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 1000000) return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{} B", bytes);
}

Result<void> check_fit(const MemoryFit& fit, const std::string& place) {
  if (fit.fits()) return {};
  const std::string page =
      fit.weight_bytes <= fit.memory_bytes
          ? fmt::format(" and one page of its KV cache {}", readable_bytes(fit.page_bytes))
          : "";
  return make_status(StatusCode::kResourceExhausted,
                     "the model does not fit: its weights need {}{}, and {} are {}, which is {} too little",
                     readable_bytes(fit.weight_bytes), page, readable_bytes(fit.memory_bytes), place,
                     readable_bytes(fit.missing_bytes));
}

}  // namespace hadal::cli
