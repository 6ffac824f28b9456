// Adds SGLang's /generate, which runs on I/O threads.
#pragma once

#include <memory>

#include "server/http.h"
#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

void add_native_generate_routes(Router& router, ServerContext& context);

// Returns the limits of requests to a server with this context.
struct PromptLimits;
PromptLimits prompt_limits(const ServerContext& context);

}  // namespace hadal::server
