// Adds Ollama's endpoints: /api/chat and /api/generate, and /api/tags, /api/show, /api/ps and /api/version,
// which describe the one model.
#pragma once

#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

void add_ollama_routes(Router& router, ServerContext& context);

// Adds /api/tags, /api/show, /api/ps and /api/version.
void add_ollama_info_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
