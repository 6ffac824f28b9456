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

std::string why_list_is_too_long(std::string_view head) {
  std::string_view name;
  size_t num_entries = 0;
  for (size_t end = head.find('\n'); end != head.npos; end = head.find('\n')) {
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 1);
    if (line.empty() || line == "\r") break;
    const bool continues = line[0] == ' ' || line[0] == '\t';  // it belongs to the line before it
    if (!continues) {
      name = list_name(line);
      num_entries = 0;
    }
    if (name.empty()) continue;
    num_entries += num_list_entries(line);
    if (num_entries > kMaxListEntries) return too_many_entries(name, num_entries);
  }
  return {};
}

}  // namespace hadal::server
