// Waits for one request, and lets the caller stop it.
#pragma once

#include <functional>

#include "engine/engine.h"

namespace hadal::cli {

// Waits until request `id` has ended. The request must have no sink and must not be drained yet. Every chunk
// is passed to `on_chunk` as soon as it exists; the final chunk is returned as well. `stop` is polled at
// least every 50 ms; when it returns true, the request is aborted after the current step.
TokenChunk drain(Engine& engine, RequestId id, const std::function<bool()>& stop,
                 const std::function<void(const TokenChunk&)>& on_chunk);

}  // namespace hadal::cli
