// Says in words what is wrong with the JSON of a client: why a text is not JSON, and which value a field has.
// The functions are pure, and their texts are bounded however long the JSON is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

#include "base/result.h"

namespace hadal {

// Returns what is wrong at byte `at` of `text` (UTF-8), which is the first byte that cannot continue a JSON
// text, or the text's size if it is incomplete. The result names the byte's position, the character there,
// the text before it, and for the most common mistakes what is allowed instead.
std::string json_syntax_error(std::string_view text, size_t at);

// Returns how deeply the lists and objects of a JSON text are nested, counted by brackets: 0 for a number, 1
// for [].
size_t json_depth(std::string_view text);

// Parses the JSON text that is the value of a request's `field`. The errors (kInvalidArgument, beginning with
// `field`) are text that is not UTF-8 (with the byte), text that is not JSON (json_syntax_error), nesting
// deeper than `max_depth`, and more members than check_json_members allows (text/json_members.h).
Result<boost::json::value> parse_json_text(std::string_view text, std::string_view field, size_t max_depth);

// Formats `value` as a short text for an error line.
std::string shown(const boost::json::value& value);

}  // namespace hadal
