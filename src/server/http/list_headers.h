// Bounds the headers whose values are lists. The library that reads requests examines each entry of such a
// list several times before any other code receives the header. The functions are pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hadal::server {

// A request may have this many entries in all of its lists together.
inline constexpr size_t kMaxListEntries = 64;

// Returns how many entries the list `value` has, empty ones included.
size_t num_list_entries(std::string_view value);

// Returns the error for the list `name`, with which a request has `num_entries` entries, which are too many.
std::string too_many_entries(std::string_view name, size_t num_entries);

// Returns that error for a list (Connection, Proxy-Connection, Content-Length or Transfer-Encoding) that
// alone has more than kMaxListEntries entries, or nothing if there is none. `head` begins with a line of a
// request's head. An incomplete line and the bytes after the headers are not examined.
std::string why_list_is_too_long(std::string_view head);

}  // namespace hadal::server
