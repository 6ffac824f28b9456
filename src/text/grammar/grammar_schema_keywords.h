// Describes the keywords of JSON Schema: the form of their values, the JSON values to which they apply, and
// whether grammars enforce them. Only grammar_schema.cpp and grammar_schema_shapes.h include it. The
// functions are pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

namespace hadal {

// Names the required form of a keyword's value.
enum class KeywordShape : uint8_t {
  kSchema,      // a schema
  kSchemaList,  // a non-empty list of schemas
  kSchemaMap,   // an object whose members are schemas
  kString,
  kStringList,
  kCount,   // an integer ≥ 0
  kNumber,  // a number
  kList,    // a non-empty list
  kTypes,   // a type's name, or a non-empty list of them
  kAnything,
};

// Names the values to which a keyword applies; a keyword does not restrict other values.
enum class KeywordAbout : uint8_t { kEverything, kString, kNumber, kArray, kObject, kNothing };

struct Keyword {
  std::string_view name;
  KeywordShape shape;
  KeywordAbout about;  // kNothing: an annotation
  bool decides_alone;  // the library uses the first of these, in this order, and ignores everything beside it
};

// Returns all keywords that are enforced or that contain schemas. Those that decide alone come first, in the
// order in which the library looks for them.
std::span<const Keyword> schema_keywords();
// Returns the names of the same keywords.
std::span<const std::string_view> keyword_names();
// Returns the keyword of this name, or null for any other name.
const Keyword* find_keyword(std::string_view name);
// Tells whether this keyword does not restrict the allowed texts.
bool is_annotation(std::string_view name);
// Tells whether this is a keyword of JSON Schema that is not enforced.
bool is_unsupported_keyword(std::string_view name);

// Returns the names of types: string, number, integer, boolean, null, array and object.
std::span<const std::string_view> schema_type_names();
// Returns the formats that are enforced.
std::span<const std::string_view> schema_formats();
// Tells whether this is a format of the standard without a grammar. Other formats that the library does not
// support ("int32", …) are annotations of clients.
bool is_unsupported_format(std::string_view name);

template <typename List>
bool among(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace hadal
