// Spells JSON as Python's json.dumps(value, ensure_ascii=False) does, because chat templates and encoders of
// the DeepSeek family are Python programs, and the models are trained on their output. The functions are
// pure.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal {

// Returns `text`, which is valid UTF-8, as a JSON string with its quotes. Only quotes, backslashes and
// control characters below U+0020 are escaped.
std::string quote_json(std::string_view text);

// Returns the same value on one line, with a space after each comma and colon. Members keep their order; if
// two have the same key, the last value stands in the first one's place. Integers of any size keep their
// digits, and other numbers become the shortest text of their double. `what` names the text in errors. The
// errors (kInvalidArgument) are text that is not JSON, a number beyond the range of a double, and nesting
// deeper than 128 levels. A result of more than `max_bytes` ends somewhere after that many bytes, and the
// rest of the JSON is not read.
Result<std::string> spell_json(std::string_view json, std::string_view what,
                               size_t max_bytes = std::numeric_limits<size_t>::max());

struct JsonMember {
  std::string key;
  std::string text;  // a string itself; any other value as spell_json writes it
  bool is_string = false;
};

// The members of a text of this length may take some 30 MB, which no memory accounting includes.
inline constexpr size_t kMaxMembersBytes = size_t{1} << 20;

// Returns the members of a JSON object as spell_json would order and write them. Errors are those of
// spell_json, a text of more than kMaxMembersBytes, and a value that is not an object.
Result<std::vector<JsonMember>> read_json_members(std::string_view json, std::string_view what);

}  // namespace hadal
