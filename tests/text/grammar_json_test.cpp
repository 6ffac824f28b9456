// Tests grammars of JSON: every random walk over allowed tokens is a value that the schema permits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <utility>

#include <boost/json.hpp>

#include "tests/text/grammar_schemas.h"
#include "tests/text/grammar_walk.h"
#include "text/grammar/grammar_schema.h"

namespace hadal {
namespace {

namespace json = boost::json;

size_t num_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// Implements enough of JSON Schema to judge the walks below, written from the standard and not from the
// grammar.
bool is_valid(const json::value& value, const json::value& schema, const json::value& root) {
  if (schema.is_bool()) return schema.get_bool();
  const json::object& s = schema.get_object();
  if (const auto* ref = s.if_contains("$ref")) {
    json::error_code failure;
    return is_valid(value, *root.find_pointer(std::string_view(ref->get_string()).substr(1), failure), root);
  }
  if (const auto* constant = s.if_contains("const"))
    if (value != *constant) return false;
  if (const auto* values = s.if_contains("enum"))
    if (std::find(values->get_array().begin(), values->get_array().end(), value) == values->get_array().end())
      return false;
  for (const auto& [name, at_most] : {std::pair{"anyOf", 99}, std::pair{"oneOf", 1}})
    if (const auto* cases = s.if_contains(name)) {
      const auto hits = std::count_if(cases->get_array().begin(), cases->get_array().end(),
                                      [&](const json::value& one) { return is_valid(value, one, root); });
      if (hits < 1 || hits > at_most) return false;
    }
  if (const auto* type = s.if_contains("type")) {
    const auto is = [&](const json::value& name) {
      const std::string_view t = name.get_string();
      return (t == "string" && value.is_string()) || (t == "boolean" && value.is_bool()) ||
             (t == "null" && value.is_null()) || (t == "array" && value.is_array()) ||
             (t == "object" && value.is_object()) || (t == "number" && value.is_number()) ||
             (t == "integer" && (value.is_int64() || value.is_uint64()));
    };
    const bool fits =
        type->is_string() ? is(*type) : std::any_of(type->get_array().begin(), type->get_array().end(), is);
    if (!fits) return false;
  }
  const auto count = [&](const char* name, int64_t otherwise) {
    return s.contains(name) ? s.at(name).to_number<int64_t>() : otherwise;
  };
  if (value.is_string()) {
    const std::string text(value.get_string());
    const auto length = static_cast<int64_t>(num_code_points(text));
    if (length < count("minLength", 0) || length > count("maxLength", INT64_MAX)) return false;
    if (s.contains("pattern") &&
        !std::regex_search(text, std::regex(std::string(s.at("pattern").get_string()))))
      return false;
    if (s.contains("format") && s.at("format") == "date" &&
        !std::regex_match(text, std::regex("\\d{4}-\\d\\d-\\d\\d")))
      return false;
  }
  if (value.is_number()) {
    const double x = value.to_number<double>();
    // A number of the grammar may be beyond the range of a double.
    const auto bound = [&](const char* name) { return s.at(name).to_number<double>(); };
    if (s.contains("minimum") && x < bound("minimum")) return false;
    if (s.contains("maximum") && x > bound("maximum")) return false;
    if (s.contains("exclusiveMinimum") && x <= bound("exclusiveMinimum")) return false;
    if (s.contains("exclusiveMaximum") && x >= bound("exclusiveMaximum")) return false;
    if (s.contains("multipleOf") && value.to_number<int64_t>() % s.at("multipleOf").to_number<int64_t>() != 0)
      return false;
  }
  if (value.is_array()) {
    const auto size = static_cast<int64_t>(value.get_array().size());
    if (size < count("minItems", 0) || size > count("maxItems", INT64_MAX)) return false;
    const size_t num_fixed = s.contains("prefixItems") ? s.at("prefixItems").get_array().size() : 0;
    for (size_t i = 0; i < value.get_array().size(); ++i) {
      const json::value* item = i < num_fixed ? &s.at("prefixItems").get_array()[i] : s.if_contains("items");
      if (item != nullptr && !is_valid(value.get_array()[i], *item, root)) return false;
    }
  }
  if (value.is_object()) {
    const auto size = static_cast<int64_t>(value.get_object().size());
    if (size < count("minProperties", 0) || size > count("maxProperties", INT64_MAX)) return false;
    if (const auto* required = s.if_contains("required"))
      for (const auto& key : required->get_array())
        if (!value.get_object().contains(key.get_string())) return false;
    for (const auto& [key, member] : value.get_object()) {
      const json::value* known =
          s.contains("properties") ? s.at("properties").get_object().if_contains(key) : nullptr;
      bool is_known = known != nullptr;
      if (is_known && !is_valid(member, *known, root)) return false;
      if (const auto* patterns = s.if_contains("patternProperties"))
        for (const auto& [pattern, one] : patterns->get_object())
          if (std::regex_search(std::string(key), std::regex(std::string(pattern)))) {
            is_known = true;
            if (!is_valid(member, one, root)) return false;
          }
      if (const auto* names = s.if_contains("propertyNames"))
        if (!is_valid(json::value(key), *names, root)) return false;
      if (!is_known && s.contains("additionalProperties") &&
          !is_valid(member, s.at("additionalProperties"), root))
        return false;
    }
  }
  return true;
}

TEST_F(GrammarTest, RandomWalksAreJsonOfTheSchema) {
  std::mt19937 random(20);
  for (const char* schema : kSchemas) {
    const CompiledRef grammar = compile(GrammarKind::kJsonSchema, schema);
    if (grammar == nullptr) continue;
    const json::value parsed_schema = json::parse(schema);
    int num_whole = 0;
    for (int i = 0; i < 12; ++i) {
      GrammarMatcher matcher(grammar);
      const Walk answer = walk(matcher, *tokenizer_, random, eos());
      if (!answer.is_whole || answer.text.find("\\u") != std::string::npos) continue;  // lone surrogates
      ++num_whole;
      json::error_code failure;
      const json::value value = json::parse(answer.text, failure);
      ASSERT_FALSE(failure) << failure.message() << "\n" << schema << "\n" << answer.text;
      ASSERT_TRUE(is_valid(value, parsed_schema, parsed_schema)) << schema << "\n" << answer.text;
    }
    EXPECT_GE(num_whole, 3) << "too few walks end: " << schema;
  }
}

TEST_F(GrammarTest, JsonObjectAllowsEveryObjectAndNothingElse) {
  std::mt19937 random(21);
  const CompiledRef grammar = compile(GrammarKind::kJsonObject, "");
  for (int i = 0; i < 20; ++i) {
    GrammarMatcher matcher(grammar);
    const Walk answer = walk(matcher, *tokenizer_, random, eos());
    if (!answer.is_whole || answer.text.find("\\u") != std::string::npos) continue;
    json::error_code failure;
    const json::value value = json::parse(answer.text, failure);
    ASSERT_FALSE(failure) << answer.text;
    EXPECT_TRUE(value.is_object()) << answer.text;
  }
  // The grammar allows more than the empty object.
  GrammarMatcher matcher(grammar);
  for (const int32_t token : tokenizer_->encode(R"({"a": [1, {"b": null}]})", false))
    ASSERT_TRUE(matcher.accept_token(token));
  EXPECT_TRUE(matcher.is_complete());
}

// Tells whether an answer may begin with `text`.
bool allows(const CompiledRef& grammar, const Tokenizer& tokenizer, std::string_view text) {
  GrammarMatcher matcher(grammar);
  for (const int32_t token : tokenizer.encode(text, false))
    if (!matcher.accept_token(token)) return false;
  return true;
}

constexpr const char* kNested =
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "object",
  "properties": {"c": {"type": "integer"}}, "required": ["c"]}}, "required": ["a", "b"]})";

// Grammars bound white space because a small model, or any model at a high temperature, may repeat it for
// ever.
TEST_F(GrammarTest, BetweenTokensOfJsonIsAtMostOneLineBreakAndTheIndentationOfItsDepth) {
  for (const CompiledRef& grammar :
       {compile(GrammarKind::kJsonSchema, kNested), compile(GrammarKind::kJsonObject, "")}) {
    ASSERT_NE(grammar, nullptr);
    for (const std::string_view text :
         {R"({"a":1,"b":{"c":2}})", R"({ "a" : 1 , "b" : { "c" : 2 } })",
          "{\n    \"a\": 1,\n    \"b\": {\n        \"c\": 2\n    }\n}",
          "{\n\t\"a\": 1,\n\t\"b\": {\n\t\t\"c\": 2\n\t}\n}", "{\n  \"a\": 1,\n  \"b\": {\"c\": 2}}"})
      EXPECT_TRUE(allows(grammar, *tokenizer_, text)) << text;
    for (const std::string_view text :
         {"{  ", "{\n\n", "{ \n", "{\t", "{\n     ", "{\n\t\t", "{\n \t", "{\"a\"  ",
          "{\"a\":  ", "{\"a\":\n", "{\"a\": 1  ", "{\"a\": 1,  ", "{\"a\": 1,\n     ",
          "{\"a\":1,\"b\":{\n         ", "{\"a\":1,\"b\":{\"c\":2}\n     "})
      EXPECT_FALSE(allows(grammar, *tokenizer_, text)) << text;
  }
}

TEST_F(GrammarTest, InsideOfAnyValueTheIndentationIsBoundedToo) {
  const CompiledRef grammar = compile(GrammarKind::kJsonObject, "");
  const std::string deep = R"({"a":[[[[[[)";
  EXPECT_TRUE(allows(grammar, *tokenizer_, deep + "\n" + std::string(16, ' ')));
  EXPECT_FALSE(allows(grammar, *tokenizer_, deep + "\n" + std::string(17, ' ')));
}

TEST_F(GrammarTest, CompactJsonHasOneBlankAfterEachCommaAndColon) {
  const auto compiler =
      GrammarCompiler::create(*tokenizer_, {.json_spaces = {.is_compact = true, .pattern = {}}}).value();
  for (const GrammarSpec& spec : {GrammarSpec{.kind = GrammarKind::kJsonSchema, .text = kNested, .field = {}},
                                  GrammarSpec{.kind = GrammarKind::kJsonObject, .text = {}, .field = {}}}) {
    const CompiledRef grammar = compiler->compile(spec).value();
    EXPECT_TRUE(allows(grammar, *tokenizer_, R"({"a": 1, "b": {"c": 2}})"));
    for (const std::string_view text :
         {"{ ", "{\n", "{\"a\" ", "{\"a\":1", "{\"a\": 1 ", "{\"a\": 1,\"", "{\"a\": 1,  "})
      EXPECT_FALSE(allows(grammar, *tokenizer_, text)) << text;
  }
  const CompiledRef tag = compiler
                              ->compile({.kind = GrammarKind::kStructuralTag,
                                         .text = std::string(R"({"type": "structural_tag", "format": {"type":
                                             "json_schema", "json_schema": )") +
                                                 kNested + "}}",
                                         .field = {}})
                              .value();
  EXPECT_TRUE(allows(tag, *tokenizer_, R"({"a": 1, "b": {"c": 2}})"));
  EXPECT_FALSE(allows(tag, *tokenizer_, "{ "));
}

TEST_F(GrammarTest, APatternReplacesTheRuleAboutWhiteSpace) {
  const auto compiler =
      GrammarCompiler::create(*tokenizer_, {.json_spaces = {.is_compact = false, .pattern = "[\\n ]{0,3}"}})
          .value();
  const CompiledRef grammar =
      compiler->compile({.kind = GrammarKind::kJsonSchema, .text = kNested, .field = {}}).value();
  EXPECT_TRUE(allows(grammar, *tokenizer_, "{\n\n\n\"a\" \n : 1 ,   \"b\""));
  EXPECT_FALSE(allows(grammar, *tokenizer_, "{    "));
  EXPECT_FALSE(allows(grammar, *tokenizer_, "{\t"));
  const auto broken =
      GrammarCompiler::create(*tokenizer_, {.json_spaces = {.is_compact = false, .pattern = "["}});
  ASSERT_FALSE(broken.ok());
  EXPECT_TRUE(broken.status().message.starts_with("--constrained-json-whitespace-pattern"))
      << broken.status().message;
}

}  // namespace
}  // namespace hadal
