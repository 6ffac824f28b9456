// Computes the size of the KV cache for requests that are known beforehand.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "model/config.h"

namespace hadal::cli {

// Returns how many tokens, in whole pages, a cache needs for `sequences` requests of up to `longest` tokens
// each. Only as many requests count as may run at once. The cache is limited to 2 GiB, but always has room
// for one request.
int64_t fitted_cache_tokens(int64_t longest, int64_t sequences, const EngineOptions& options,
                            const ModelConfig& config, const KvLayout& layout);

}  // namespace hadal::cli
