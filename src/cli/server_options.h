// Turns the flags of `hadal serve` into options of the server.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/session.h"
#include "server/http_server.h"
#include "server/server_context.h"

namespace hadal::cli {

// Errors: one TLS file is given without the other, or a key is empty.
Result<server::HttpServerOptions> resolve_http_options(const ParsedFlags& flags);

// `session` has read config and tokenizer. Logs what it chooses. server_args_json has every flag of `hadal
// serve` except keys, under SGLang's names, with the value in force; null if there is none.
Result<server::ServerOptions> resolve_server_options(const ParsedFlags& flags, const Session& session,
                                                     std::optional<ChatFormat> chat_format);

}  // namespace hadal::cli
