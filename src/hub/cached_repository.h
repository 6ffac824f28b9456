// Computes where a repository's files are in the hub's cache, and writes the links and the refs:
//
//   models--ORG--NAME/blobs/CHECKSUM              content
//                    /blobs/CHECKSUM.incomplete   content that is being fetched
//                    /snapshots/COMMIT/FILE       symbolic link to a blob
//                    /refs/REVISION               text: the commit of a branch or tag
//   .locks/models--ORG--NAME/CHECKSUM.lock        its holder writes the blob
//
// The layout is that of the hub's Python library, so each program finds the files that the other has fetched.
// Any thread may call the functions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/model_id.h"
#include "hub/needed_files.h"
#include "hub/repository_info.h"

namespace hadal::hub {

class CachedRepository {
 public:
  CachedRepository(const std::filesystem::path& cache_dir, const std::string& repository);

  std::filesystem::path blob(const std::string& checksum) const;
  std::filesystem::path incomplete_blob(const std::string& checksum) const;
  std::filesystem::path lock(const std::string& checksum) const;
  std::filesystem::path snapshot(const std::string& commit) const;

  // Returns the directory of the snapshot that a revision names: a commit, or a branch or tag whose commit is
  // in refs/REVISION. That file is written only when the snapshot is complete. Returns an empty path if there
  // is none.
  std::filesystem::path find_snapshot(const std::string& revision) const;

  // Tells whether a blob of the right size is there.
  bool has_blob(const RemoteFile& file) const;

  // Returns how many bytes of a file still have to be fetched.
  int64_t missing_bytes(const RemoteFile& file) const;

  // Makes the snapshot's link to a blob and replaces any file of that name. The name must be plain. The error
  // is kInternal.
  Result<void> link(const std::string& commit, const RemoteFile& file) const;

  // Writes refs/REVISION, unless the revision is the commit itself. The error is kInternal.
  Result<void> set_revision(const std::string& revision, const std::string& commit) const;

  // Makes the directory of blobs. The error is kInternal.
  Result<void> create() const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path locks_;
};

// Returns the files that a command of this scope needs and `directory` lacks: config.json or tokenizer.json,
// the index of the weights, or weight files that the index names. If the index cannot be read, no weight
// files are listed, because loading reports that error.
std::vector<std::string> missing_files(const std::filesystem::path& directory, FetchScope scope);

}  // namespace hadal::hub
