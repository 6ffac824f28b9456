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

// ListScan examines a request's head while it arrives, each line once, because a client may send line by
// line.
class ListScan {
 public:
  // Returns that error for a list (Connection, Proxy-Connection, Content-Length or Transfer-Encoding) that
  // alone has more than kMaxListEntries entries, or nothing if there is none. `head` begins where it began in
  // the last call, and holds the same bytes, and perhaps more. An incomplete line and the bytes after the
  // headers are not examined.
  std::string why_too_long(std::string_view head);
  // Says that `num_bytes` at the beginning of the head have been removed.
  void removed(size_t num_bytes);

 private:
  size_t examined_ = 0;     // bytes at the beginning of the head
  bool ended_ = false;      // the empty line after the headers has been examined
  std::string_view name_;   // of the list to which the last line belongs; empty: to none
  size_t num_entries_ = 0;  // of this list, so far
};

}  // namespace hadal::server
