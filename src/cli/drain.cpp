#include "cli/drain.h"

#include "base/check.h"

namespace hadal::cli {

TokenChunk drain(Engine& engine, RequestId id, const InterruptGuard& guard,
                 const std::function<void(const TokenChunk&)>& on_chunk) {
  while (true) {
    if (guard.interrupted()) engine.abort(id);
    std::optional<TokenChunk> chunk = engine.poll(id);
    if (!chunk) {
      HADAL_CHECK(engine.step(), "request {} waits but there is nothing to run", id);
      continue;
    }
    on_chunk(*chunk);
    if (chunk->finish_reason != FinishReason::kNone) return std::move(*chunk);
  }
}

}  // namespace hadal::cli
