// Tests the tool call parser as streams use it, and the choice of its format.
#include <gtest/gtest.h>

#include "tests/text/tool_call_texts.h"
#include "text/chat/reasoning_parser.h"
#include "text/chat/tool_call_parser.h"

namespace hadal {

namespace {

using Format = ToolCallFormat;

TEST(ToolCallParser, StreamsWhatCannotBeginACall) {
  ToolCallParser parser(
      {.format = Format::kDeepSeekV31, .tool_names = {"f"}, .make_id = [] { return "id"; }});
  EXPECT_EQ(parser.append("Hello").content, "Hello");
  EXPECT_EQ(parser.append(" wor").content, " wor");
  EXPECT_EQ(parser.append("ld \n").content, "ld");
  EXPECT_EQ(parser.append("<").content, "");
  EXPECT_EQ(parser.append("b> <｜tool▁call").content, " \n<b>");
  EXPECT_EQ(parser.append("s▁begin｜>").content, "");
  const std::string nameless = v31("", "{}");
  EXPECT_EQ(parser.append(nameless).content, fmt::format(" {}{}", marks::kCallsBegin, nameless));
}

// Returns what a piece says about calls, as "index id name arguments" for each delta.
std::vector<std::string> deltas_of(const ToolCallParser::Piece& piece) {
  std::vector<std::string> out;
  for (const ToolCallDelta& delta : piece.calls)
    out.push_back(fmt::format("{} {} {} {}", delta.index, delta.id, delta.name, delta.arguments));
  return out;
}

TEST(ToolCallParser, ReturnsTheNameAndTheArgumentsAsSoonAsTheyAreMade) {
  using Deltas = std::vector<std::string>;
  for (const Format format : {Format::kDeepSeekV3, Format::kDeepSeekV31}) {
    ToolCallParser parser({.format = format, .tool_names = {"f"}, .make_id = [] { return "id"; }});
    const std::string call = format == Format::kDeepSeekV3 ? v3("f", "{}") : v31("f", "{}");
    const size_t object = call.find('{');
    EXPECT_EQ(deltas_of(parser.append(marks::kCallsBegin + call.substr(0, object))), Deltas({"0 id f "}));
    EXPECT_EQ(deltas_of(parser.append("{\"a")), Deltas({"0   {\"a"}));
    EXPECT_EQ(deltas_of(parser.append("\": \"x")), Deltas({"0   \": \"x"}));
    EXPECT_EQ(deltas_of(parser.append("<")), Deltas({"0   <"})) << "in a string it begins no marker";
    EXPECT_EQ(deltas_of(parser.append("\"}" + call.substr(object + 2))), Deltas({"0   \"}"}));
    // A call in one piece is one delta.
    const ToolCallParser::Piece second = parser.append(call + " and");
    EXPECT_EQ(deltas_of(second), Deltas({"1 id f {}"}));
    EXPECT_EQ(second.content, "and");
    EXPECT_TRUE(parser.calls_are_whole());
  }
}

TEST(ToolCallParser, EndsACallThatBreaksWithWhatWasSent) {
  ToolCallParser parser(
      {.format = Format::kDeepSeekV31, .tool_names = {"f"}, .make_id = [] { return "id"; }});
  parser.append(v31("f", "{").substr(0, v31("f", "{").find('{')));
  const ToolCallParser::Piece broken = parser.append("{\"a\": oops");
  EXPECT_EQ(deltas_of(broken), std::vector<std::string>({"0   {\"a\": "}));
  EXPECT_EQ(broken.content, "oops");
  EXPECT_FALSE(parser.calls_are_whole());
  EXPECT_EQ(parser.append(" more").content, " more");
}

TEST(ToolCallParser, WithoutAFormatEverythingIsContent) {
  ToolCallParser parser({.tool_names = {"f"}});
  const std::string text = " <" + block(v3("f", "{}")) + "\n";
  const auto piece = parser.append(text);
  EXPECT_EQ(piece.content, text);
  EXPECT_TRUE(piece.calls.empty());
  EXPECT_EQ(parser.finish().content, "");
}

// Reasoning is removed first, so calls inside it do not count.
TEST(ToolCallParser, ReadsTheReasoningParsersContent) {
  const std::string call = block(v31("f", "{}"));
  const std::string text = "I could " + call + "</think>\n\nYes.\n" + call;
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      ReasoningParser reasoning({.format = ReasoningFormat::kDeepSeekV3, .starts_in_reasoning = true});
      ToolCallParser tools(
          {.format = Format::kDeepSeekV31, .tool_names = {"f"}, .make_id = [] { return ""; }});
      std::string thought, content;
      const auto take = [&](const ReasoningParser::Piece& piece) {
        thought += piece.reasoning;
        const auto rest = tools.append(piece.content);
        content += rest.content;
      };
      take(reasoning.append(text.substr(0, first)));
      take(reasoning.append(text.substr(first, second - first)));
      take(reasoning.append(text.substr(second)));
      take(reasoning.finish());
      content += tools.finish().content;
      ASSERT_EQ(thought, "I could " + call);
      ASSERT_EQ(content, "\n\nYes.");
      ASSERT_EQ(tools.num_calls(), 1);
    }
  }
}

TEST(ToolCallFormat, IsChosenByNameOrByTheChatFormat) {
  EXPECT_EQ(*resolve_tool_call_format("deepseekv3", ChatFormat::kV31), Format::kDeepSeekV3);
  EXPECT_EQ(*resolve_tool_call_format("deepseekv31", ChatFormat::kV2), Format::kDeepSeekV31);
  EXPECT_EQ(*resolve_tool_call_format("auto", ChatFormat::kV2), Format::kNone);
  EXPECT_EQ(*resolve_tool_call_format("auto", ChatFormat::kV25), Format::kDeepSeekV3);
  EXPECT_EQ(*resolve_tool_call_format("auto", ChatFormat::kR1), Format::kDeepSeekV3);
  EXPECT_EQ(*resolve_tool_call_format("auto", ChatFormat::kV31), Format::kDeepSeekV31);
  EXPECT_EQ(*resolve_tool_call_format("auto", ChatFormat::kV32), Format::kDeepSeekV32);
  EXPECT_EQ(*resolve_tool_call_format("deepseekv32", ChatFormat::kV2), Format::kDeepSeekV32);
  EXPECT_STREQ(to_string(Format::kDeepSeekV32), "deepseekv32");
  for (const std::string name : {"", "none", "qwen25", "DeepSeekV3"}) {
    const auto result = resolve_tool_call_format(name, ChatFormat::kR1);
    ASSERT_FALSE(result.ok()) << name;
    EXPECT_EQ(result.status().code, StatusCode::kInvalidArgument);
    EXPECT_EQ(result.status().message, "unknown tool call parser \"" + name +
                                           "\"; allowed are auto, deepseekv3, deepseekv31, deepseekv32");
  }
}

TEST(ToolCallId, IsCallAnd24HexadecimalDigits) {
  const std::string id = make_tool_call_id();
  ASSERT_EQ(id.size(), 29U);
  EXPECT_TRUE(id.starts_with("call_"));
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 5), std::string::npos);
  EXPECT_NE(id, make_tool_call_id());
}

}  // namespace
}  // namespace hadal
