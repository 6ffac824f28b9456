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
#include "text/grammar_schema.h"

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
    const auto bound = [&](const char* name, double otherwise) {
      return s.contains(name) ? s.at(name).to_number<double>() : otherwise;
    };
    if (x < bound("minimum", -1e300) || x > bound("maximum", 1e300)) return false;
    if (x <= bound("exclusiveMinimum", -1e308) || x >= bound("exclusiveMaximum", 1e308)) return false;
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
  // It allows more than the empty object.
  GrammarMatcher matcher(grammar);
  for (const int32_t token : tokenizer_->encode(R"({"a": [1, {"b": null}]})", false))
    ASSERT_TRUE(matcher.accept_token(token));
  EXPECT_TRUE(matcher.is_complete());
}

// A small model, or any model at a high temperature, may repeat white space for ever.
TEST_F(GrammarTest, WhiteSpaceBetweenPartsOfJsonEnds) {
  const int32_t space = tokenizer_->encode(" ", false).front();
  ASSERT_EQ(tokenizer_->token_bytes(space), " ");
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false})";
  for (const CompiledRef& grammar :
       {compile(GrammarKind::kJsonSchema, schema), compile(GrammarKind::kJsonObject, "")}) {
    ASSERT_NE(grammar, nullptr);
    GrammarMatcher matcher(grammar);
    for (const int32_t token : tokenizer_->encode(R"({"a": 1)", false))
      ASSERT_TRUE(matcher.accept_token(token));
    for (int i = 0; i < kMaxJsonBlanks; ++i) ASSERT_TRUE(matcher.accept_token(space)) << i;
    for (const int32_t token : allowed_of(matcher))
      EXPECT_EQ(tokenizer_->token_bytes(token).find_first_of(" \n\r\t"), std::string_view::npos) << token;
    ASSERT_TRUE(matcher.accept_token(tokenizer_->encode("}", false).front()));
    EXPECT_TRUE(matcher.is_complete());
  }
}

}  // namespace
}  // namespace hadal
