// Tests structural tags, the tokens of markers, and the grammars of tool calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/text/grammar_walk.h"
#include "tests/text/test_data.h"
#include "text/chat/chat_template.h"
#include "text/chat/tool_call_parser.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_tools.h"

namespace hadal {
namespace {

TEST_F(GrammarTest, AGrammarWithAMarkersTextAllowsItsToken) {
  const CompiledRef ebnf = compile(GrammarKind::kEbnf, "root ::= \"<｜tool▁sep｜>\" [a-z]");
  GrammarMatcher matcher(ebnf);
  EXPECT_TRUE(matcher.accept_token(id("<｜tool▁sep｜>")));
  EXPECT_FALSE(matcher.accept_token(id("<｜tool▁call▁end｜>")));
  EXPECT_TRUE(matcher.accept_token(id("a")));
  EXPECT_TRUE(matcher.is_complete());

  // If the token is named, only the token itself is allowed.
  const CompiledRef tag =
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
  const CompiledRef old_form = compile(
      GrammarKind::kStructuralTag,
      R"({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f>"]})");
  const auto takes = [&](const CompiledRef& grammar, std::string_view text) {
    GrammarMatcher matcher(grammar);
    for (const int32_t t : tokenizer_->encode(text, false))
      if (!matcher.accept_token(t)) return false;
    return matcher.is_complete();
  };
  EXPECT_TRUE(takes(old_form, "some text <f>12</f> more"));
  EXPECT_FALSE(takes(old_form, "some text <f>x</f> more"));
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
      const CompiledRef grammar = compile(spec->kind, spec->text);
      for (int i = 0; i < 5; ++i) {
        GrammarMatcher matcher(grammar);
        const Walk answer = walk(matcher, *tokenizer_, random, eos());
        ASSERT_FALSE(answer.ids.empty());
        EXPECT_EQ(answer.ids.front(), id("<｜tool▁calls▁begin｜>"));
        if (answer.is_whole) {
          EXPECT_EQ(answer.ids.back(), id("<｜tool▁calls▁end｜>"));
        }
      }
      // The text that render_chat makes for two calls matches the grammar; calls of other functions do not.
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
  // A function without parameters has no arguments.
  for (const char* none : {R"([{"type":"function","function":{"name":"stop"}}])",
                           R"([{"type":"function","function":{"name":"stop","parameters":{}}}])"}) {
    const auto spec = tool_choice_grammar(ChatFormat::kV31, none, "", false);
    ASSERT_TRUE(spec.ok()) << spec.status().message;
    const CompiledRef grammar = compile(spec->kind, spec->text);
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

// Free text stays free, and calls of strict functions fit their schemas.
TEST_F(GrammarTest, CallsOfStrictFunctionsFitTheirSchemasAndTextStaysFree) {
  const std::string tools = R"([
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object",
      "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "say", "parameters": {"not": {}}}}])";
  const std::vector<std::string> strict{"add"};
  const auto block = [](ChatFormat format, const std::string& name, const std::string& arguments, int calls) {
    ChatMessage message{.role = "assistant", .content = "Let me see: <f> {"};
    for (int i = 0; i < calls; ++i) message.tool_calls.push_back({.name = name, .arguments = arguments});
    const std::vector<ChatMessage> messages{{.role = "user", .content = "q"}, message};
    std::string text = render_chat(format, messages, {.add_generation_prompt = false}).value();
    text.erase(0, text.find("Let me see"));
    return text.substr(0, text.find("<｜end▁of▁sentence｜>"));
  };
  for (const ChatFormat format : {ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31, ChatFormat::kV32}) {
    SCOPED_TRACE(to_string(format));
    for (const bool parallel : {false, true}) {
      const auto spec = strict_calls_grammar(format, tools, strict, parallel);
      ASSERT_TRUE(spec.ok()) << spec.status().message;
      const CompiledRef grammar = compile(spec->kind, spec->text);
      const auto takes = [&](const std::string& text) {
        GrammarMatcher matcher(grammar);
        for (const int32_t t : tokenizer_->encode(text, false))
          if (!matcher.accept_token(t)) return false;
        return matcher.is_complete();
      };
      EXPECT_TRUE(takes("Nothing but text, with ```json\n{\"n\": \"x\"}\n```."));
      EXPECT_TRUE(takes(""));
      EXPECT_TRUE(takes(block(format, "add", R"({"n": 3})", 1)));
      EXPECT_EQ(takes(block(format, "add", R"({"n": 3})", 2)), parallel);
      EXPECT_TRUE(takes(block(format, "say", R"({"anything": [1, "two"]})", 1)));
      for (const char* wrong : {R"({"n": "3"})", R"({"m": 3})", "{}"})
        EXPECT_FALSE(takes(block(format, "add", wrong, 1))) << wrong;
      EXPECT_FALSE(takes(block(format, "sub", R"({"n": 3})", 1)));
      EXPECT_FALSE(takes(block(format, "add", R"({"n": 3})", 1) + " and more"));
    }
  }
  EXPECT_EQ(strict_calls_grammar(ChatFormat::kV2, tools, strict, true).status().code,
            StatusCode::kUnsupported);
  const std::vector<std::string> both{"add", "say"};
  EXPECT_NE(strict_calls_grammar(ChatFormat::kV31, tools, both, true)
                .status()
                .message.find("tools[1].function.parameters"),
            std::string::npos);
}

// The parser of tool calls reads what the grammar of V3.2 allows, and the arguments fit the schema.
TEST_F(GrammarTest, ToolChoiceForcesDsmlCallsThatTheParserReads) {
  const std::string tools = R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["c", 1, null]},
                     "code": {"type": "string", "pattern": "[a-c]\"[0-9]{2}"},
                     "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
      "required": ["city", "code"]}}},
    {"type": "function", "function": {"name": "stop"}}])";
  std::mt19937 random(32);
  size_t num_whole = 0;
  for (const std::string name : {"", "get_weather", "stop"}) {
    for (const bool parallel : {false, true}) {
      const auto spec = tool_choice_grammar(ChatFormat::kV32, tools, name, parallel);
      ASSERT_TRUE(spec.ok()) << spec.status().message;
      const CompiledRef grammar = compile(spec->kind, spec->text);
      for (int i = 0; i < 6; ++i) {
        GrammarMatcher matcher(grammar);
        const Walk answer = walk(matcher, *tokenizer_, random, eos());
        EXPECT_TRUE(answer.text.starts_with("\n\n<｜DSML｜function_calls>\n"));
        if (!answer.is_whole) continue;
        ++num_whole;
        ToolCallParser parser(
            {.format = ToolCallFormat::kDeepSeekV32, .tool_names = {"get_weather", "stop"}});
        const ToolCallParser::Piece piece = parser.append(answer.text);
        EXPECT_EQ(piece.content + parser.finish().content, "") << answer.text;
        ASSERT_TRUE(parallel ? !piece.calls.empty() : piece.calls.size() == 1) << answer.text;
        for (const ToolCallDelta& call : piece.calls) {
          EXPECT_TRUE(name.empty() || call.name == name);
          const auto arguments = nlohmann::json::parse(call.arguments);
          if (call.name == "stop") {
            EXPECT_TRUE(arguments.empty()) << answer.text;
            continue;
          }
          EXPECT_TRUE(arguments.at("city").is_string());
          const std::string code = arguments.at("code");
          EXPECT_TRUE(code.size() == 4 && code[0] >= 'a' && code[0] <= 'c' && code[1] == '"') << code;
          if (arguments.contains("unit")) {
            EXPECT_TRUE(arguments["unit"] == "c" || arguments["unit"] == 1 || arguments["unit"].is_null());
          }
          if (arguments.contains("days")) {
            EXPECT_TRUE(arguments["days"].is_array() && arguments["days"].size() <= 2);
          }
        }
      }
    }
  }
  EXPECT_GT(num_whole, 15U);
}

TEST_F(GrammarTest, ToolChoiceAllowsTheDsmlCallsThatPromptsContain) {
  const std::string tools =
      R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "number"}, "list": {"type": "array"}},
    "required": ["text"], "additionalProperties": {"type": "boolean"}}}}])";
  ChatMessage message{.role = "assistant", .content = "x"};
  message.tool_calls = {
      {.name = "add", .arguments = R"({"text": "a\n<b> \"q\"", "n": -2.5, "list": [1, {"a": 2}]})"},
      {.name = "add", .arguments = R"({"text": "", "ok": true})"}};
  const std::vector<ChatMessage> messages{{.role = "user", .content = "q"}, message};
  std::string text = render_chat(ChatFormat::kV32, messages).value();
  text.erase(0, text.find("</think>x") + std::string_view("</think>x").size());
  text.erase(text.find("<｜end▁of▁sentence｜>"));
  const std::string tag = "｜DSML｜";

  // In published vocabularies the tag may be a token of its own.
  nlohmann::json file = tiny_tokenizer_json();
  file["added_tokens"] = {{{"id", 300}, {"content", "<｜end▁of▁sentence｜>"}, {"special", true}},
                          {{"id", 301}, {"content", tag}, {"special", true}}};
  const auto own = Tokenizer::from_json(file.dump(), "").value();
  const auto own_compiler = GrammarCompiler::create(*own, {.end_ids = {300}}).value();
  ASSERT_EQ(own->token_to_id(tag), 301);
  const auto spec = tool_choice_grammar(ChatFormat::kV32, tools, "", true).value();
  for (const bool has_token : {false, true}) {
    const Tokenizer& tokenizer = has_token ? *own : *tokenizer_;
    GrammarMatcher matcher((has_token ? *own_compiler : *compiler_).compile(spec).value());
    const std::vector<int32_t> ids = tokenizer.encode(text, false);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), has_token ? 301 : -1), has_token ? 16 : 0);
    for (const int32_t t : ids)
      ASSERT_TRUE(matcher.accept_token(t)) << tokenizer.id_to_token(t) << "\n" << text;
    EXPECT_TRUE(matcher.is_complete());
  }
}

TEST_F(GrammarTest, SchemasOfStructuralTagsHaveAStyle) {
  const auto tag = [](const std::string& style) {
    return R"({"type": "structural_tag", "format": {"type": "json_schema", "style": ")" + style +
           R"(", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})";
  };
  const auto takes = [&](const std::string& style, const std::string& text) {
    GrammarMatcher matcher(compile(GrammarKind::kStructuralTag, tag(style)));
    for (const int32_t t : tokenizer_->encode(text, false))
      if (!matcher.accept_token(t)) return false;
    return matcher.is_complete();
  };
  const std::string dsml = "<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>";
  EXPECT_TRUE(takes("json", R"({"a": 1})"));
  EXPECT_FALSE(takes("json", dsml));
  EXPECT_TRUE(takes("deepseek_xml", dsml));
  EXPECT_FALSE(takes("deepseek_xml", R"({"a": 1})"));
  EXPECT_NE(
      error_of(GrammarKind::kStructuralTag, tag("glm_xml")).find("must be \"json\" or \"deepseek_xml\""),
      std::string::npos);
}

}  // namespace
}  // namespace hadal
