// How large a KV cache to ask for when the requests are known beforehand.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "model/config.h"

namespace hadal::cli {

// Room for `sequences` requests of up to `longest` tokens at once (no more than options lets run), as far as
// 2 GiB go; at least one of them. Tokens, whole pages.
int64_t fitted_cache_tokens(int64_t longest, int64_t sequences, const EngineOptions& options,
                            const ModelConfig& config, const KvLayout& layout);

}  // namespace hadal::cli
