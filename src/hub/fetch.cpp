#include "hub/fetch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <system_error>
#include <utility>

#include "base/install_paths.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "hub/cached_repository.h"
#include "hub/http_client.h"
#include "hub/repository_info.h"
#include "model/weight_index.h"

namespace hadal::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxInfoBytes = size_t{64} << 20;

std::string shown_id(const ModelId& id) {
  return id.revision == "main" ? id.repository : id.repository + "@" + id.revision;
}

// Adds to a refusal the steps that the user can take.
Status explained(Status status, const ModelId& id, bool has_token) {
  status.message = fmt::format("{}: {}", shown_id(id), status.message);
  if (status.code == StatusCode::kInvalidArgument) {
    status.code = StatusCode::kNotFound;  // the command line is right
    status.message += has_token
                          ? "; the token of HF_TOKEN or of the token file has no access to this model"
                          : "; there is no such model, or it needs a token (HF_TOKEN) that has access to it";
  }
  return status;
}

// Lists up to three names.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 3;
  const std::span<const std::string> first(names.data(), std::min(names.size(), kMaxListed));
  const std::string more =
      names.size() > kMaxListed ? fmt::format(" and {} more", names.size() - kMaxListed) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

Result<fs::path> cache_of(const ModelId& id, const HubEnvironment& environment) {
  const fs::path cache = hub_cache_dir(environment);
  if (!cache.empty()) return cache;
  return not_found("{}: there is no Hugging Face cache, because HF_HUB_CACHE, HF_HOME and HOME are unset",
                   shown_id(id));
}

// Does the work of fetch_model; its errors do not name the model yet.
Result<fs::path> fetch(const ModelId& id, FetchScope scope, const HubAccess& access,
                       const CachedRepository& cache, const FetchCallbacks& callbacks) {
  const std::string url = info_url(access.endpoint, id.repository, id.revision);
  const Result<std::string> answer = download_text(url, access, kMaxInfoBytes, callbacks);
  if (!answer.ok()) {
    Status status = answer.status();
    if (status.code == StatusCode::kNotFound) status.message += "; there is no such model or revision";
    return status;
  }
  HADAL_ASSIGN_OR_RETURN(const RepositoryInfo info, parse_repository_info(*answer, url));
  const RemoteCommit from{.repository = id.repository, .commit = info.commit};
  HADAL_ASSIGN_OR_RETURN(const auto small_files, choose_small_files(info, scope));
  HADAL_RETURN_IF_ERROR(download_files(small_files, from, access, cache, callbacks));
  if (scope == FetchScope::kWeights) {
    if (callbacks.check_before_weights)
      HADAL_RETURN_IF_ERROR(callbacks.check_before_weights(cache.snapshot(info.commit)));
    std::string index;
    const fs::path index_path = cache.snapshot(info.commit) / kWeightIndexFile;
    if (find_file(info, kWeightIndexFile) != nullptr) {
      HADAL_ASSIGN_OR_RETURN(index, read_text_file(index_path));
    }
    HADAL_ASSIGN_OR_RETURN(const auto weight_files, choose_weight_files(info, index));
    HADAL_RETURN_IF_ERROR(download_files(weight_files, from, access, cache, callbacks));
  }
  // The revision is set last, so that a branch names a complete snapshot even after an interruption.
  HADAL_RETURN_IF_ERROR(cache.set_revision(id.revision, info.commit));
  return cache.snapshot(info.commit);
}

}  // namespace

Result<fs::path> fetch_model(const ModelId& id, FetchScope scope, const HubEnvironment& environment,
                             const FetchCallbacks& callbacks) {
  if (environment.offline) {
    return unsupported("{}: cannot be fetched, because --offline or HF_HUB_OFFLINE is set", shown_id(id));
  }
  HADAL_ASSIGN_OR_RETURN(const fs::path cache_dir, cache_of(id, environment));
  HubAccess access;
  HADAL_ASSIGN_OR_RETURN(access.endpoint, hub_endpoint(environment));
  HADAL_ASSIGN_OR_RETURN(access.token, hub_token(environment));
  access.certificates = certificates_file(environment);
  log_info("fetching a model model={} from={} to={}", shown_id(id), access.endpoint, cache_dir.string());
  auto snapshot = fetch(id, scope, access, CachedRepository(cache_dir, id.repository), callbacks);
  if (!snapshot.ok()) return explained(snapshot.status(), id, !access.token.empty());
  return snapshot;
}

Result<fs::path> locate_model(const std::string& model_path, FetchScope scope,
                              const HubEnvironment& environment, const FetchCallbacks& callbacks) {
  std::error_code error;
  if (fs::is_directory(model_path, error)) return fs::path(model_path);
  if (fs::exists(model_path, error)) {
    return not_found("{}: is not a directory; allowed: a directory with config.json and safetensors files",
                     model_path);
  }
  const std::optional<ModelId> id = parse_model_id(model_path);
  if (!id) {
    if (auto bundled = bundled_model(model_path)) return *std::move(bundled);
    return not_found("{}: is neither a directory nor a hub id (org/name or org/name@revision)", model_path);
  }
  HADAL_ASSIGN_OR_RETURN(const fs::path cache_dir, cache_of(*id, environment));
  const fs::path snapshot = CachedRepository(cache_dir, id->repository).find_snapshot(id->revision);
  std::vector<std::string> missing;
  if (!snapshot.empty()) missing = missing_files(snapshot, scope);
  if (!snapshot.empty() && missing.empty()) return snapshot;
  if (!environment.offline) return fetch_model(*id, scope, environment, callbacks);
  const std::string lacks = snapshot.empty()
                                ? fmt::format("not in the Hugging Face cache {}", cache_dir.string())
                                : fmt::format("its snapshot {} lacks {}", snapshot.string(), listed(missing));
  return not_found(
      "{0}: no such directory, and {1}; it is not fetched because --offline or HF_HUB_OFFLINE is set. "
      "`hadal fetch {0}` fetches it",
      model_path, lacks);
}

}  // namespace hadal::hub
