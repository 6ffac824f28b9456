#include "server/process_stats.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

namespace hadal::server {
namespace {

using Clock = std::chrono::steady_clock;

// Listing this many descriptors takes less than a millisecond, so it is done each time.
constexpr int64_t kFewDescriptors = 1024;
constexpr std::chrono::seconds kListAge{5};

// These are fields of /proc/self/stat, which proc(5) numbers from 1.
constexpr int kUserTime = 14, kSystemTime = 15, kStartTime = 22, kVirtual = 23, kResident = 24;

// Calls take(number, value) for the numeric fields of `text`. The second field is a name in parentheses,
// which may contain spaces and parentheses, so the third field begins after the last parenthesis.
template <typename Take>
void for_each_field(std::string_view text, Take take) {
  const size_t end = text.rfind(')');
  if (end == text.npos) return;
  text.remove_prefix(end + 1);
  for (int number = 3; number <= kResident && text.starts_with(' '); ++number) {
    text.remove_prefix(1);
    const std::string_view field = text.substr(0, text.find(' '));
    int64_t value = 0;
    if (std::from_chars(field.data(), field.data() + field.size(), value).ec == std::errc())
      take(number, value);
    text.remove_prefix(field.size());
  }
}

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds_of_ticks(int64_t ticks) {
  return static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Calls take(number, value) for the fields of the open file /proc/self/stat. The kernel generates its
// contents (some 50 fields) anew whenever they are read from the beginning.
template <typename Take>
void read_fields(int stat, Take take) {
  char text[1024];
  const ssize_t size = ::pread(stat, text, sizeof(text), 0);
  if (size > 0) for_each_field({text, static_cast<size_t>(size)}, take);
}

}  // namespace

ProcessReader::ProcessReader()
    : stat_(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC)), descriptors_(::opendir("/proc/self/fd")) {
  read_fields(stat_, [this](int number, int64_t value) {
    if (number != kStartTime) return;  // since the machine started
    start_time_s_ = seconds_of(CLOCK_REALTIME) - seconds_of(CLOCK_BOOTTIME) + seconds_of_ticks(value);
  });
}

ProcessReader::~ProcessReader() {
  if (stat_ >= 0) ::close(stat_);
}

void ProcessReader::read_stat(ProcessStats& out) const {
  read_fields(stat_, [&out](int number, int64_t value) {
    if (number == kUserTime || number == kSystemTime) out.cpu_s += seconds_of_ticks(value);
    if (number == kVirtual) out.virtual_bytes = value;
    if (number == kResident) out.resident_bytes = value * ::sysconf(_SC_PAGESIZE);
  });
}

int64_t ProcessReader::list_descriptors() {
  if (descriptors_ == nullptr) return 0;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (num_listed_ > kFewDescriptors && now - listed_at_ < kListAge) return num_listed_;
  int64_t entries = 0;
  ::rewinddir(descriptors_.get());
  while (::readdir(descriptors_.get()) != nullptr) ++entries;
  num_listed_ = entries - 2;  // without "." and ".."
  listed_at_ = now;
  return num_listed_;
}

// Since Linux 6.2 the size of the directory is the number of descriptors; before it is 0.
int64_t ProcessReader::count_descriptors() {
  struct stat directory {};
  if (descriptors_ != nullptr && ::fstat(::dirfd(descriptors_.get()), &directory) == 0 &&
      directory.st_size > 0)
    return directory.st_size;
  return list_descriptors();
}

ProcessStats ProcessReader::read() {
  ProcessStats out;
  out.start_time_s = start_time_s_;
  read_stat(out);
  out.open_descriptors = count_descriptors();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    out.max_descriptors = limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
  return out;
}

}  // namespace hadal::server
