// Runs the engine for one request while Ctrl-C is looked at between the steps.
#pragma once

#include <functional>

#include "cli/terminal.h"
#include "engine/engine.h"

namespace hadal::cli {

// Runs steps until request `id`, which must be known to the engine and not drained yet, is over. Every chunk
// goes to `on_chunk` as soon as it exists; the final one is returned as well. Ctrl-C aborts the request after
// the step in hand.
TokenChunk drain(Engine& engine, RequestId id, const InterruptGuard& guard,
                 const std::function<void(const TokenChunk&)>& on_chunk);

}  // namespace hadal::cli
