// Adds SGLang's endpoints that do not generate: health, information, cache, abort, pause, profile, metrics,
// and the list of models. They run on I/O threads.
#pragma once

#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

class Profiler;

// Adds routes that change or watch the server: health checks, /flush_cache, /abort_request,
// /pause_generation, /continue_generation, /start_profile, /stop_profile, /metrics and /ping.
void add_native_admin_routes(Router& router, ServerContext& context, Profiler& profiler);

// Adds routes that describe the server: /model_info, /server_info (and their get_ names), /get_load,
// /v1/loads and /v1/models.
void add_native_info_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
