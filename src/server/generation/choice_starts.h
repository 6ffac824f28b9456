// Starts the choices of a request in turns of its I/O thread: a request may have thousands, and each is
// submitted to the engine, so that all of them in one task would delay other clients.
#pragma once

#include <cstddef>
#include <functional>

#include "server/http/http.h"

namespace hadal::server {

// Calls start(0), …, start(count - 1) on the I/O thread `io`, whose task calls this: at once as many as about
// a millisecond allows, and the others in later tasks. The first call that returns false (the choice could
// not be started, or the client has gone) is the last. `start` handles its errors, must not throw, and is
// destroyed after its last call or when the server stops.
void start_choices(IoThread& io, size_t count, std::function<bool(size_t choice)> start);

}  // namespace hadal::server
