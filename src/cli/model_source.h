// Finds the directory of a model for a command, and shows progress while the model is fetched. Only the main
// thread uses it.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "cli/options.h"
#include "hub/fetch.h"

namespace hadal::cli {

// Returns the parts of a model that the command reads: the weights, only config.json (`info`, `tune` and
// --load-format dummy), or only the tokenizer.
hub::FetchScope fetch_scope(const ParsedFlags& flags);

// Returns the directory of the model that --model-path names, as hub::locate_model finds it. --offline has
// the effect of HF_HUB_OFFLINE. A model that is not supported is refused before its weights are fetched,
// unless --json-model-override-args may change that. Ctrl-C ends fetching with kCancelled; the bytes that
// have arrived are kept for the next attempt.
Result<std::filesystem::path> find_model(const std::string& model_path, const ParsedFlags& flags,
                                         const Environment& environment);

// Returns the directory of a NextN layer that a flag names, as find_model does. Only another kind of model is
// refused before the weights are fetched.
Result<std::filesystem::path> find_draft(const std::string& path, hub::FetchScope scope,
                                         const ParsedFlags& flags, const Environment& environment);

// Asks the hub for this model and fetches the files that the cache lacks. Unsupported models and Ctrl-C are
// treated as by find_model.
Result<std::filesystem::path> fetch_model(const hub::ModelId& id, const Environment& environment);

}  // namespace hadal::cli
