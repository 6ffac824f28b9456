// The keywords of JSON Schema: the form of their values, the values to which they apply, and which of them
// grammars enforce. Private to grammar_schema.cpp. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

namespace hadal {

// The required form of a keyword's value.
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

// The values to which a keyword applies; it does not restrict others.
enum class KeywordAbout : uint8_t { kEverything, kString, kNumber, kArray, kObject, kNothing };

struct Keyword {
  std::string_view name;
  KeywordShape shape;
  KeywordAbout about;  // kNothing: an annotation
  bool decides_alone;  // the library uses the first of these, in this order, and ignores everything beside it
};

// All keywords that are enforced or that contain schemas. Those that decide alone come first, in the order in
// which the library looks for them.
std::span<const Keyword> schema_keywords();
// Null for any other name.
const Keyword* find_keyword(std::string_view name);
// Keywords that do not restrict the allowed texts.
bool is_annotation(std::string_view name);
// Keywords of JSON Schema that are not enforced.
bool is_unsupported_keyword(std::string_view name);

// The names of types: string, number, integer, boolean, null, array, object.
std::span<const std::string_view> schema_type_names();
// The formats that are enforced.
std::span<const std::string_view> schema_formats();
// Formats of the standard for which there is no grammar. Others that the library does not know ("int32", …)
// are annotations of clients.
bool is_unsupported_format(std::string_view name);

template <typename List>
bool among(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace hadal
