#include "server/http/list_headers.h"

#include <fmt/format.h>

#include <algorithm>

#include <boost/beast/core/string.hpp>

namespace hadal::server {
namespace {

// Returns the name of the list that begins on this line; empty if none does.
std::string_view list_name(std::string_view line) {
  constexpr std::string_view kLists[] = {"Connection", "Proxy-Connection", "Content-Length",
                                         "Transfer-Encoding"};
  for (const std::string_view name : kLists) {
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    if (boost::beast::iequals(line.substr(0, name.size()), name)) return name;
  }
  return {};
}

}  // namespace

size_t num_list_entries(std::string_view value) {
  return 1 + static_cast<size_t>(std::count(value.begin(), value.end(), ','));
}

std::string too_many_entries(std::string_view name, size_t num_entries) {
  return fmt::format("{} brings the request's lists to {} entries; at most {} are allowed", name, num_entries,
                     kMaxListEntries);
}

std::string ListScan::why_too_long(std::string_view head) {
  while (!ended_) {
    const size_t end = head.find('\n', examined_);
    if (end == head.npos) break;
    const std::string_view line = head.substr(examined_, end - examined_);
    examined_ = end + 1;
    ended_ = line.empty() || line == "\r";
    if (ended_) break;
    const bool continues = line[0] == ' ' || line[0] == '\t';  // it belongs to the line before it
    if (!continues) {
      name_ = list_name(line);
      num_entries_ = 0;
    }
    if (name_.empty()) continue;
    num_entries_ += num_list_entries(line);
    if (num_entries_ > kMaxListEntries) return too_many_entries(name_, num_entries_);
  }
  return {};
}

void ListScan::removed(size_t num_bytes) {
  examined_ -= std::min(num_bytes, examined_);
}

}  // namespace hadal::server
