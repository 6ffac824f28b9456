// Tests structural tags, the tokens of markers, and the grammars of tool calls.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/text/grammar_walk.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/grammar_tools.h"

namespace hadal {
namespace {

TEST_F(GrammarTest, AGrammarWithAMarkersTextAllowsItsToken) {
  const CompiledRef ebnf = compile(GrammarKind::kEbnf, "root ::= \"<｜tool▁sep｜>\" [a-z]");
  GrammarMatcher matcher(ebnf);
  EXPECT_TRUE(matcher.accept_token(id("<｜tool▁sep｜>")));
  EXPECT_FALSE(matcher.accept_token(id("<｜tool▁call▁end｜>")));
  EXPECT_TRUE(matcher.accept_token(id("a")));
  EXPECT_TRUE(matcher.is_complete());

  // If it is named, only the token itself is allowed.
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

}  // namespace
}  // namespace hadal
