// Adds OpenAI's /v1/responses, its /input_tokens, and reading and deleting a stored response.
#pragma once

#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

// The store of responses is bounded by context.options.response_store_bytes, and lives as long as the routes.
void add_responses_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
