#include "model/hub.h"

#include <algorithm>
#include <cctype>
#include <system_error>
#include <utility>

#include "base/install_paths.h"
#include "base/mapped_file.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;

bool is_id_part(std::string_view part) {
  return !part.empty() && part.size() <= 96 && part.front() != '.' && part.front() != '-' &&
         part.find("..") == std::string_view::npos &&
         std::all_of(part.begin(), part.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// Returns the snapshot directory of a cached repository, or an empty path if there is none.
fs::path find_snapshot(const fs::path& repository) {
  std::error_code error;
  const fs::path snapshots = repository / "snapshots";
  if (auto revision = read_text_file(repository / "refs" / "main", 4096); revision.ok()) {
    std::string name = std::move(revision).value();
    while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back())) != 0) name.pop_back();
    if (is_id_part(name) && fs::is_directory(snapshots / name, error)) return snapshots / name;
  }
  fs::path newest;
  fs::file_time_type newest_time{};
  for (const auto& entry : fs::directory_iterator(snapshots, error)) {
    if (!entry.is_directory(error)) continue;
    const fs::file_time_type time = entry.last_write_time(error);
    if (newest.empty() || time > newest_time) {
      newest = entry.path();
      newest_time = time;
    }
  }
  return newest;
}

}  // namespace

fs::path hub_cache_dir(const HubEnvironment& environment) {
  if (!environment.hf_hub_cache.empty()) return environment.hf_hub_cache;
  if (!environment.hf_home.empty()) return fs::path(environment.hf_home) / "hub";
  if (!environment.home.empty()) return fs::path(environment.home) / ".cache" / "huggingface" / "hub";
  return {};
}

bool is_hub_id(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && is_id_part(text.substr(0, slash)) &&
         is_id_part(text.substr(slash + 1));
}

Result<fs::path> find_model_dir(const std::string& model_path, const HubEnvironment& environment) {
  std::error_code error;
  if (fs::is_directory(model_path, error)) return fs::path(model_path);
  if (fs::exists(model_path, error)) {
    return not_found("{}: is not a directory; allowed: a directory with config.json and safetensors files",
                     model_path);
  }
  if (!is_hub_id(model_path)) {
    if (auto bundled = bundled_model(model_path)) return *std::move(bundled);
    return not_found("{}: no such directory, nor a hub id (org/name)", model_path);
  }
  const std::string fetch =
      fmt::format("fetch it with: hf download {0} (or huggingface-cli download {0})", model_path);
  const fs::path cache = hub_cache_dir(environment);
  if (cache.empty()) {
    return not_found(
        "{}: no such directory, and no Hugging Face cache (HF_HUB_CACHE, HF_HOME and HOME are unset); {}",
        model_path, fetch);
  }
  std::string folder = "models--" + model_path;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path snapshot = find_snapshot(cache / folder);
  if (snapshot.empty()) {
    return not_found("{}: no such directory, and not in the Hugging Face cache {}; {}", model_path,
                     cache.string(), fetch);
  }
  if (!fs::exists(snapshot / "config.json", error)) {
    return not_found("{}: its snapshot {} has no config.json; {}", model_path, snapshot.string(), fetch);
  }
  return snapshot;
}

}  // namespace hadal
