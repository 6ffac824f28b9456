// Turns the flags of `hadal serve` into options of the server.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cli/session.h"
#include "server/admission/api_keys.h"
#include "server/http/http_server.h"
#include "server/server_context.h"

namespace hadal::cli {

// Returns the most memory that requests may hold, in bytes. Without the flag it is an eighth of the memory
// that this process can have, or 1 GiB if that amount is not known.
size_t max_request_memory(const ParsedFlags& flags);

// Returns the HTTP options, without a ledger and a gate. The errors are a TLS certificate without its key or
// the reverse, an empty key, and a share that is above 1 or too small for the largest body.
Result<server::HttpServerOptions> resolve_http_options(const ParsedFlags& flags);

// Returns the keys of clients and of the admin. The errors are two sources of one key, an empty key, and a
// bad key file.
Result<std::shared_ptr<server::KeyRing>> resolve_keys(const ParsedFlags& flags,
                                                      const Environment& environment);

// Returns the directory below which /start_profile may write: the flag's value, else the variable's, else the
// current directory. An empty value counts as absent.
std::string resolve_profile_dir(const ParsedFlags& flags, const Environment& environment);

// Returns the server's options and logs the chosen parsers. `session` must have read config and tokenizer.
// The errors include --cache-isolation key without a key file, and a bad rate limit. server_args_json has
// every flag of `hadal serve` except secrets, under SGLang's names. Its values are those in force, or null if
// there is none.
Result<server::ServerOptions> resolve_server_options(const ParsedFlags& flags, const Environment& environment,
                                                     const Session& session,
                                                     std::optional<ChatFormat> chat_format);

}  // namespace hadal::cli
