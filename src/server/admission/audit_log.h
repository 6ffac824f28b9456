// Appends lines to a file (--audit-log) in a thread of its own, so that no request waits for the disk.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/result.h"

namespace hadal::server {

class AuditLog {
 public:
  static constexpr size_t kMaxWaitingBytes = size_t{8} << 20;  // lines beyond these are lost, and counted

  // Opens the file for appending; a new one is readable by its owner only. Errors (kDataLoss) give the
  // system's reason.
  static Result<std::shared_ptr<AuditLog>> open(std::string path);
  // Ends the thread after it has written the lines that wait. Without start() these lines are lost.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // Starts the thread, which continues even when memory runs out. Lines that were written before are kept
  // until it runs.
  void start();
  // Appends a line, which has no line break. Lines that cannot be written are lost. The server's log reports
  // the first loss and, when writing works again, how many lines were lost. Any thread may call it; it never
  // waits for the disk.
  void write(std::string_view line);
  // Opens the path again, because the file may have been renamed. Earlier lines still go to the old file. If
  // opening fails, the server's log reports it and the old file stays in use. Any thread may call it.
  void reopen();
  // Waits until everything so far is written, lost or reopened.
  void flush();
  int64_t num_lost() const;

 private:
  AuditLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  void run();
  void write_out(std::string_view lines);
  int write_bytes(std::string_view bytes, size_t& done);
  void open_again();
  void lose(int64_t count, int error);

  const std::string path_;
  int fd_;             // only the thread uses fd_ and torn_
  bool torn_ = false;  // the file ends inside a line
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::string waiting_;              // guarded by mutex_, as everything below
  std::optional<size_t> reopen_at_;  // after this many bytes of waiting_ the file is opened again
  bool busy_ = false;                // the thread is writing lines that it has taken
  bool stop_ = false;
  bool failing_ = false;     // the server's log has reported that lines are lost
  int64_t num_lost_ = 0;     // since the start
  int64_t lost_before_ = 0;  // since writing last worked
  std::thread thread_;
};

}  // namespace hadal::server
