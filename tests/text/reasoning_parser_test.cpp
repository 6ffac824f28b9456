#include "text/chat/reasoning_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace hadal {
namespace {

struct ParsedReasoning {
  std::string reasoning;
  std::string content;
  bool in_reasoning = false;
  size_t num_reasoning_pieces = 0;
  bool operator==(const ParsedReasoning&) const = default;
};

void PrintTo(const ParsedReasoning& parsed, std::ostream* out) {
  *out << "reasoning \"" << parsed.reasoning << "\" content \"" << parsed.content << "\" in_reasoning "
       << parsed.in_reasoning << " pieces " << parsed.num_reasoning_pieces;
}

// Parses `text` in pieces that end at `cuts`, which ascend. Without stream_reasoning pieces of reasoning are
// counted.
ParsedReasoning parse_reasoning(const ReasoningParser::Options& options, std::string_view text,
                                const std::vector<size_t>& cuts) {
  ReasoningParser parser(options);
  ParsedReasoning out;
  const auto take = [&](const ReasoningParser::Piece& piece) {
    out.reasoning += piece.reasoning;
    out.content += piece.content;
    if (!options.stream_reasoning && !piece.reasoning.empty()) ++out.num_reasoning_pieces;
  };
  size_t at = 0;
  for (const size_t cut : cuts) {
    take(parser.append(text.substr(at, cut - at)));
    at = cut;
  }
  take(parser.append(text.substr(at)));
  out.in_reasoning = parser.in_reasoning();
  take(parser.finish());
  return out;
}

struct ReasoningCase {
  ReasoningFormat format;
  bool starts_in_reasoning;
  std::string text;
  std::string reasoning;
  std::string content;
  bool ends_in_reasoning;
};

const std::vector<ReasoningCase>& cases() {
  static const std::vector<ReasoningCase> all = {
      {ReasoningFormat::kNone, false, "<think>a</think>b", "", "<think>a</think>b", false},
      {ReasoningFormat::kNone, true, "a</think>b", "", "a</think>b", false},
      {ReasoningFormat::kNone, false, "", "", "", false},
      {ReasoningFormat::kDeepSeekR1, true, "", "", "", true},
      {ReasoningFormat::kDeepSeekR1, true, "so</think>42", "so", "42", false},
      {ReasoningFormat::kDeepSeekR1, true, "<think>so</think>42", "so", "42", false},
      {ReasoningFormat::kDeepSeekR1, true, "<think>", "", "", true},
      {ReasoningFormat::kDeepSeekR1, true, "<think><think>so</think>42", "so", "42", false},
      {ReasoningFormat::kDeepSeekR1, true, "</think>42", "", "42", false},
      {ReasoningFormat::kDeepSeekR1, true, "<think></think>", "", "", false},
      {ReasoningFormat::kDeepSeekR1, true, "never done", "never done", "", true},
      {ReasoningFormat::kDeepSeekR1, true, "hm </thi", "hm </thi", "", true},
      {ReasoningFormat::kDeepSeekR1, true, "<thi", "<thi", "", true},
      {ReasoningFormat::kDeepSeekR1, true, "so </thin</think>42 </think>", "so </thin", "42 </think>", false},
      {ReasoningFormat::kDeepSeekR1, true, "a<think>b</think>c<think>d</think>", "a<think>b",
       "c<think>d</think>", false},
      {ReasoningFormat::kDeepSeekR1, true, "<</<</think</think>>", "<</<</think", ">", false},
      {ReasoningFormat::kDeepSeekR1, true, "\nOkay.\n</think>\n\n42\n", "\nOkay.\n", "\n\n42\n", false},
      {ReasoningFormat::kDeepSeekR1, true, " <think>x</think>y", " <think>x", "y", false},
      {ReasoningFormat::kDeepSeekR1, true, "<｜tool▁calls▁begin｜>é</think>日本 <｜tool▁calls▁begin｜>",
       "<｜tool▁calls▁begin｜>é", "日本 <｜tool▁calls▁begin｜>", false},
      {ReasoningFormat::kDeepSeekR1, false, "42 </think> is", "", "42 </think> is", false},
      {ReasoningFormat::kDeepSeekV3, true, "so</think>42", "so", "42", false},
      {ReasoningFormat::kDeepSeekV3, false, "so</think>42", "", "so</think>42", false},
      {ReasoningFormat::kDeepSeekV3, false, "<think>so</think>42", "so", "42", false},
      {ReasoningFormat::kDeepSeekV3, false, "<think>so", "so", "", true},
      {ReasoningFormat::kDeepSeekV3, false, "<thin", "", "<thin", false},
      {ReasoningFormat::kDeepSeekV3, false, "a <think>so</think>", "", "a <think>so</think>", false},
      {ReasoningFormat::kDeepSeekV3, false, "🌊 🐙", "", "🌊 🐙", false},
  };
  return all;
}

TEST(ReasoningParser, GivesTheSameHoweverTheTextIsCut) {
  size_t num_cuts = 0;
  for (const ReasoningCase& c : cases()) {
    for (const bool stream : {true, false}) {
      SCOPED_TRACE(c.text + (stream ? ", streamed" : ", reasoning in one piece"));
      const ReasoningParser::Options options{
          .format = c.format, .starts_in_reasoning = c.starts_in_reasoning, .stream_reasoning = stream};
      const ParsedReasoning expected{.reasoning = c.reasoning,
                                     .content = c.content,
                                     .in_reasoning = c.ends_in_reasoning,
                                     .num_reasoning_pieces = stream || c.reasoning.empty() ? 0U : 1U};
      ASSERT_EQ(parse_reasoning(options, c.text, {}), expected);
      std::vector<size_t> bytes(c.text.size());
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i;
      ASSERT_EQ(parse_reasoning(options, c.text, bytes), expected) << "byte by byte";
      for (size_t first = 0; first <= c.text.size(); ++first) {
        for (size_t second = first; second <= c.text.size(); ++second, ++num_cuts)
          ASSERT_EQ(parse_reasoning(options, c.text, {first, second}), expected) << first << ", " << second;
      }
    }
  }
  RecordProperty("cuts", static_cast<int>(num_cuts));
}

TEST(ReasoningParser, SkipsAnyNumberOfTagsAtTheStart) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "<think>";
  ReasoningParser parser({.format = ReasoningFormat::kDeepSeekR1});
  const auto piece = parser.append(text + "a</think>b");
  EXPECT_EQ(piece.reasoning, "a");
  EXPECT_EQ(piece.content, "b");
}

TEST(ReasoningParser, GivesTheSameForRandomMixturesOfTags) {
  const uint32_t seed = 11;
  std::mt19937 rng(seed);
  const std::string parts[] = {"<think>", "</think>", "<", "</", "think>", "a", "\n", "é", "</thi", "<th"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint32_t n = rng() % 12; n > 0; --n) text += parts[rng() % std::size(parts)];
    const ReasoningParser::Options options{
        .format = rng() % 2 == 0 ? ReasoningFormat::kDeepSeekR1 : ReasoningFormat::kDeepSeekV3,
        .starts_in_reasoning = rng() % 2 == 0,
        .stream_reasoning = rng() % 2 == 0};
    std::vector<size_t> cuts;
    for (uint32_t n = rng() % 8; n > 0; --n) cuts.push_back(rng() % (text.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    const ParsedReasoning whole = parse_reasoning(options, text, {});
    ASSERT_EQ(parse_reasoning(options, text, cuts), whole)
        << "seed " << seed << " round " << round << ": " << text;

    // Nothing is lost: the parts and the removed tags between them are the text.
    std::string rest = text;
    while (rest.starts_with("<think>")) rest.erase(0, 7);
    const bool reasoned = options.starts_in_reasoning || rest.size() < text.size();
    const bool ended = reasoned && rest.find("</think>") != std::string::npos;
    ASSERT_EQ(whole.reasoning + (ended ? "</think>" : "") + whole.content, rest) << text;
  }
}

TEST(ReasoningParser, HoldsBackOnlyAPossibleBeginningOfATag) {
  ReasoningParser parser({.format = ReasoningFormat::kDeepSeekR1, .starts_in_reasoning = true});
  EXPECT_EQ(parser.append("<t").reasoning, "");
  EXPECT_EQ(parser.append("able> a</").reasoning, "<table> a");
  EXPECT_EQ(parser.append("b><").reasoning, "</b>");
  const auto last = parser.append("/think> x <");
  EXPECT_EQ(last.reasoning, "");
  EXPECT_EQ(last.content, " x <");
  EXPECT_EQ(parser.append("/think").content, "/think");
}

TEST(ReasoningParser, KeepsReasoningTogetherWhenAsked) {
  ReasoningParser parser(
      {.format = ReasoningFormat::kDeepSeekR1, .starts_in_reasoning = true, .stream_reasoning = false});
  EXPECT_EQ(parser.append("one ").reasoning, "");
  EXPECT_EQ(parser.append("two</th").reasoning, "");
  const auto piece = parser.append("ink>x");
  EXPECT_EQ(piece.reasoning, "one two");
  EXPECT_EQ(piece.content, "x");
  EXPECT_EQ(parser.append("y").content, "y");
  EXPECT_EQ(parser.finish().reasoning, "");

  ReasoningParser unfinished(
      {.format = ReasoningFormat::kDeepSeekR1, .starts_in_reasoning = true, .stream_reasoning = false});
  EXPECT_EQ(unfinished.append("cut off").reasoning, "");
  EXPECT_EQ(unfinished.finish().reasoning, "cut off");
}

TEST(ReasoningFormat, IsChosenByNameOrByTheChatFormat) {
  EXPECT_EQ(*resolve_reasoning_format("deepseek-r1", ChatFormat::kV2), ReasoningFormat::kDeepSeekR1);
  EXPECT_EQ(*resolve_reasoning_format("deepseek-v3", ChatFormat::kR1), ReasoningFormat::kDeepSeekV3);
  EXPECT_EQ(*resolve_reasoning_format("auto", ChatFormat::kV2), ReasoningFormat::kNone);
  EXPECT_EQ(*resolve_reasoning_format("auto", ChatFormat::kV25), ReasoningFormat::kDeepSeekV3);
  EXPECT_EQ(*resolve_reasoning_format("auto", ChatFormat::kR1), ReasoningFormat::kDeepSeekR1);
  EXPECT_EQ(*resolve_reasoning_format("auto", ChatFormat::kV31), ReasoningFormat::kDeepSeekV3);
  EXPECT_EQ(*resolve_reasoning_format("auto", ChatFormat::kV32), ReasoningFormat::kDeepSeekV3);
  for (const std::string name : {"", "none", "qwen3", "deepseek-r1 "}) {
    const auto result = resolve_reasoning_format(name, ChatFormat::kR1);
    ASSERT_FALSE(result.ok()) << name;
    EXPECT_EQ(result.status().code, StatusCode::kInvalidArgument);
    EXPECT_EQ(result.status().message,
              "unknown reasoning parser \"" + name + "\"; allowed are auto, deepseek-r1, deepseek-v3");
  }
  for (const std::string name : {"deepseek-r1", "deepseek-v3"})
    EXPECT_EQ(to_string(*resolve_reasoning_format(name, ChatFormat::kV2)), name);
}

// The prompts are as render_chat makes them, for every format and state of the assistant's turn.
TEST(ReasoningStart, IsFoundFromTheRenderedPrompt) {
  const auto start = [](ChatFormat chat, ReasoningFormat format, const std::vector<ChatMessage>& messages,
                        const ChatOptions& options) {
    return starts_in_reasoning(format, *render_chat(chat, messages, options));
  };
  const std::vector<ChatMessage> ask = {{.role = "user", .content = "<think>?</think>"}};
  EXPECT_TRUE(start(ChatFormat::kR1, ReasoningFormat::kDeepSeekR1, ask, {}));
  EXPECT_TRUE(start(ChatFormat::kR1, ReasoningFormat::kDeepSeekV3, ask, {}));
  EXPECT_FALSE(start(ChatFormat::kR1, ReasoningFormat::kNone, ask, {}));
  EXPECT_FALSE(start(ChatFormat::kV31, ReasoningFormat::kDeepSeekV3, ask, {}));
  EXPECT_TRUE(start(ChatFormat::kV31, ReasoningFormat::kDeepSeekV3, ask, {.thinking = true}));
  EXPECT_TRUE(start(ChatFormat::kV32, ReasoningFormat::kDeepSeekV3, ask, {.thinking = true}));
  EXPECT_FALSE(start(ChatFormat::kV32, ReasoningFormat::kDeepSeekV3, ask, {}));
  EXPECT_FALSE(start(ChatFormat::kV31, ReasoningFormat::kDeepSeekR1, ask, {}))
      << "the prompt closed reasoning";
  EXPECT_FALSE(start(ChatFormat::kV25, ReasoningFormat::kDeepSeekV3, ask, {}));
  EXPECT_TRUE(start(ChatFormat::kV25, ReasoningFormat::kDeepSeekR1, ask, {}));

  // A continued answer begins where its text ends.
  const ChatOptions open{.continue_final_message = true};
  const auto with = [&](ChatMessage message) {
    message.role = "assistant";
    return std::vector<ChatMessage>{ask[0], message};
  };
  EXPECT_TRUE(start(ChatFormat::kR1, ReasoningFormat::kDeepSeekR1, with({.reasoning_content = "so"}), open));
  EXPECT_FALSE(start(ChatFormat::kR1, ReasoningFormat::kDeepSeekR1,
                     with({.content = "42", .reasoning_content = "so"}), open));
  EXPECT_TRUE(start(ChatFormat::kV31, ReasoningFormat::kDeepSeekV3, with({.reasoning_content = "so"}), open));
  EXPECT_FALSE(start(ChatFormat::kV31, ReasoningFormat::kDeepSeekV3, with({.content = "4"}), open));
  EXPECT_TRUE(start(ChatFormat::kV25, ReasoningFormat::kDeepSeekV3, with({.content = "<think>so"}), open));
  EXPECT_FALSE(
      start(ChatFormat::kV25, ReasoningFormat::kDeepSeekV3, with({.content = "<think>a</think>b"}), open));

  // After a tool's result V3.1 continues in the turn of the call, which is not opened again.
  const std::vector<ChatMessage> tools = {
      ask[0],
      {.role = "assistant", .tool_calls = {{.name = "f", .arguments = "{}"}}},
      {.role = "tool", .content = "<think>"}};
  EXPECT_FALSE(start(ChatFormat::kV31, ReasoningFormat::kDeepSeekV3, tools, {.thinking = true}));
  EXPECT_FALSE(start(ChatFormat::kV25, ReasoningFormat::kDeepSeekV3, tools, {}));
}

}  // namespace
}  // namespace hadal
