// Flags of `hadal serve` → the server's options.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/session.h"
#include "server/http_server.h"
#include "server/server_context.h"

namespace hadal::cli {

// Errors: one of the TLS files without the other.
Result<server::HttpServerOptions> resolve_http_options(const ParsedFlags& flags);

// `session` has read config and tokenizer. Logs what it chooses.
Result<server::ServerOptions> resolve_server_options(const ParsedFlags& flags, const Session& session,
                                                     std::optional<ChatFormat> chat_format);

// Every flag that `hadal serve` honours, given or not, under SGLang's names, as a JSON object.
std::string flags_as_json(const ParsedFlags& flags);

}  // namespace hadal::cli
