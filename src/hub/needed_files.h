// Chooses which files of a repository are fetched: those that Hadal and the tokenizers of other clients read,
// and the weights in safetensors. The functions are pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/repository_info.h"

namespace hadal::hub {

// FetchScope names the parts of a model that a command reads.
enum class FetchScope {
  kTokenizer,  // tokenizer.json
  kConfig,     // config.json
  kWeights,    // config.json and the weights
};

// Returns the file that a command of this scope cannot do without: tokenizer.json or config.json.
const char* required_file(FetchScope scope);

// Returns the repository's small files that are needed: config, generation config, tokenizer, chat template,
// and with kWeights the index of the weights. Every file is directly in the repository's top directory. The
// error is kNotFound when the required file is not there.
Result<std::vector<RemoteFile>> choose_small_files(const RepositoryInfo& info, FetchScope scope);

// Returns the weight files: those that the index names (`index_json`, its text) or, when the repository has
// no index, model.safetensors. The errors are kNotFound when a file is not there, kUnsupported when the
// weights are in another format, and those of parse_weight_map.
Result<std::vector<RemoteFile>> choose_weight_files(const RepositoryInfo& info, std::string_view index_json);

// Returns the names of the weight files that an index names, each once, in ascending order. The errors are
// those of parse_weight_map.
Result<std::vector<std::string>> weight_file_names(std::string_view index_json, const std::string& source);

// Returns the file of this name, or null.
const RemoteFile* find_file(const RepositoryInfo& info, std::string_view name);

}  // namespace hadal::hub
