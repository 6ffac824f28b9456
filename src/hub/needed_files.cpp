#include "hub/needed_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/printable.h"
#include "model/weight_index.h"

namespace hadal::hub {
namespace {

// Hadal reads the first four and chat_template.jinja; tokenizers of Python clients also read the others.
constexpr const char* kSmallFiles[] = {
    "config.json",        "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "chat_template.json", "chat_template.jinja",    "merges.txt",     "special_tokens_map.json",
    "added_tokens.json",  "tokenizer.model",        "vocab.json",
};

Status no_weights(const RepositoryInfo& info) {
  std::set<std::string> formats;
  for (const RemoteFile& file : info.files) {
    for (const char* ending : {".safetensors", ".gguf", ".bin", ".pt", ".pth"}) {
      if (file.name.ends_with(ending)) formats.insert(ending);
    }
  }
  constexpr std::string_view kWanted =
      "the repository has neither model.safetensors nor model.safetensors.index.json";
  if (formats.empty()) return not_found("{}", kWanted);
  return unsupported("{}; it has weights in {} files, but only these two names are supported", kWanted,
                     fmt::join(formats, ", "));
}

}  // namespace

const char* required_file(FetchScope scope) {
  return scope == FetchScope::kTokenizer ? "tokenizer.json" : "config.json";
}

const RemoteFile* find_file(const RepositoryInfo& info, std::string_view name) {
  const auto at = std::find_if(info.files.begin(), info.files.end(),
                               [&](const RemoteFile& file) { return file.name == name; });
  return at == info.files.end() ? nullptr : &*at;
}

Result<std::vector<RemoteFile>> choose_small_files(const RepositoryInfo& info, FetchScope scope) {
  if (find_file(info, required_file(scope)) == nullptr)
    return not_found("the repository has no {}", required_file(scope));
  std::vector<RemoteFile> files;
  for (const char* name : kSmallFiles) {
    if (const RemoteFile* file = find_file(info, name)) files.push_back(*file);
  }
  if (scope == FetchScope::kWeights) {
    if (const RemoteFile* index = find_file(info, kWeightIndexFile)) {
      files.push_back(*index);
    } else if (find_file(info, kSingleWeightFile) == nullptr) {
      return no_weights(info);
    }
  }
  return files;
}

Result<std::vector<std::string>> weight_file_names(std::string_view index_json, const std::string& source) {
  HADAL_ASSIGN_OR_RETURN(const auto map, parse_weight_map(index_json, source));
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  return std::vector<std::string>(names.begin(), names.end());
}

Result<std::vector<RemoteFile>> choose_weight_files(const RepositoryInfo& info, std::string_view index_json) {
  std::vector<std::string> names = {kSingleWeightFile};
  if (find_file(info, kWeightIndexFile) != nullptr) {
    HADAL_ASSIGN_OR_RETURN(names, weight_file_names(index_json, kWeightIndexFile));
  }
  std::map<std::string_view, const RemoteFile*> by_name;  // a hostile hub may list very many files
  for (const RemoteFile& file : info.files) by_name.emplace(file.name, &file);
  std::vector<RemoteFile> files;
  for (const std::string& name : names) {
    const auto file = by_name.find(name);
    if (file == by_name.end()) {
      return not_found("{} names {}, which the repository does not have", kWeightIndexFile, shown_text(name));
    }
    files.push_back(*file->second);
  }
  return files;
}

}  // namespace hadal::hub
