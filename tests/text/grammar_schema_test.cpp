// Tests which keywords of JSON Schema are refused, and what the error names.
#include "text/grammar_schema.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/text/grammar_schemas.h"
#include "text/grammar.h"

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
      {R"({"properties": {"a": {"$ref": "#/properties"}}})", "does not lead to a schema"},
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

}  // namespace
}  // namespace hadal
