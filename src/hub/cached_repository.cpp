#include "hub/cached_repository.h"

#include <fcntl.h>
#include <unistd.h>

#include <cctype>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "model/weight_index.h"

namespace hadal::hub {
namespace {

namespace fs = std::filesystem;

std::string folder_name(const std::string& repository) {
  std::string folder = "models--" + repository;
  folder.replace(folder.find('/'), 1, "--");
  return folder;
}

Status cannot_write(const fs::path& path, const std::error_code& error) {
  return make_status(StatusCode::kInternal, "cannot write {}: {}", path.string(), error.message());
}

// Returns a name beside `path` that no other thread or process uses, for a file that is then renamed to
// `path`.
fs::path temporary_name(const fs::path& path) {
  return path.parent_path() / fmt::format(".{}.{}", path.filename().string(), ::gettid());
}

Result<void> create_parent(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return cannot_write(path.parent_path(), error);
  return {};
}

}  // namespace

CachedRepository::CachedRepository(const fs::path& cache_dir, const std::string& repository)
    : folder_(cache_dir / folder_name(repository)), locks_(cache_dir / ".locks" / folder_name(repository)) {}

fs::path CachedRepository::blob(const std::string& checksum) const {
  return folder_ / "blobs" / checksum;
}
fs::path CachedRepository::incomplete_blob(const std::string& checksum) const {
  return folder_ / "blobs" / (checksum + ".incomplete");
}
fs::path CachedRepository::lock(const std::string& checksum) const {
  return locks_ / (checksum + ".lock");
}
fs::path CachedRepository::snapshot(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}

fs::path CachedRepository::find_snapshot(const std::string& revision) const {
  std::error_code error;
  const fs::path snapshots = folder_ / "snapshots";
  if (is_commit(revision))
    return fs::is_directory(snapshots / revision, error) ? snapshots / revision : fs::path();
  if (auto text = read_text_file(folder_ / "refs" / revision, 4096); text.ok()) {
    std::string commit = std::move(text).value();
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) commit.pop_back();
    if (is_plain_file_name(commit) && fs::is_directory(snapshots / commit, error)) return snapshots / commit;
  }
  return {};
}

bool CachedRepository::has_blob(const RemoteFile& file) const {
  std::error_code error;
  const uintmax_t size = fs::file_size(blob(file.checksum), error);
  return !error && size == static_cast<uintmax_t>(file.size);
}

int64_t CachedRepository::missing_bytes(const RemoteFile& file) const {
  if (has_blob(file)) return 0;
  std::error_code error;
  const uintmax_t there = fs::file_size(incomplete_blob(file.checksum), error);
  if (error || there > static_cast<uintmax_t>(file.size)) return file.size;
  return file.size - static_cast<int64_t>(there);
}

Result<void> CachedRepository::create() const {
  return create_parent(folder_ / "blobs" / "any");
}

Result<void> CachedRepository::link(const std::string& commit, const RemoteFile& file) const {
  const fs::path path = snapshot(commit) / file.name;
  HADAL_RETURN_IF_ERROR(create_parent(path));
  const fs::path target = fs::path("..") / ".." / "blobs" / file.checksum;
  std::error_code error;
  if (fs::read_symlink(path, error) == target) return {};
  const fs::path temporary = temporary_name(path);
  fs::remove(temporary, error);
  fs::create_symlink(target, temporary, error);
  if (!error) fs::rename(temporary, path, error);
  if (error) return cannot_write(path, error);
  return {};
}

Result<void> CachedRepository::set_revision(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return {};
  const fs::path path = folder_ / "refs" / revision;
  HADAL_RETURN_IF_ERROR(create_parent(path));
  const fs::path temporary = temporary_name(path);
  std::error_code error;
  if (!(std::ofstream(temporary, std::ios::binary) << commit).flush())
    error = std::make_error_code(std::errc::io_error);
  if (!error) fs::rename(temporary, path, error);
  if (error) return cannot_write(path, error);
  return {};
}

std::vector<std::string> missing_files(const fs::path& directory, FetchScope scope) {
  std::vector<std::string> missing;
  std::error_code error;
  const auto require = [&](const std::string& name) {
    if (!fs::exists(directory / name, error)) missing.push_back(name);
  };
  require(required_file(scope));
  if (scope != FetchScope::kWeights) return missing;
  if (!fs::exists(directory / kWeightIndexFile, error)) {
    require(kSingleWeightFile);
    return missing;
  }
  const auto index = read_text_file(directory / kWeightIndexFile);
  if (!index.ok()) return missing;
  const auto names = weight_file_names(*index, kWeightIndexFile);
  if (names.ok()) {
    for (const std::string& name : *names) require(name);
  }
  return missing;
}

}  // namespace hadal::hub
