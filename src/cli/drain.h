// Waits for one request while Ctrl-C is looked at.
#pragma once

#include <functional>

#include "cli/terminal.h"
#include "engine/engine.h"

namespace hadal::cli {

// Waits until request `id`, which has no sink, must be known to the engine and not drained yet, is over.
// Every chunk goes to `on_chunk` as soon as it exists; the final one is returned as well. Ctrl-C is looked at
// at least every 50 ms and aborts the request after the step in hand.
TokenChunk drain(Engine& engine, RequestId id, const InterruptGuard& guard,
                 const std::function<void(const TokenChunk&)>& on_chunk);

}  // namespace hadal::cli
