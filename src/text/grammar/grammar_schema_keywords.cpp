#include "text/grammar/grammar_schema_keywords.h"

#include <array>

namespace hadal {

namespace {

using Shape = KeywordShape;
using About = KeywordAbout;

constexpr Keyword kKeywords[] = {
    {"$ref", Shape::kString, About::kEverything, true},
    {"const", Shape::kAnything, About::kEverything, true},
    {"enum", Shape::kList, About::kEverything, true},
    {"anyOf", Shape::kSchemaList, About::kEverything, true},
    {"oneOf", Shape::kSchemaList, About::kEverything, true},
    {"allOf", Shape::kSchemaList, About::kEverything, true},
    {"type", Shape::kTypes, About::kEverything, false},
    {"pattern", Shape::kString, About::kString, false},
    {"format", Shape::kString, About::kString, false},
    {"minLength", Shape::kCount, About::kString, false},
    {"maxLength", Shape::kCount, About::kString, false},
    {"minimum", Shape::kNumber, About::kNumber, false},
    {"maximum", Shape::kNumber, About::kNumber, false},
    {"exclusiveMinimum", Shape::kNumber, About::kNumber, false},
    {"exclusiveMaximum", Shape::kNumber, About::kNumber, false},
    {"multipleOf", Shape::kNumber, About::kNumber, false},
    {"items", Shape::kSchema, About::kArray, false},
    {"prefixItems", Shape::kSchemaList, About::kArray, false},
    {"unevaluatedItems", Shape::kSchema, About::kArray, false},
    {"minItems", Shape::kCount, About::kArray, false},
    {"maxItems", Shape::kCount, About::kArray, false},
    {"properties", Shape::kSchemaMap, About::kObject, false},
    {"required", Shape::kStringList, About::kObject, false},
    {"additionalProperties", Shape::kSchema, About::kObject, false},
    {"unevaluatedProperties", Shape::kSchema, About::kObject, false},
    {"patternProperties", Shape::kSchemaMap, About::kObject, false},
    {"propertyNames", Shape::kSchema, About::kObject, false},
    {"minProperties", Shape::kCount, About::kObject, false},
    {"maxProperties", Shape::kCount, About::kObject, false},
    {"$defs", Shape::kSchemaMap, About::kNothing, false},
    {"definitions", Shape::kSchemaMap, About::kNothing, false},
};

// These keywords do not restrict the allowed texts.
constexpr std::string_view kAnnotations[] = {
    "title",           "description",  "default",       "examples", "example",    "deprecated",
    "readOnly",        "writeOnly",    "$comment",      "$schema",  "$id",        "contentMediaType",
    "contentEncoding", "externalDocs", "discriminator", "nullable", "$vocabulary"};

// These keywords of JSON Schema are not enforced.
constexpr std::string_view kUnsupported[] = {"not",
                                             "if",
                                             "then",
                                             "else",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "uniqueItems",
                                             "additionalItems",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "$anchor",
                                             "$dynamicAnchor",
                                             "$recursiveAnchor",
                                             "contentSchema",
                                             "id"};

constexpr std::string_view kTypeNames[] = {"string", "number", "integer", "boolean",
                                           "null",   "array",  "object"};

// These formats of the standard have no grammar. Other formats that the library does not support ("int32", …)
// are annotations of clients.
constexpr std::string_view kUnsupportedFormats[] = {"idn-email", "idn-hostname", "iri", "iri-reference",
                                                    "regex"};
constexpr std::string_view kStringFormats[] = {
    "email",    "date", "time", "date-time",     "duration",     "ipv4",         "ipv6",
    "hostname", "uuid", "uri",  "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"};

}  // namespace

std::span<const Keyword> schema_keywords() {
  return kKeywords;
}

std::span<const std::string_view> keyword_names() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, std::size(kKeywords)> names;
    for (size_t i = 0; i < names.size(); ++i) names[i] = kKeywords[i].name;
    return names;
  }();
  return kNames;
}

const Keyword* find_keyword(std::string_view name) {
  for (const Keyword& row : kKeywords)
    if (row.name == name) return &row;
  return nullptr;
}

bool is_annotation(std::string_view name) {
  return among(kAnnotations, name);
}

bool is_unsupported_keyword(std::string_view name) {
  return among(kUnsupported, name);
}

std::span<const std::string_view> schema_type_names() {
  return kTypeNames;
}

std::span<const std::string_view> schema_formats() {
  return kStringFormats;
}

bool is_unsupported_format(std::string_view name) {
  return among(kUnsupportedFormats, name);
}

}  // namespace hadal
