// What of JSON Schema the grammars enforce. The library ignores keywords that it does not know, so a schema
// is walked first and a keyword that would be ignored is an error. Pure functions.
#pragma once

#include <string_view>

#include "base/result.h"

namespace hadal {

inline constexpr size_t kMaxGrammarBytes = 256 << 10;
inline constexpr size_t kMaxSchemaDepth = 64;

// Whether every constraint of `schema_json` can be enforced. Errors (kInvalidArgument, one line beginning
// with `field`): not JSON, too large or too deep; a keyword that is unknown, not enforced, or of the wrong
// type, with the JSON pointer where it stands; a $ref that leads nowhere or outside of the document.
Result<void> check_json_schema(std::string_view schema_json, std::string_view field);

}  // namespace hadal
