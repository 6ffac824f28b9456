#include "cli/drain.h"

#include <chrono>

namespace hadal::cli {

TokenChunk drain(Engine& engine, RequestId id, const std::function<bool()>& stop,
                 const std::function<void(const TokenChunk&)>& on_chunk) {
  constexpr std::chrono::milliseconds kLookInterval{50};
  while (true) {
    if (stop()) engine.abort(id);
    std::optional<TokenChunk> chunk = engine.poll(id, kLookInterval);
    if (!chunk) continue;
    on_chunk(*chunk);
    if (chunk->finish_reason != FinishReason::kNone) return std::move(*chunk);
  }
}

}  // namespace hadal::cli
