// Starts the choices of a request in turns of its I/O thread. A request may have thousands, each of which is
// submitted to the engine, so starting all of them in one task would delay other clients.
#pragma once

#include <cstddef>
#include <functional>

#include "server/http/http.h"

namespace hadal::server {

// Calls start(0), …, start(count - 1) on the I/O thread `io`, which must be the caller's. It starts as many
// at once as about a millisecond allows, and the others in later tasks. The first call that returns false is
// the last: the choice could not be started, or the client has gone. `start` handles its errors, must not
// throw, and is destroyed after its last call or when the server stops.
void start_choices(IoThread& io, size_t count, std::function<bool(size_t choice)> start);

}  // namespace hadal::server
