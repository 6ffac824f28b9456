// Finds the directory of a model for a command, and shows progress while the model is fetched. Only the main
// thread uses it.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "cli/options.h"
#include "hub/fetch.h"

namespace hadal::cli {

// Returns what the command reads of a model: weights, config.json alone (`info`, `tune` and --load-format
// dummy), or the tokenizer alone.
hub::FetchScope fetch_scope(const ParsedFlags& flags);

// Returns the directory of a model that a flag names, as hub::locate_model finds it. --offline counts as
// HF_HUB_OFFLINE. Ctrl-C ends fetching with kCancelled; what has arrived stays for the next time.
Result<std::filesystem::path> find_model(const std::string& model_path, const ParsedFlags& flags,
                                         const Environment& environment);

// Asks the hub for this model and fetches what the cache lacks, in the same way.
Result<std::filesystem::path> fetch_model(const hub::ModelId& id, const Environment& environment);

}  // namespace hadal::cli
