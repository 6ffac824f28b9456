// Says in words why a body is not JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hadal::server {

// Returns what is wrong at byte `at` of `body` (UTF-8), which is the first byte that cannot continue a JSON
// text, or the body's size where more is missing. The text names the byte, what stands there, what precedes
// it, and for the most common mistakes what is allowed instead. It is bounded however long the body is.
std::string json_syntax_error(std::string_view body, size_t at);

}  // namespace hadal::server
