// Where a model lies on this machine: a directory, or a Hugging Face hub id in the local cache. Nothing is
// downloaded. Pure but for looking at the file system; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal {

// Environment variables that place the cache, read by main; empty: not set.
struct HubEnvironment {
  std::string hf_hub_cache;  // HF_HUB_CACHE: the cache itself
  std::string hf_home;       // HF_HOME: the cache is its hub/
  std::string home;          // HOME: the cache is its .cache/huggingface/hub/
};

// The first that is set of the three; empty if none is.
std::filesystem::path hub_cache_dir(const HubEnvironment& environment);

// "deepseek-ai/DeepSeek-V3": one slash, no path syntax.
bool is_hub_id(std::string_view text);

// `model_path` as a directory if there is one; else as the name of a model that came with the program
// (base/install_paths.h); else as a hub id, whose snapshot (the one refs/main names, or
// the newest where there is no such file) must hold a config.json. Errors: kNotFound, saying how to fetch it.
Result<std::filesystem::path> find_model_dir(const std::string& model_path,
                                             const HubEnvironment& environment);

}  // namespace hadal
