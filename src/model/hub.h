// Finds a model on this machine: a directory, or a Hugging Face hub id in the local cache. Nothing is
// downloaded. It only reads the file system; any thread may call it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal {

// HubEnvironment has the environment variables that locate the cache, read by main; empty: not set.
struct HubEnvironment {
  std::string hf_hub_cache;  // HF_HUB_CACHE: the cache itself
  std::string hf_home;       // HF_HOME: the cache is its hub/
  std::string home;          // HOME: the cache is its .cache/huggingface/hub/
};

// Returns the cache of the first that is set of the three, or an empty path if none is.
std::filesystem::path hub_cache_dir(const HubEnvironment& environment);

// Tells whether a text is like "deepseek-ai/DeepSeek-V3": one slash, no path syntax.
bool is_hub_id(std::string_view text);

// Returns `model_path` itself if it is a directory; otherwise a model of that name that came with the program
// (base/install_paths.h); otherwise the snapshot of a hub id (the one refs/main names, or the newest if there
// is no such file), which must contain a config.json. The error is kNotFound, which tells how to fetch it.
Result<std::filesystem::path> find_model_dir(const std::string& model_path,
                                             const HubEnvironment& environment);

}  // namespace hadal
