// --log-requests: one line when a request arrives and one when it ends. Any thread.
#pragma once

#include <string_view>

#include "server/generation.h"
#include "server/server_context.h"

namespace hadal::server {

void log_request_start(const ServerContext& context, const GenerationRequest& request);
// `text_json`: the visible text, escaped as inside a JSON string.
void log_request_end(const ServerContext& context, std::string_view rid, const GenerationDelta& last,
                     std::string_view text_json);

const char* finish_name(FinishReason reason);  // "stop" | "length" | "abort" | ""

}  // namespace hadal::server
