// Grammars: every random walk over allowed tokens ends in a text of the grammar, masks equal the result of
// trying every token, special tokens stay outside, hostile specs are errors. Skipped in a build without
// xgrammar.
#include "text/grammar.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <regex>
#include <thread>

#include <boost/json.hpp>

#include "tests/source_dir.h"
#include "tests/text/test_data.h"
#include "text/grammar_schema.h"
#include "text/grammar_tools.h"

namespace hadal {
namespace {

namespace json = boost::json;

using Compiled = std::shared_ptr<const CompiledGrammar>;

const Tokenizer& tiny_tokenizer() {
  static const auto tokenizer = Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
  return *tokenizer;
}

constexpr int64_t kPaddedVocab = 4101;  // five ids without a token, and not a whole word

GrammarCompilerOptions padded() {
  GrammarCompilerOptions options;
  options.vocab_size = kPaddedVocab;
  return options;
}

class GrammarTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
    tokenizer_ = &tiny_tokenizer();
    compiler_ = GrammarCompiler::create(*tokenizer_, padded()).value();
  }

  Compiled compile(GrammarKind kind, const std::string& text) {
    auto compiled = compiler_->compile({.kind = kind, .text = text});
    EXPECT_TRUE(compiled.ok()) << compiled.status().message << "\n" << text;
    return compiled.ok() ? *compiled : nullptr;
  }
  std::string error_of(GrammarKind kind, const std::string& text) {
    const auto compiled = compiler_->compile({.kind = kind, .text = text});
    return compiled.ok() ? "none: it compiles" : compiled.status().message;
  }
  int32_t id(std::string_view token) const { return tokenizer_->token_to_id(token).value(); }
  int32_t eos() const { return tokenizer_->eos_id().value(); }

  const Tokenizer* tokenizer_ = nullptr;
  std::unique_ptr<GrammarCompiler> compiler_;
};

// Only whole characters, because the text that tokens of single bytes spell is not always valid (the library
// allows surrogates).
bool is_text(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead >= 0x80 && (lead < 0xC2 || lead > 0xF4)) return false;
    for (size_t k = 1; k < size; ++k)
      if (i + k >= bytes.size() || (static_cast<unsigned char>(bytes[i + k]) & 0xC0) != 0x80) return false;
    i += size;
  }
  return true;
}

std::vector<int32_t> allowed_of(GrammarMatcher& matcher, int64_t vocab_size = kPaddedVocab) {
  std::vector<uint32_t> words((vocab_size + 31) / 32);
  matcher.fill_mask(words);
  std::vector<int32_t> ids;
  for (size_t t = 0; t < words.size() * 32; ++t)
    if ((words[t / 32] >> (t % 32) & 1U) != 0) ids.push_back(static_cast<int32_t>(t));
  return ids;
}

struct Walk {
  std::vector<int32_t> ids;  // without the end token
  std::string text;
  bool is_whole = false;
};

// Takes random allowed tokens until the answer ends. White space and free text would continue for ever, so
// short tokens and the end are preferred, increasingly so as the answer grows.
Walk walk(GrammarMatcher& matcher, const Tokenizer& tokenizer, std::mt19937& random, int32_t eos,
          size_t longest = 3000) {
  Walk out;
  while (out.ids.size() < longest) {
    const std::vector<int32_t> ids = allowed_of(matcher);
    if (ids.empty() || ids.back() >= tokenizer.vocab_size()) {
      ADD_FAILURE() << (ids.empty() ? "an empty mask" : "an id without a token is allowed");
      return out;
    }
    int32_t choice = ids[random() % ids.size()];
    for (int i = 0; i < 100 && !is_text(tokenizer.token_bytes(choice)); ++i)
      choice = ids[random() % ids.size()];
    const bool may_end = std::binary_search(ids.begin(), ids.end(), eos);
    if (may_end != matcher.is_complete() && ids.size() > 1)
      ADD_FAILURE() << "the end is allowed when it is not whole";
    if (may_end && random() % 4 == 0) choice = eos;
    for (size_t i = 0; i < out.ids.size() / 100 && choice != eos; ++i) {
      const int32_t other = ids[random() % ids.size()];
      const auto is_blank = [&](int32_t t) {
        return tokenizer.token_bytes(t).find_first_not_of(" \n\r\t") == std::string_view::npos;
      };
      const bool closes = tokenizer.token_bytes(other).find_first_of("\"}],:") != std::string_view::npos;
      if (other == eos || closes || (is_blank(choice) && !is_blank(other))) choice = other;
    }
    if (!matcher.accept_token(choice)) {
      ADD_FAILURE() << "an allowed token was not accepted: " << choice;
      return out;
    }
    if (choice == eos) {
      out.is_whole = true;
      return out;
    }
    out.ids.push_back(choice);
    out.text += tokenizer.token_bytes(choice);
  }
  return out;
}

size_t num_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// Enough of JSON Schema to judge the walks below, written from the standard and not from the grammar.
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

constexpr const char* kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]})",
    R"({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "null"}}, "required": ["b"]})",
    R"({"type": "array", "items": {"enum": ["a/b", "中文", 3, null, {"x": [1, "\"\\\n"]}]}, "minItems": 1, "maxItems": 4})",
    R"({"type": "string", "minLength": 2, "maxLength": 9})",
    R"({"type": "string", "maxLength": 300})",
    R"({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,200}$"})",
    R"({"type": "string", "format": "date"})",
    R"({"type": "integer", "minimum": -12, "maximum": 345})",
    R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100, "multipleOf": 7})",
    R"({"type": "number", "minimum": -1.5, "exclusiveMaximum": 2})",
    R"({"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]}]})",
    R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})",
    R"({"type": ["string", "null"], "maxLength": 5})",
    R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/node"})",
    R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": false, "minItems": 2})",
    R"({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3})",
    R"({"type": "object", "patternProperties": {"^x_[a-z]+$": {"type": "boolean"}}, "additionalProperties": false})",
    R"({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "null"}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "minProperties": 2, "maxProperties": 2})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}, "required": ["a"]})",
    R"({"type": "object", "properties": {"free": {"type": "object"}, "list": {"type": "array"}}, "required": ["list"], "title": "T", "x-note": 1})",
    R"({"allOf": [{"type": "boolean"}], "description": "pydantic wraps references so"})",
    R"({"enum": ["red", "green"], "type": "string"})",
};

TEST_F(GrammarTest, RandomWalksAreJsonOfTheSchema) {
  std::mt19937 random(20);
  for (const char* schema : kSchemas) {
    const Compiled grammar = compile(GrammarKind::kJsonSchema, schema);
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
  const Compiled grammar = compile(GrammarKind::kJsonObject, "");
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
  for (const Compiled& grammar :
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

TEST_F(GrammarTest, RandomWalksMatchTheRegex) {
  std::mt19937 random(22);
  for (const char* pattern : {"[a-z]{3,5}@(x|yy)\\.com", "(ab|c)*d?", "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
                              "(yes|no|maybe)", "[^a-y\\n]{2,150}"}) {
    const Compiled grammar = compile(GrammarKind::kRegex, pattern);
    ASSERT_NE(grammar, nullptr);
    int num_whole = 0;
    for (int i = 0; i < 20; ++i) {
      GrammarMatcher matcher(grammar);
      const Walk answer = walk(matcher, *tokenizer_, random, eos());
      if (!answer.is_whole) continue;
      ++num_whole;
      const bool is_ascii = std::all_of(answer.text.begin(), answer.text.end(), [](char c) { return c > 0; });
      if (!is_ascii) continue;
      EXPECT_TRUE(std::regex_match(answer.text, std::regex(pattern))) << pattern << ": " << answer.text;
    }
    EXPECT_GE(num_whole, 10) << pattern;
  }
}

// A token is allowed exactly if its bytes lead a fresh matcher, which has read the text so far byte by byte,
// to a state that can continue. The vocabulary has a token for every byte.
TEST_F(GrammarTest, MasksEqualTheResultOfTryingEveryToken) {
  auto tiny = tiny_tokenizer_json();
  int next = 258;
  for (const char* text : {"true", "{\"", "\":", "null", "12", "\"}", ",\"", "fal", "se", "aa"}) {
    tiny["model"]["vocab"][text] = next++;
  }
  const auto tokenizer = Tokenizer::from_json(tiny.dump()).value();
  const int64_t vocab = tokenizer->vocab_size();
  const auto end = tokenizer->token_to_id("abc").value();
  auto compiler = GrammarCompiler::create(*tokenizer, {.end_ids = {end}}).value();
  std::map<char, int32_t> byte_ids;
  for (int32_t t = 0; t < vocab; ++t)
    if (tokenizer->token_bytes(t).size() == 1) byte_ids[tokenizer->token_bytes(t)[0]] = t;
  ASSERT_EQ(byte_ids.size(), 256U);

  const GrammarSpec specs[] = {
      {GrammarKind::kJsonSchema, kSchemas[0], ""},
      {GrammarKind::kJsonSchema,
       R"({"type": "object", "properties": {"aa": {"type": "string", "maxLength": 4}, "b": {"enum": [true, null, 12]}}, "additionalProperties": {"type": "boolean"}})",
       ""},
      {GrammarKind::kRegex, "(a|aab)*(12|ab)?", ""},
      {GrammarKind::kEbnf, "root ::= \"a\" root \"b\" | \"\" | [0-9]+ ", ""}};
  std::mt19937 random(23);
  for (const GrammarSpec& spec : specs) {
    const Compiled grammar = compiler->compile(spec).value();
    for (int round = 0; round < 3; ++round) {
      GrammarMatcher matcher(grammar);
      std::string text;
      for (int step = 0; step < 15; ++step) {
        const std::vector<int32_t> allowed = allowed_of(matcher, vocab);
        GrammarMatcher by_bytes(grammar);
        for (const char c : text) ASSERT_TRUE(by_bytes.accept_token(byte_ids[c]));
        std::vector<int32_t> expected;
        for (int32_t t = 0; t < vocab; ++t) {
          if (t == end) {
            if (by_bytes.is_complete()) expected.push_back(t);
            continue;
          }
          const std::string_view bytes = tokenizer->token_bytes(t);
          size_t taken = 0;
          while (taken < bytes.size() && by_bytes.accept_token(byte_ids[bytes[taken]])) ++taken;
          if (taken == bytes.size() && taken > 0) expected.push_back(t);
          by_bytes.rollback(static_cast<int64_t>(taken));
        }
        ASSERT_EQ(allowed, expected) << spec.text << " after " << text;
        const int32_t choice = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher.accept_token(choice));
        if (choice == end) break;
        text += tokenizer->token_bytes(choice);
      }
    }
  }
}

TEST_F(GrammarTest, AddedTokensNeverStandForTextInStringsAndPatterns) {
  const Compiled string = compile(GrammarKind::kJsonSchema, R"({"type": "string"})");
  const Compiled limited = compile(GrammarKind::kJsonSchema, R"({"type": "string", "maxLength": 50})");
  const Compiled pattern = compile(GrammarKind::kRegex, ".*");
  const Compiled negated = compile(GrammarKind::kRegex, "[^q]*");
  for (const auto& [grammar, start] :
       {std::pair{string, "\""}, {limited, "\""}, {pattern, "x"}, {negated, "x"}}) {
    GrammarMatcher matcher(grammar);
    ASSERT_TRUE(matcher.accept_token(id(start)));
    for (const int32_t t : allowed_of(matcher))
      EXPECT_TRUE(!tokenizer_->is_added(t) || t == eos()) << tokenizer_->id_to_token(t);
    EXPECT_FALSE(matcher.accept_token(id("<｜tool▁sep｜>")));
    EXPECT_FALSE(matcher.accept_token(id("</think>")));
  }
}

TEST_F(GrammarTest, AGrammarWithAMarkersTextAllowsItsToken) {
  const Compiled ebnf = compile(GrammarKind::kEbnf, "root ::= \"<｜tool▁sep｜>\" [a-z]");
  GrammarMatcher matcher(ebnf);
  EXPECT_TRUE(matcher.accept_token(id("<｜tool▁sep｜>")));
  EXPECT_FALSE(matcher.accept_token(id("<｜tool▁call▁end｜>")));
  EXPECT_TRUE(matcher.accept_token(id("a")));
  EXPECT_TRUE(matcher.is_complete());

  // If it is named, only the token itself is allowed.
  const Compiled tag =
      compile(GrammarKind::kStructuralTag,
              R"({"type": "structural_tag", "format": {"type": "token", "token": "<think>"}})");
  GrammarMatcher by_name(tag);
  EXPECT_EQ(allowed_of(by_name), std::vector<int32_t>{id("<think>")});
  EXPECT_NE(error_of(GrammarKind::kStructuralTag,
                     R"({"type": "structural_tag", "format": {"type": "token", "token": "<none>"}})")
                .find("<none>"),
            std::string::npos);
}

TEST_F(GrammarTest, StructuralTagsWorkInBothForms) {
  const Compiled old_form = compile(
      GrammarKind::kStructuralTag,
      R"({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f>"]})");
  const auto takes = [&](const Compiled& grammar, std::string_view text) {
    GrammarMatcher matcher(grammar);
    for (const int32_t t : tokenizer_->encode(text, false))
      if (!matcher.accept_token(t)) return false;
    return matcher.is_complete();
  };
  EXPECT_TRUE(takes(old_form, "some text <f>12</f> more"));
  EXPECT_FALSE(takes(old_form, "some text <f>x</f> more"));
}

TEST_F(GrammarTest, ReasoningIsFreeUntilItsEnd) {
  const Compiled grammar = compile(GrammarKind::kRegex, "ok");
  GrammarMatcher matcher(grammar, {.start_after_token = id("</think>")});
  EXPECT_EQ(static_cast<int64_t>(allowed_of(matcher).size()), kPaddedVocab - 1) << "all but the end token";
  EXPECT_TRUE(matcher.accept_token(id("q")));
  EXPECT_FALSE(matcher.accept_token(eos()));
  EXPECT_FALSE(matcher.is_complete());
  EXPECT_TRUE(matcher.accept_token(id("</think>")));
  EXPECT_FALSE(matcher.accept_token(id("q")));
  EXPECT_TRUE(matcher.accept_token(id("o")));
  EXPECT_TRUE(matcher.accept_token(id("k")));
  EXPECT_EQ(allowed_of(matcher), std::vector<int32_t>{eos()});
  EXPECT_TRUE(matcher.accept_token(eos()));
  EXPECT_TRUE(matcher.is_terminated());
  EXPECT_EQ(allowed_of(matcher), std::vector<int32_t>{eos()}) << "after the end only ends";

  matcher.rollback(2);  // undoes the end and "k"
  EXPECT_FALSE(matcher.is_terminated());
  EXPECT_FALSE(matcher.accept_token(eos()));
  EXPECT_TRUE(matcher.accept_token(id("k")));
  matcher.rollback(3);  // undoes into the reasoning
  EXPECT_EQ(static_cast<int64_t>(allowed_of(matcher).size()), kPaddedVocab - 1);
}

TEST_F(GrammarTest, RollbackRestoresTheEarlierState) {
  std::mt19937 random(24);
  const Compiled grammar = compile(GrammarKind::kJsonSchema, kSchemas[13]);
  GrammarMatcher matcher(grammar);
  std::vector<std::vector<int32_t>> masks{allowed_of(matcher)};
  for (int step = 0; step < 300; ++step) {
    if (masks.size() > 1 && random() % 3 == 0) {
      const auto back = 1 + random() % (masks.size() - 1);
      matcher.rollback(static_cast<int64_t>(back));
      masks.resize(masks.size() - back);
      ASSERT_EQ(allowed_of(matcher), masks.back());
    } else {
      const auto& ids = masks.back();
      ASSERT_TRUE(matcher.accept_token(ids[random() % ids.size()]));
      masks.push_back(allowed_of(matcher));
    }
  }
}

TEST_F(GrammarTest, ToolChoiceForcesCallsInTheFormatsNotation) {
  const std::string tools = R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "stop"}}])";
  std::mt19937 random(25);
  for (const ChatFormat format : {ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31}) {
    for (const std::string name : {"", "get_weather"}) {
      const auto spec = tool_choice_grammar(format, tools, name, true);
      ASSERT_TRUE(spec.ok()) << spec.status().message;
      const Compiled grammar = compile(spec->kind, spec->text);
      for (int i = 0; i < 5; ++i) {
        GrammarMatcher matcher(grammar);
        const Walk answer = walk(matcher, *tokenizer_, random, eos());
        ASSERT_FALSE(answer.ids.empty());
        EXPECT_EQ(answer.ids.front(), id("<｜tool▁calls▁begin｜>"));
        if (answer.is_whole) {
          EXPECT_EQ(answer.ids.back(), id("<｜tool▁calls▁end｜>"));
        }
      }
      // The text of render_chat for two calls matches the grammar; other functions do not.
      ChatMessage message{.role = "assistant"};
      message.tool_calls = {{.name = "get_weather", .arguments = R"({"city": "Bonn"})"},
                            {.name = "get_weather", .arguments = R"({"city":"Ulm"})"}};
      const std::vector<ChatMessage> messages{{.role = "user", .content = "q"}, message};
      const std::string text = render_chat(format, messages, {.add_generation_prompt = false}).value();
      const size_t begin = text.find("<｜tool▁calls▁begin｜>");
      const std::string call = text.substr(begin, text.find("<｜end▁of▁sentence｜>") - begin);
      GrammarMatcher matcher(grammar);
      for (const int32_t t : tokenizer_->encode(call, false))
        ASSERT_TRUE(matcher.accept_token(t)) << to_string(format) << " " << tokenizer_->id_to_token(t) << "\n"
                                             << call;
      EXPECT_TRUE(matcher.is_complete());
    }
  }
  // A function without parameters has none.
  for (const char* none : {R"([{"type":"function","function":{"name":"stop"}}])",
                           R"([{"type":"function","function":{"name":"stop","parameters":{}}}])"}) {
    const auto spec = tool_choice_grammar(ChatFormat::kV31, none, "", false);
    ASSERT_TRUE(spec.ok()) << spec.status().message;
    const Compiled grammar = compile(spec->kind, spec->text);
    const auto takes = [&](const std::string& arguments) {
      GrammarMatcher matcher(grammar);
      const std::string call = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>" + arguments +
                               "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
      for (const int32_t t : tokenizer_->encode(call, false))
        if (!matcher.accept_token(t)) return false;
      return matcher.is_complete();
    };
    EXPECT_TRUE(takes("{}")) << none;
    EXPECT_FALSE(takes(R"({"a": 1})")) << none;
  }
  EXPECT_EQ(tool_choice_grammar(ChatFormat::kV2, tools, "", false).status().code, StatusCode::kUnsupported);
  for (const char* hostile :
       {"", "{}", "[]", "[1]", R"([{"function": 3}])", R"([{"function": {"name": "a b"}}])",
        R"([{"function": {"name": "<｜tool▁sep｜>"}}])", R"([{"function": {"name": "f", "parameters": 3}}])",
        R"([{"function": {"name": "f", "parameters": {"not": {}}}}])",
        R"([{"function": {"name": "f"}}, {"function": {"name": "f"}}])",
        R"([{"type": "x", "function": {"name": "f"}}])"})
    EXPECT_EQ(tool_choice_grammar(ChatFormat::kV31, hostile, "", false).status().code,
              StatusCode::kInvalidArgument)
        << hostile;
  EXPECT_NE(tool_choice_grammar(ChatFormat::kV31, tools, "nosuch", false).status().message.find("nosuch"),
            std::string::npos);
}

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

TEST_F(GrammarTest, BrokenGrammarsAreOneCleanLine) {
  const std::pair<GrammarKind, std::string> cases[] = {
      {GrammarKind::kRegex, "("},
      {GrammarKind::kRegex, "a)"},
      {GrammarKind::kRegex, "[z-a]"},
      {GrammarKind::kRegex, "(?=a)b"},
      {GrammarKind::kRegex, "a{3,1}"},
      {GrammarKind::kRegex, ""},
      {GrammarKind::kRegex, std::string("a\0b", 3)},
      {GrammarKind::kRegex, "\xFF\xFE"},
      {GrammarKind::kRegex, std::string(50000, '(')},
      {GrammarKind::kEbnf, "root ::= a"},
      {GrammarKind::kEbnf, "start ::= \"a\""},
      {GrammarKind::kEbnf, "root ::= \"a"},
      {GrammarKind::kEbnf, "root ::= root \"a\""},
      {GrammarKind::kEbnf, "root ::= Token(9999999)"},
      {GrammarKind::kEbnf, "\xFF\xFE"},
      {GrammarKind::kEbnf, "root ::= " + std::string(50000, '(')},
      {GrammarKind::kJsonSchema, R"({"$ref": "#"})"},
      {GrammarKind::kJsonSchema,
       R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})"},
      {GrammarKind::kJsonSchema, R"({"type": "integer", "minimum": 3, "maximum": 2})"},
      {GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "("})"},
      {GrammarKind::kJsonSchema, R"({"oneOf": [{"type": "string"}, {"type": "string"}]})"},
      {GrammarKind::kStructuralTag, "{}"},
      {GrammarKind::kStructuralTag, R"({"type": "structural_tag", "format": {"type": "lark"}})"},
      {GrammarKind::kStructuralTag,
       R"({"type": "structural_tag", "format": {"type": "token", "token": 99999}})"},
  };
  for (const auto& [kind, text] : cases) {
    const auto compiled = compiler_->compile({.kind = kind, .text = text, .field = "the_field"});
    ASSERT_FALSE(compiled.ok()) << text.substr(0, 100);
    const std::string& message = compiled.status().message;
    EXPECT_EQ(compiled.status().code, StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(message.rfind("the_field: ", 0), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(message.find("Check failed"), std::string::npos) << message;
    EXPECT_LT(message.size(), 600U);
  }
  const auto nested = compiler_->compile(
      {.kind = GrammarKind::kJsonSchema,
       .text = R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "b"},
                   "c": {"type": "array", "items": {"type": "string", "pattern": "("}}}})",
       .field = "f"});
  ASSERT_FALSE(nested.ok());
  EXPECT_EQ(nested.status().message.rfind("f: \"pattern\" at /properties/c/items: ", 0), 0U)
      << nested.status().message;
  EXPECT_EQ(compiler_->cache_stats().entries, 0) << "failures are not kept";
}

TEST_F(GrammarTest, WorkThatTakesTooLongIsAborted) {
  const auto hasty = GrammarCompiler::create(*tokenizer_, {.max_compile_seconds = 0.05}).value();
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i)
    rules += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"a\" | \"b\" r" +
             std::to_string(i + 1) + "\n";
  rules += "r2000 ::= \"x\"\n";
  const auto compiled = hasty->compile({.kind = GrammarKind::kEbnf, .text = rules});
  ASSERT_FALSE(compiled.ok());
  EXPECT_NE(compiled.status().message.find("too long"), std::string::npos) << compiled.status().message;
  // The thread's limit ends with it, and the compiler still works.
  EXPECT_TRUE(compiler_->compile({.kind = GrammarKind::kJsonObject}).ok());
  EXPECT_TRUE(hasty->compile({.kind = GrammarKind::kRegex, .text = "a"}).ok());
}

TEST_F(GrammarTest, EqualSpecsAreCompiledOnceAndTheCacheIsBounded) {
  std::vector<Compiled> seen(8);
  std::vector<std::thread> threads;
  for (Compiled& one : seen)
    threads.emplace_back(
        [&] { one = compiler_->compile({.kind = GrammarKind::kJsonSchema, .text = kSchemas[0]}).value(); });
  for (std::thread& thread : threads) thread.join();
  for (const Compiled& one : seen) EXPECT_EQ(one, seen[0]);
  EXPECT_EQ(compiler_->cache_stats().num_misses, 1);
  EXPECT_EQ(compiler_->cache_stats().num_hits, 7);
  EXPECT_EQ(compiler_->cache_stats().entries, 1);

  const int64_t bound = 3 * seen[0]->size_bytes();
  const auto small =
      GrammarCompiler::create(*tokenizer_, {.vocab_size = kPaddedVocab, .cache_bytes = bound}).value();
  for (int i = 0; i < 20; ++i) {
    const std::string schema =
        R"({"type": "object", "properties": {"p)" + std::to_string(i) + R"(": {"type": "string"}}})";
    ASSERT_TRUE(small->compile({.kind = GrammarKind::kJsonSchema, .text = schema}).ok());
    EXPECT_LE(small->cache_stats().size_bytes, bound);
  }
  EXPECT_GT(small->cache_stats().entries, 0);
  EXPECT_LT(small->cache_stats().entries, 20);
  small->clear_cache();
  EXPECT_EQ(small->cache_stats().entries, 0);
  EXPECT_EQ(small->cache_stats().size_bytes, 0);
}

// A grammar with a limited string needs a separate vocabulary; grammars that need the same one share it.
TEST_F(GrammarTest, TheCacheCountsVocabulariesOnce) {
  const auto compiler = GrammarCompiler::create(*tokenizer_, {.vocab_size = kPaddedVocab}).value();
  const auto size_with = [&](const char* schema) {
    EXPECT_TRUE(compiler->compile({.kind = GrammarKind::kJsonSchema, .text = schema}).ok());
    return compiler->cache_stats().size_bytes;
  };
  const int64_t plain = size_with(R"({"type": "string"})");
  const int64_t first = size_with(R"({"type": "string", "maxLength": 9})") - plain;
  const int64_t second = size_with(R"({"type": "string", "maxLength": 8})") - plain - first;
  const int64_t vocabulary = tokenizer_->vocab_size() * 64;  // at least two texts of each token
  EXPECT_GT(first, vocabulary);
  EXPECT_LT(second, vocabulary);
  compiler->clear_cache();
  EXPECT_EQ(compiler->cache_stats().size_bytes, 0);
}

TEST_F(GrammarTest, MatchersOfOneGrammarWorkInManyThreads) {
  const Compiled grammar = compile(GrammarKind::kJsonSchema, kSchemas[0]);
  const auto run = [&](uint32_t seed) {
    std::mt19937 random(seed);
    GrammarMatcher matcher(grammar);
    return walk(matcher, *tokenizer_, random, eos()).ids;
  };
  std::vector<std::vector<int32_t>> expected(6);
  std::vector<std::vector<int32_t>> got(6);
  for (uint32_t i = 0; i < 6; ++i) expected[i] = run(i);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 6; ++i) threads.emplace_back([&, i] { got[i] = run(i); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, expected);
}

TEST_F(GrammarTest, TwoTokenizersLiveInOneProcess) {
  const auto other = load_test_tokenizer("v3");
  const auto end = other->eos_id().value_or(0);
  const auto theirs = GrammarCompiler::create(*other, {.end_ids = {end}}).value();
  const Compiled grammar = theirs->compile({.kind = GrammarKind::kRegex, .text = "hi"}).value();
  const Compiled ours = compile(GrammarKind::kRegex, "hi");
  compiler_.reset();  // grammars outlive their compilers
  GrammarMatcher matcher(grammar);
  const auto first = allowed_of(matcher, other->vocab_size());
  EXPECT_FALSE(first.empty());
  for (const int32_t t : first) EXPECT_EQ(std::string_view("hi").rfind(other->token_bytes(t), 0), 0U);
  GrammarMatcher our_matcher(ours);
  for (const int32_t t : allowed_of(our_matcher))
    EXPECT_EQ(std::string_view("hi").rfind(tokenizer_->token_bytes(t), 0), 0U);
}

TEST_F(GrammarTest, CompilersRefuseWhatDoesNotFitTheTokenizer) {
  EXPECT_FALSE(GrammarCompiler::create(*tokenizer_, {.vocab_size = 10}).ok());
  EXPECT_FALSE(GrammarCompiler::create(*tokenizer_, {.end_ids = {-1}}).ok());
  EXPECT_FALSE(GrammarCompiler::create(*tokenizer_, {.end_ids = {1 << 20}}).ok());
}

}  // namespace
}  // namespace hadal
