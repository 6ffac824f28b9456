// Fetches files of a repository into the cache, up to eight at a time, each on its own thread. The thread
// receives, computes the checksum and writes, so that checking is as parallel as fetching.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/cached_repository.h"
#include "hub/http_client.h"
#include "hub/repository_info.h"

namespace hadal::hub {

struct FetchProgress {
  int64_t done_bytes = 0;    // including cached_bytes
  int64_t cached_bytes = 0;  // those that the cache had before
  int64_t total_bytes = 0;
  double bytes_per_s = 0.0;  // 0 while it is unknown
};

struct FetchCallbacks {
  std::function<void(const FetchProgress&)> progress;  // called by the thread that fetches; may be empty
  std::function<bool()> is_cancelled;                  // called by any thread; may be empty
  // Called by the thread that fetches, with the snapshot's directory, when the small files are there and the
  // weights are not. An error, which is not kInvalidArgument, ends the fetch before any weight has
  // arrived. May be empty.
  std::function<Result<void>(const std::filesystem::path&)> check_before_weights;
};

// Names the commit that files are fetched from.
struct RemoteCommit {
  std::string repository;
  std::string commit;
};

// Fetches the blobs of `files` that the cache lacks, and links all of them in the commit's snapshot. A broken
// transfer continues where it ended, after a wait (hub/retry.h), and every new blob has the size and checksum
// that `files` states. The first failure ends the other transfers. Errors are kDataLoss when a file's size or
// checksum is wrong, kResourceExhausted when the disk is full (checked first), kCancelled, and those of
// HttpClient::get.
Result<void> download_files(const std::vector<RemoteFile>& files, const RemoteCommit& from,
                            const HubAccess& access, const CachedRepository& to,
                            const FetchCallbacks& callbacks);

// Returns the body of an answer, which has at most `max_bytes`. A request that fails is tried again as it is
// for files.
Result<std::string> download_text(const std::string& url, const HubAccess& access, size_t max_bytes,
                                  const FetchCallbacks& callbacks);

}  // namespace hadal::hub
