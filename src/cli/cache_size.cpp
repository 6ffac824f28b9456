#include "cli/cache_size.h"

#include <algorithm>

#include "model/info.h"

namespace hadal::cli {

int64_t fitted_cache_tokens(int64_t longest, int64_t sequences, const EngineOptions& options,
                            const ModelConfig& config, const KvLayout& layout) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  const int64_t sequence = in_whole_pages(longest);
  const int64_t together =
      options.max_running_requests == 0 ? sequences : std::min(options.max_running_requests, sequences);
  const int64_t wanted = sequence * together;
  const int64_t affordable = kBytes / kv_bytes_per_token(config, layout);
  return std::max(sequence, std::min(wanted, affordable / kPageSize * kPageSize));
}

}  // namespace hadal::cli
