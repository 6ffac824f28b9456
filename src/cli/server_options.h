// Flags of `hadal serve` → the server's options.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/session.h"
#include "server/http_server.h"
#include "server/server_context.h"

namespace hadal::cli {

// Errors: one of the TLS files without the other, an empty key.
Result<server::HttpServerOptions> resolve_http_options(const ParsedFlags& flags);

// `session` has read config and tokenizer. Logs what it chooses. server_args_json has every flag that `hadal
// serve` honours but keys, under SGLang's names, with the value in force, null where it says nothing.
Result<server::ServerOptions> resolve_server_options(const ParsedFlags& flags, const Session& session,
                                                     std::optional<ChatFormat> chat_format);

}  // namespace hadal::cli
