// Tests which keywords of JSON Schema are refused, and what the error names.
#include "text/grammar/grammar_schema.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/text/grammar_schemas.h"
#include "text/grammar/grammar.h"

namespace hadal {
namespace {

TEST(GrammarSchema, KeywordsThatCannotBeEnforcedAreNamedWithTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {}})", "\"not\" at the root"},
      {R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})",
       "\"uniqueItems\" at /properties/a"},
      {R"({"type": "object", "properties": {"a/b": {"if": {}}}})", "\"if\" at /properties/a~1b"},
      {R"({"anyOf": [{"type": "string"}, {"contains": {}}]})", "\"contains\" at /anyOf/1"},
      {R"({"type": "string", "maxlength": 3})", "\"maxlength\""},
      {R"({"allOf": [{"type": "string"}, {"minLength": 3}]})", "\"allOf\""},
      {R"({"minLength": 3})", "\"minLength\""},
      {R"({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": true}})", "\"type\""},
      {R"({"$ref": "http://x/y"})", "\"$ref\""},
      {R"({"$ref": "#/nowhere"})", "nowhere"},
      {R"({"$ref": "#/properties", "properties": {"type": {"type": "string"}}})", "\"properties\""},
      {R"({"properties": {"a": {"$ref": "#/properties"}}})", "it must lead to a schema"},
      {R"({"type": "string", "pattern": "a", "minLength": 3})", "\"minLength\""},
      {R"({"type": "string", "format": "idn-email"})", "\"format\""},
      {R"({"type": "number", "multipleOf": 0.1})", "\"multipleOf\""},
      {R"({"type": "object", "required": ["a"]})", "\"required\""},
      {R"({"type": "object", "properties": 3})", "\"properties\""},
      {R"({"type": "text"})", "\"type\""},
      {R"({"type": "array", "items": [{}]})", "\"items\""},
      {R"({"type": "string", "maxLength": -1})", "\"maxLength\""},
      {R"({"type": "string", "maxLength": 1e99})", "\"maxLength\""},
      {R"({"enum": ["a", 3], "type": "string"})", "\"enum\""},
      {R"({"type": "object", "properties": {}, "patternProperties": {"a": {}}})", "\"patternProperties\""},
      {R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}})",
       "\"minimum\" at /properties/a"},
      {R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 1}})",
       "\"minLength\" at /items"},
      {R"([])", "must be an object"},
      {R"({)", "not JSON"},
      {R"(false)", "schema false"},
  };
  for (const auto& [schema, what] : cases) {
    const auto checked = check_json_schema(schema, "response_format");
    ASSERT_FALSE(checked.ok()) << schema;
    EXPECT_EQ(checked.status().code, StatusCode::kInvalidArgument);
    EXPECT_NE(checked.status().message.find(what), std::string::npos) << schema << "\n"
                                                                      << checked.status().message;
    EXPECT_EQ(checked.status().message.rfind("response_format", 0), 0U) << checked.status().message;
  }
  for (const char* schema : kSchemas) {
    const auto checked = check_json_schema(schema, "s");
    EXPECT_TRUE(checked.ok()) << checked.status().message;
  }
  std::string deep = "{\"type\": \"integer\"}";
  for (int i = 0; i < 70; ++i) deep = "{\"type\": \"array\", \"items\": " + deep + "}";
  EXPECT_FALSE(check_json_schema(deep, "s").ok());
  EXPECT_FALSE(check_json_schema(std::string(100000, '['), "s").ok());
  EXPECT_FALSE(check_json_schema("{\"title\": \"" + std::string(kMaxGrammarBytes, 'x') + "\"}", "s").ok());
}

TEST(GrammarSchema, ErrorsTellTheValueAndWhatIsAllowed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "string", "minLength": -1})",
       "s: keyword \"minLength\" at the root is -1: it must be an integer of 0 to 4096"},
      {R"({"type": "array", "minItems": 5000})",
       "s: keyword \"minItems\" at the root is 5000: it must be an integer of 0 to 4096"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})",
       "s: keyword \"minItems\" at the root is 3: it is above \"maxItems\", which is 2"},
      {R"({"type": "number", "maximum": 1e16})",
       "s: keyword \"maximum\" at the root is 1e+16: it must be a number between -9e15 and 9e15"},
      {R"({"type": "integer", "maximum": 2.5})",
       "s: keyword \"maximum\" at the root is 2.5: it must be an integer beside the type \"integer\""},
      {R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4})",
       "s: keyword \"exclusiveMinimum\" at the root is 3: no integer lies between it and "
       "\"exclusiveMaximum\", which "
       "is 4"},
      {R"({"type": "number", "minimum": 3, "exclusiveMaximum": 3})",
       "s: keyword \"minimum\" at the root is 3: no number lies between it and \"exclusiveMaximum\", which "
       "is 3"},
      {R"({"type": "number", "multipleOf": 0.1})",
       "s: keyword \"multipleOf\" at the root is 0.1: it is enforced for the type \"integer\" only, not for "
       "\"number\""},
      {R"({"type": "integer", "multipleOf": 2000})",
       "s: keyword \"multipleOf\" at the root is 2000: it must be an integer of 1 to 1024"},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 0})",
       "s: keyword \"multipleOf\" at the root is 7: beside it there must be both a least and a largest "
       "value, or "
       "neither"},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 10001})",
       "s: keyword \"multipleOf\" at the root is 7: it is enforced for at most 10000 integers, and from 1 to "
       "10001 "
       "there are 10001"},
      {R"({"type": "integer", "multipleOf": 7, "minimum": -6, "exclusiveMaximum": 0})",
       "s: keyword \"multipleOf\" at the root is 7: it has no multiple from -6 to -1"},
      {R"({"allOf": [{"type": "null"}, {"type": "boolean"}]})",
       R"(s: keyword "allOf" at the root is [{"type":"null"},{"type":"boolean"}]: it is enforced with one schema only, )"
       "and it has 2; merge them"},
      {R"({"type": "object", "patternProperties": {"a": true, "b": true}})",
       R"(s: keyword "patternProperties" at the root is {"a":true,"b":true}: it is enforced with one pattern only, and )"
       "it has 2"},
      {R"({"type": "string", "maxlength": 3})",
       "s: keyword \"maxlength\" at the root is 3: it is unknown; the nearest keyword is \"maxLength\""},
      {R"({"$ref": "#"})",
       R"(s: keyword "$ref" at the root is "#": it leads in a circle; must lead to a schema that describes a value)"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})",
       R"(s: keyword "$ref" at the root is "#/$defs/a": it leads in a circle)"},
      {R"({"type": "array", "items": 7})", "keyword \"items\" at the root is 7: it must be a schema"},
      {R"({"anyOf": [7]})", "s: at /anyOf/0 is 7; a schema must be an object or a boolean"},
      {R"({"a": 1,})",
       R"(s: not JSON: "}" at byte 8 cannot follow "{\"a\": 1,"; nothing may end after a comma)"},
      {"{\"a\": \"\xff\"}", "s: invalid UTF-8 at byte 7 (0xff); must be JSON in UTF-8"},
  };
  for (const auto& [schema, what] : cases) {
    const auto checked = check_json_schema(schema, "s");
    ASSERT_FALSE(checked.ok()) << schema;
    EXPECT_NE(checked.status().message.find(what), std::string::npos) << checked.status().message;
  }
  EXPECT_TRUE(
      check_json_schema(R"({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 10000})", "s").ok());
  EXPECT_TRUE(
      check_json_schema(R"({"type": "integer", "multipleOf": 7, "minimum": -7, "maximum": -1})", "s").ok());
  std::string deep = R"({"type": "integer"})";
  for (int i = 0; i < 70; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  EXPECT_NE(check_json_schema(deep, "s").status().message.find("is 65 schemas deep; at most 64 are allowed"),
            std::string::npos);
  EXPECT_EQ(check_json_schema(std::string(300, '['), "s").status().message,
            "s: its JSON is nested 300 levels deep; at most 256 are allowed");
}

}  // namespace
}  // namespace hadal
