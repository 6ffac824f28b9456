#include "cli/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "model/info.h"

namespace hadal::cli {

MemoryFit judge_fit(int64_t weight_bytes, int64_t kv_bytes_per_token, int64_t memory_bytes) {
  MemoryFit fit{.memory_bytes = memory_bytes, .weight_bytes = weight_bytes};
  const int64_t page_bytes = kv_bytes_per_token * kPageSize;
  if (memory_bytes <= 0) {
    fit.memory_bytes = 0;
    fit.max_tokens = std::numeric_limits<int64_t>::max() / kPageSize * kPageSize;
    return fit;
  }
  fit.missing_bytes = std::max<int64_t>(weight_bytes + page_bytes - memory_bytes, 0);
  fit.max_tokens = std::max<int64_t>(memory_bytes - weight_bytes, 0) / page_bytes * kPageSize;
  return fit;
}

int64_t gpu_budget_bytes(int64_t total_bytes, int64_t used_bytes, double fraction) {
  return std::max<int64_t>(static_cast<int64_t>(static_cast<double>(total_bytes) * fraction) - used_bytes, 1);
}

std::string readable_bytes(int64_t bytes) {
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 1000000) return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{} B", bytes);
}

Result<void> check_fit(const MemoryFit& fit, const std::string& place) {
  if (fit.fits()) return {};
  return make_status(StatusCode::kResourceExhausted,
                     "the model does not fit: its weights need {}, and {} are {}, which is {} too little",
                     readable_bytes(fit.weight_bytes), readable_bytes(fit.memory_bytes), place,
                     readable_bytes(fit.missing_bytes));
}

}  // namespace hadal::cli
