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

// Returns the limit of the memory that requests may hold, in bytes: without the flag an eighth of the memory
// that this process can have, or 1 GiB where that is not known.
size_t max_request_memory(const ParsedFlags& flags);

// The options have no ledger and no gate yet. It is an error if one TLS file is given without the other, a
// key is empty, or a share is above 1.
Result<server::HttpServerOptions> resolve_http_options(const ParsedFlags& flags);

// Returns the keys of clients and of the admin. The errors are two sources of one key, an empty key, and a
// bad key file.
Result<std::shared_ptr<server::KeyRing>> resolve_keys(const ParsedFlags& flags,
                                                      const Environment& environment);

// Returns the directory below which /start_profile may write: the first that is not empty of the flag, the
// variable and the current directory.
std::string resolve_profile_dir(const ParsedFlags& flags, const Environment& environment);

// `session` has read config and tokenizer. The errors are --cache-isolation key without a key file, and a bad
// rate limit. The function logs what it chooses. server_args_json has every flag of `hadal serve` except
// keys, under SGLang's names, with the value in force; null if there is none.
Result<server::ServerOptions> resolve_server_options(const ParsedFlags& flags, const Environment& environment,
                                                     const Session& session,
                                                     std::optional<ChatFormat> chat_format);

}  // namespace hadal::cli
