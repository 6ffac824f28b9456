#include "hub/download.h"

#include <pthread.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "hub/blob_file.h"
#include "hub/file_lock.h"
#include "hub/transfer_rate.h"

namespace hadal::hub {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxParallel = 8;
constexpr milliseconds kPoll{100};

// Waits before the next attempt. Returns a status instead if the caller must give up.
std::optional<Status> wait_before_retry(const Failure& failure, int num_failures, const StopSignal& stop) {
  const auto delay = retry_delay(failure, num_failures);
  if (!delay) {
    Status status = failure.status;
    if (failure.retry_after_s > kMaxRetryAfterS) {
      status.message += fmt::format("; the server asks to wait for {} s", failure.retry_after_s);
    } else if (failure.is_transient) {
      status.message += fmt::format("; given up after {} attempts", num_failures);
    }
    return status;
  }
  log_warning("fetching is interrupted reason=\"{}\" next_attempt_in_s={:.1f}", failure.status.message,
              std::chrono::duration<double>(*delay).count());
  if (!stop.wait(*delay)) return Status{StatusCode::kCancelled, "interrupted"};
  return std::nullopt;
}

class TextSink final : public BodySink {
 public:
  TextSink(std::string url, size_t max_bytes) : url_(std::move(url)), max_bytes_(max_bytes) {}

  std::optional<Failure> begin(const HttpAnswer&) override {
    text_.clear();
    return std::nullopt;
  }
  std::optional<Failure> add(std::span<const std::byte> piece) override {
    if (piece.size() > max_bytes_ - text_.size())
      return Failure{.status = data_loss("{}: the answer has more than {} bytes", url_, max_bytes_)};
    text_.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return std::nullopt;
  }
  std::string& text() { return text_; }

 private:
  const std::string url_;
  const size_t max_bytes_;
  std::string text_;
};

// Compares an answer's size and checksum of a file with those in the list of files, and appends the body.
class BlobSink final : public BodySink {
 public:
  BlobSink(BlobFile& blob, const RemoteFile& file, const std::string& commit,
           std::atomic<int64_t>& done_bytes)
      : blob_(blob), file_(file), commit_(commit), done_bytes_(done_bytes) {}

  std::optional<Failure> begin(const HttpAnswer& answer) override {
    if (!answer.commit.empty() && answer.commit != commit_) {
      return Failure{.status = data_loss("{}: the answer is of commit {}, not of {}", file_.name,
                                         answer.commit, commit_)};
    }
    const bool other_size = answer.linked_size >= 0 && answer.linked_size != file_.size;
    // Only tags with the length of a SHA-256 are compared, because the entity tag of a file outside large
    // file storage need not be its checksum.
    const bool other_sum = file_.checksum.size() == 64 && answer.linked_etag.size() == 64 &&
                           answer.linked_etag != file_.checksum;
    if (other_size || other_sum) {
      return Failure{.status = data_loss(
                         "{}: the answer is of {} bytes with checksum {}, but the list of files says "
                         "{} and {}",
                         file_.name, answer.linked_size, answer.linked_etag, file_.size, file_.checksum)};
    }
    const int64_t begin = answer.status == 206 ? answer.range_begin : 0;
    const int64_t requested = blob_.size();
    if (begin == requested) return std::nullopt;
    // The server ignores ranges, or answers with another one.
    done_bytes_ -= requested;
    if (auto emptied = blob_.restart(); !emptied.ok()) return Failure{.status = emptied.status()};
    if (begin == 0) return std::nullopt;
    const std::string place = begin < 0 ? "an unknown byte" : fmt::format("byte {}", begin);
    return Failure{.status = data_loss("{}: the answer begins at {}; byte {} was requested", file_.name,
                                       place, requested),
                   .is_transient = true};
  }

  std::optional<Failure> add(std::span<const std::byte> piece) override {
    if (auto appended = blob_.append(piece); !appended.ok()) return Failure{.status = appended.status()};
    done_bytes_ += static_cast<int64_t>(piece.size());
    return std::nullopt;
  }

 private:
  BlobFile& blob_;
  const RemoteFile& file_;
  const std::string& commit_;
  std::atomic<int64_t>& done_bytes_;
};

// One call of download_files.
class Download {
 public:
  Download(const std::vector<RemoteFile>& files, const RemoteCommit& from, const HubAccess& access,
           const CachedRepository& to, const FetchCallbacks& callbacks)
      : files_(files),
        from_(from),
        access_(access),
        to_(to),
        callbacks_(callbacks),
        stop_(callbacks.is_cancelled) {}

  Result<void> run() {
    HADAL_RETURN_IF_ERROR(to_.create());
    HADAL_RETURN_IF_ERROR(check_space());
    std::vector<std::jthread> threads;
    num_running_ = std::min(kMaxParallel, files_.size());
    for (size_t i = num_running_; i > 0; --i) threads.emplace_back([this] { work(); });
    show_progress();
    threads.clear();  // joins them
    if (first_failure_) return *first_failure_;
    return {};
  }

 private:
  Result<void> check_space() {
    for (const RemoteFile& file : files_) {
      if (!file.is_checkable())
        return data_loss("{}: the hub states no size or no checksum, so it could not be checked", file.name);
    }
    // The sum is a double because sizes come from an untrusted server, and their sum may overflow an integer.
    double missing = 0.0;
    for (const RemoteFile& file : files_) {
      const int64_t bytes = to_.missing_bytes(file);
      missing += static_cast<double>(bytes);
      total_bytes_ += static_cast<double>(file.size);
      done_bytes_ += file.size - bytes;
    }
    cached_bytes_ = done_bytes_;
    struct statvfs disk = {};
    const std::filesystem::path folder = to_.blob("any").parent_path();
    if (::statvfs(folder.c_str(), &disk) != 0) return {};  // the write itself will fail
    const double available = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
    if (missing <= available) return {};
    return make_status(StatusCode::kResourceExhausted,
                       "{}: {:.2f} GB are to be fetched, but the disk of {} has {:.2f} GB left",
                       from_.repository, missing / 1e9, folder.string(), available / 1e9);
  }

  void show_progress() {
    TransferRate rate;
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kPoll, [&] { return num_running_ == 0; })) {
      if (!callbacks_.progress) continue;
      const int64_t done = done_bytes_;
      rate.note(std::chrono::steady_clock::now(), done);
      lock.unlock();
      callbacks_.progress({.done_bytes = done,
                           .cached_bytes = cached_bytes_,
                           .total_bytes = static_cast<int64_t>(total_bytes_),
                           .bytes_per_s = rate.bytes_per_s()});
      lock.lock();
    }
  }

  void work() {
    // This thread blocks all signals: the main thread handles them, and a broken connection must be an error
    // and not a SIGPIPE.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    try {
      HttpClient client(access_, stop_);
      for (size_t i = next_++; i < files_.size() && !stop_.is_set(); i = next_++) {
        if (auto fetched = fetch(client, files_[i]); !fetched.ok()) fail(fetched.status());
      }
      if (stop_.is_set()) fail({StatusCode::kCancelled, "interrupted"});
    } catch (const std::exception& error) {
      fail({StatusCode::kInternal, error.what()});
    }
    const std::lock_guard lock(mutex_);
    --num_running_;
    ended_.notify_all();
  }

  void fail(Status status) {
    const std::lock_guard lock(mutex_);
    if (!first_failure_) first_failure_ = std::move(status);
    stop_.set();
  }

  Result<void> fetch(HttpClient& client, const RemoteFile& file) {
    const int64_t counted = file.size - to_.missing_bytes(file);
    bool waited = false;
    const auto wait = [&] {
      if (!waited) log_info("another process fetches a file, waiting for it file={}", file.name);
      waited = true;
      return stop_.wait(kPoll);
    };
    HADAL_ASSIGN_OR_RETURN(const FileLock lock, FileLock::acquire(to_.lock(file.checksum), wait));
    if (!to_.has_blob(file)) {
      HADAL_ASSIGN_OR_RETURN(BlobFile blob, BlobFile::open(to_.incomplete_blob(file.checksum), file,
                                                           [this] { return stop_.is_set(); }));
      done_bytes_ += blob.size() - counted;
      HADAL_RETURN_IF_ERROR(fill(client, file, blob));
    } else {
      done_bytes_ += file.size - counted;
    }
    return to_.link(from_.commit, file);
  }

  // Fetches until the blob is right. Wrong content is dropped once and fetched again from the beginning.
  Result<void> fill(HttpClient& client, const RemoteFile& file, BlobFile& blob) {
    constexpr int64_t kProgressBytes = int64_t{1} << 20;  // fewer do not reset the count of failures
    const std::string url = file_url(access_.endpoint, from_.repository, from_.commit, file.name);
    bool is_second_attempt = false;
    int num_failures = 0;
    while (true) {
      if (blob.is_full()) {
        const auto finished = blob.finish(to_.blob(file.checksum));
        const bool is_final = is_second_attempt || file.size == 0;
        if (finished.ok() || is_final || finished.status().code != StatusCode::kDataLoss) return finished;
        log_warning("a file is fetched again reason=\"{}\"", finished.status().message);
        is_second_attempt = true;
        done_bytes_ -= blob.size();
        HADAL_RETURN_IF_ERROR(blob.restart());
      }
      const int64_t before = blob.size();
      BlobSink sink(blob, file, from_.commit, done_bytes_);
      std::optional<Failure> failure = client.get(url, before, sink);
      if (!failure && !blob.is_full()) {
        failure = Failure{.status = data_loss("{}: the answer ends after {} of {} bytes", file.name,
                                              blob.size(), file.size),
                          .is_transient = true};
      }
      if (!failure) continue;
      if (failure->http_status == 416 && before > 0) {  // the server's file is shorter than ours
        failure->is_transient = !std::exchange(is_second_attempt, true);
        failure->status =
            data_loss("{}: the server has fewer than the {} bytes that the hub states", file.name, file.size);
        done_bytes_ -= blob.size();
        HADAL_RETURN_IF_ERROR(blob.restart());
      }
      num_failures = blob.size() - before >= kProgressBytes ? 1 : num_failures + 1;
      if (auto given_up = wait_before_retry(*failure, num_failures, stop_)) return *given_up;
    }
  }

  const std::vector<RemoteFile>& files_;
  const RemoteCommit& from_;
  const HubAccess& access_;
  const CachedRepository& to_;
  const FetchCallbacks& callbacks_;
  StopSignal stop_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> done_bytes_{0};
  int64_t cached_bytes_ = 0;
  double total_bytes_ = 0.0;
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t num_running_ = 0;               // guarded by mutex_
  std::optional<Status> first_failure_;  // guarded by mutex_
};

}  // namespace

Result<void> download_files(const std::vector<RemoteFile>& files, const RemoteCommit& from,
                            const HubAccess& access, const CachedRepository& to,
                            const FetchCallbacks& callbacks) {
  return Download(files, from, access, to, callbacks).run();
}

Result<std::string> download_text(const std::string& url, const HubAccess& access, size_t max_bytes,
                                  const FetchCallbacks& callbacks) {
  const StopSignal stop(callbacks.is_cancelled);
  HttpClient client(access, stop);
  for (int num_failures = 1;; ++num_failures) {
    TextSink sink(url, max_bytes);
    const auto failure = client.get(url, 0, sink);
    if (!failure) return std::move(sink.text());
    if (auto given_up = wait_before_retry(*failure, num_failures, stop)) return *given_up;
  }
}

}  // namespace hadal::hub
