// Appends JSON to a string, as far as the hot path of streaming requires it. Whole documents that are not
// written per token are built with Boost.JSON instead. The functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hadal::server {

// Appends `utf8` in quotes, with only the escapes that JSON requires. `utf8` must be valid UTF-8, because its
// bytes are copied.
void append_json_string(std::string& out, std::string_view utf8);

void append_json_number(std::string& out, int64_t value);
// Appends the shortest text that reads back as the same value. JSON has no NaN and no infinity: those become
// null.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, float value);

// Appends a comma if `out` is not empty: if it holds the first elements of a list.
inline void append_comma(std::string& out) {
  if (!out.empty()) out += ',';
}

// Appends a list like [1,2,3].
void append_json_ids(std::string& out, std::span<const int32_t> ids);

// Returns the first `max_bytes` of `utf8`, without a partial character at the end.
std::string_view utf8_prefix(std::string_view utf8, size_t max_bytes);

}  // namespace hadal::server
