#include "server/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace hadal::server {
namespace {

// Returns when the machine started, in seconds since 1970.
double boot_time_s() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    if (word != "btime") continue;
    double seconds = 0;
    file >> seconds;
    return seconds;
  }
  return 0;
}

// Reads /proc/self/stat, whose fields proc(5) numbers from 1. The second one is a name in parentheses, which
// may contain spaces, so the rest begins after the last parenthesis.
void read_stat(ProcessStats& out) {
  constexpr int kFirst = 3, kUserTime = 14, kSystemTime = 15, kStartTime = 22, kVirtual = 23, kResident = 24;
  std::ifstream file("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t end = text.rfind(')');
  if (end == text.npos) return;
  const auto ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::istringstream fields(text.substr(end + 1));
  std::string field;
  for (int number = kFirst; number <= kResident && fields >> field; ++number) {
    const auto value = [&] { return std::stod(field); };
    if (number == kUserTime || number == kSystemTime) out.cpu_s += value() / ticks_per_s;
    if (number == kStartTime) out.start_time_s = boot_time_s() + value() / ticks_per_s;
    if (number == kVirtual) out.virtual_bytes = static_cast<int64_t>(value());
    if (number == kResident) out.resident_bytes = static_cast<int64_t>(value()) * ::sysconf(_SC_PAGESIZE);
  }
}

int64_t count_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  if (error) return 0;
  return std::distance(begin(entries), end(entries)) - 1;  // without the one that lists them
}

}  // namespace

ProcessStats read_process_stats() {
  ProcessStats out;
  read_stat(out);
  out.open_descriptors = count_descriptors();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    out.max_descriptors = limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
  }
  return out;
}

}  // namespace hadal::server
