// What of JSON Schema the grammars enforce. The library ignores keywords that it does not know and most
// combinations that it cannot do, so a schema is walked first and whatever would be ignored is an error
// (kKeywords in grammar_schema.cpp is the table that decides). Pure functions.
//
// Objects have no other members than those of "properties", and in that order, unless additionalProperties
// says otherwise; {"type": "object"} and {"type": "array"} alone are any object and any array. A "pattern"
// matches the whole string.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal {

inline constexpr size_t kMaxGrammarBytes = 256 << 10;
inline constexpr size_t kMaxSchemaDepth = 64;
inline constexpr int kMaxJsonBlanks =
    32;  // in a row, between the tokens of JSON: models may get stuck in them
inline constexpr int64_t kMaxSchemaCount = 4096;  // of minLength, maxLength, minItems, maxItems, …

// Whether every constraint of `schema_json` can be enforced. Errors (kInvalidArgument, one line beginning
// with `field`): not JSON, too large or too deep; a keyword that is unknown, not enforced, or of the wrong
// type, with the JSON pointer where it stands; a $ref that leads nowhere or outside of the document.
Result<void> check_json_schema(std::string_view schema_json, std::string_view field);

struct PreparedSchema {
  std::string json;
  // The library lets control characters through strings of limited length, which JSON does not: tokens with
  // such bytes, '\n' and '\r' excepted, must be kept from it.
  bool has_length = false;
  // Expressions and where they stand, for errors: the library does not say which of them is broken.
  std::vector<std::pair<std::string, std::string>> patterns;
};

// The same, and the schema as the library is to be given it: where it would allow too little, said in other
// words.
Result<PreparedSchema> prepare_json_schema(std::string_view schema_json, std::string_view field);

// `message` on one line and of bounded length: errors quote what clients sent.
std::string one_line(std::string_view message);

}  // namespace hadal
