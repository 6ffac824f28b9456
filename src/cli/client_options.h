// Turns the flags of load generators and scores into options of the client. Only the main thread uses it.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "client/bench_dataset.h"
#include "client/server_connection.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::cli {

// Reads the flags of a dataset. It is an error (kInvalidArgument) if a file is missing, or flags contradict
// one another.
Result<client::DatasetOptions> resolve_dataset(const ParsedFlags& flags);

// Returns an error (kInvalidArgument) if the dataset needs a tokenizer and there is none.
Result<void> check_has_tokenizer(const client::DatasetOptions& options, const Tokenizer* tokenizer);

// Reads --base-url, or --host and --port, and --api-key, --insecure and --timeout.
Result<client::ServerConnection> open_server(const ParsedFlags& flags, uint16_t default_port);

// Returns --model-path, else the first model that the server lists.
Result<std::string> model_name(const ParsedFlags& flags, client::ServerConnection& server);

// Loads --tokenizer-path. Without the flag, it loads the tokenizer that the server names if that can be read
// on this machine, and otherwise returns null. It is an error if --tokenizer-path cannot be loaded.
Result<std::unique_ptr<Tokenizer>> tokenizer_for(const ParsedFlags& flags, client::ServerConnection& server);

}  // namespace hadal::cli
