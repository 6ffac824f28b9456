// Adds OpenAI's endpoints except /v1/models (native_admin.h).
#pragma once

#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

// Adds /v1/completions, /v1/chat/completions, /v1/tokenize, /v1/detokenize.
void add_openai_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
