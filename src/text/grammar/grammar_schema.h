// Checks and prepares the part of JSON Schema that grammars enforce. The library ignores unknown keywords and
// most combinations that it does not support. So a schema is checked first, and every part that the library
// would ignore is an error (kKeywords in grammar_schema_keywords.cpp is the table that decides). The
// functions are pure.
//
// Objects have only the members of "properties", in that order, unless additionalProperties allows others;
// {"type": "object"} and {"type": "array"} alone allow any object and any array. A "pattern" matches the
// whole string.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal {

inline constexpr size_t kMaxGrammarBytes = 256 << 10;
inline constexpr size_t kMaxSchemaDepth = 64;
inline constexpr int kMaxJsonBlanks = 32;         // the library looks past this many after a string
inline constexpr int64_t kMaxSchemaCount = 4096;  // limit of minLength, maxLength, minItems, maxItems, …

// Checks that every constraint of `schema_json` can be enforced. The errors (kInvalidArgument, one line
// beginning with `field`) are text that is not JSON or is too large or too deep; a keyword that is unknown,
// not enforced, or of the wrong type, with its JSON pointer; and a $ref to a place that does not exist or
// lies outside of the document.
Result<void> check_json_schema(std::string_view schema_json, std::string_view field);

struct PreparedSchema {
  std::string json;
  // In strings of limited length the library allows control characters, which JSON does not allow. So tokens
  // with such bytes, except '\n' and '\r', must be hidden from the library.
  bool has_length = false;
  // Lists the places and the expressions, because the library does not say which expression is broken.
  std::vector<std::pair<std::string, std::string>> patterns;
};

// Does the same check, and returns the schema in the form that the library reads. Where the library would
// allow too little, the schema is rewritten.
Result<PreparedSchema> prepare_json_schema(std::string_view schema_json, std::string_view field);

// Returns `message` on one line and with a bounded length, because errors quote text of clients.
std::string one_line(std::string_view message);

}  // namespace hadal
