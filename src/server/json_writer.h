// Appends JSON to a string: what the hot path of streaming needs and nothing more. Whole documents that are
// not written per token are built with Boost.JSON instead. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hadal::server {

// `utf8` in quotes, escaped as little as JSON allows. It must be valid UTF-8 (bytes are passed through).
void append_json_string(std::string& out, std::string_view utf8);

void append_json_number(std::string& out, int64_t value);
// Shortest text that reads back as the same value. JSON has no NaN and no infinity: those become null.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, float value);

// [1,2,3]
void append_json_ids(std::string& out, std::span<const int32_t> ids);

// The first `max_bytes` of `utf8`, less what would cut a character.
std::string_view utf8_prefix(std::string_view utf8, size_t max_bytes);

}  // namespace hadal::server
