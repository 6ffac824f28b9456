// Adds SGLang's /generate, which runs on I/O threads.
#pragma once

#include <memory>

#include "server/http/http.h"
#include "server/native/native_request.h"
#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

void add_native_generate_routes(Router& router, ServerContext& context);

// Returns the limits of requests to a server with this context.
PromptLimits prompt_limits(const ServerContext& context, const HttpRequest& from);

// Returns the function that reserves queue places for a request of the client that sent `from`.
ReservePlaces place_reserver(const ServerContext& context, const HttpRequest& from);

}  // namespace hadal::server
