// Tests tool calls in whole texts, in every cut of them, and in random mixtures of markers.
#include "text/chat/tool_call_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/text/tool_call_parse.h"
#include "tests/text/tool_call_texts.h"

namespace hadal {
namespace {

using Format = ToolCallFormat;
using Options = ToolCallParser::Options;
using tool_calls::Call;
using tool_calls::parse;
using tool_calls::Parsed;

struct Case {
  std::string what;
  std::string text;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::vector<std::string> unknown = {};
  bool parallel = true;
  bool forward_unknown = false;
};

// Makes the cases for both formats: `call` writes a well-formed call.
std::vector<Case> common_cases(std::string (*call)(const std::string&, const std::string&), bool fenced) {
  const std::string a = call("get_weather", R"({"city": "東京"})");
  const std::string b = call("f", "{}");
  const std::string head = a.substr(0, a.find('{'));  // everything before the arguments
  const std::string tail = a.substr(a.rfind('}') + 1);
  const auto raw = [&](const std::string& arguments) { return head + arguments + tail; };
  const std::string line = fenced ? "\n" : "";  // between the name, or the object, and what follows
  const std::string tokyo = R"({"city": "東京"})";
  std::vector<Case> cases = {
      {"no call", "Hello, <b>world</b>.\n\n", "Hello, <b>world</b>.\n\n", {}},
      {"nothing", "", "", {}},
      {"white space only", " \n", " \n", {}},
      {"one call", block(a), "", {{"get_weather", tokyo}}},
      {"two calls", block(a + b), "", {{"get_weather", tokyo}, {"f", "{}"}}},
      {"two calls on lines", block(a + "\n" + b), "", {{"get_weather", tokyo}, {"f", "{}"}}},
      {"text before", "  Let me see 🌊.\n\n" + block(a), "  Let me see 🌊.", {{"get_weather", tokyo}}},
      {"white space before", "\n\n" + block(a), "", {{"get_weather", tokyo}}},
      {"text after", block(b) + "\n \nDone. \n", "Done. \n", {{"f", "{}"}}},
      {"text between", block(b + " and \n" + b), "and", {{"f", "{}"}, {"f", "{}"}}},
      {"two blocks", block(a) + "\n" + block(b) + "\n", "", {{"get_weather", tokyo}, {"f", "{}"}}},
      {"no block around", "x " + a + b, "x", {{"get_weather", tokyo}, {"f", "{}"}}},
      {"block left open", marks::kCallsBegin + b, "", {{"f", "{}"}}},
      {"block begun twice",
       std::string("x ") + marks::kCallsBegin + "\n" + marks::kCallsBegin + b,
       std::string("x ") + marks::kCallsBegin,
       {{"f", "{}"}}},
      {"empty block", "x " + block("") + " y", "x " + block("") + " y", {}},
      {"empty block after a call", block(b) + " " + block(" "), block(" "), {{"f", "{}"}}},
      {"end without a beginning",
       std::string("x") + marks::kCallsEnd + marks::kCallEnd,
       std::string("x") + marks::kCallsEnd + marks::kCallEnd,
       {}},
      {"nested, numbers, escapes",
       block(raw(R"({"a": [1, -2.5e3, {"b": null}], "c": "\"\\\u00e9\n", "d": {}})")),
       "",
       {{"get_weather", R"({"a": [1, -2.5e3, {"b": null}], "c": "\"\\\u00e9\n", "d": {}})"}}},
      {"arguments over lines", block(raw("{\n  \"a\" : 1\n}")), "", {{"get_weather", "{\n  \"a\" : 1\n}"}}},
      {"white space around", block(raw(" \n{\"a\": 1} \n")), "", {{"get_weather", "{\"a\": 1}"}}},
      {"backticks in a string",
       block(raw("{\"md\": \"```json\\n{}\\n```\"}")),
       "",
       {{"get_weather", "{\"md\": \"```json\\n{}\\n```\"}"}}},
      {"markers in a string",
       block(raw(R"({"doc": ")" + a.substr(0, a.find('{')).substr(0, 20) + marks::kCallEnd +
                 marks::kCallsEnd + marks::kCallBegin + R"("})")),
       "",
       {{"get_weather", R"({"doc": ")" + a.substr(0, a.find('{')).substr(0, 20) + marks::kCallEnd +
                            marks::kCallsEnd + marks::kCallBegin + R"("})"}}},
      {"same key twice", block(raw(R"({"a":1,"a":2})")), "", {{"get_weather", R"({"a":1,"a":2})"}}},
      {"unknown function", "x\n" + block(call("nope", "{}") + b), "x", {{"f", "{}"}}, {"nope"}},
      {"unknown function only", block(call("nope", "{}")), "", {}, {"nope"}},
      {"unknown function forwarded",
       block(call("nope", "{}") + b),
       "",
       {{"nope", "{}"}, {"f", "{}"}},
       {"nope"},
       true,
       true},
      {"one call asked for", block(a + b + b) + "z", "z", {{"get_weather", tokyo}}, {}, false},
      {"one call asked for, the first unknown",
       block(call("nope", "{}") + b + a),
       "",
       {{"f", "{}"}},
       {"nope"},
       false},
      {"a bad call before a good one",
       "x " + block(raw("{") + b),
       "x" + tail.substr(line.size()),
       {{"get_weather", "{" + line}, {"f", "{}"}}},
      {"a bad call after a good one",
       "x " + block(b + raw("[1]")),
       "x" + line + "[1]" + tail,
       {{"f", "{}"}, {"get_weather", ""}}},
      {"a string that does not end",
       block(raw("{\"a\": \"b") + "\n" + b),
       fenced ? tail : "",
       {{"get_weather", "{\"a\": \"b" + (fenced ? "" : tail)}, {"f", "{}"}}},
      {"a bad call of an unknown function", block(call("nope", "[1]")), line + "[1]" + tail, {}, {"nope"}},
      {"a bad call when one is asked for",
       block(b + raw("{1}")) + "z",
       "1}" + tail + "z",
       {{"f", "{}"}},
       {},
       false},
      {"cut off before a whole call",
       marks::kCallBegin + a + marks::kCallsEnd,
       marks::kCallBegin,
       {{"get_weather", tokyo}}},
  };
  // These texts end the call with the part of its arguments that was sent; the rest of the text is content.
  const struct {
    std::string what, arguments, sent;
  } broken[] = {
      {"empty arguments", "", ""},
      {"arguments of a space", " ", ""},
      {"an array", "[1]", ""},
      {"a string", "\"a\"", ""},
      {"null", "null", ""},
      {"a missing brace", R"({"a": {"b": 1})", R"({"a": {"b": 1})" + line},
      {"a comma too many", R"({"a": 1,})", R"({"a": 1,)"},
      {"single quotes", "{'a': 1}", "{"},
      {"a comment", "{/* a */}", "{"},
      {"NaN", R"({"a": NaN})", R"({"a": )"},
      {"text after the object", "{} x", "{}"},
      {"two objects", "{}{}", "{}"},
      {"a raw line break in a string", "{\"a\": \"\n\"}", "{\"a\": \""},
      {"bytes that are no UTF-8", "{\"a\": \"\xff\"}", "{\"a\": \""},
      {"half a surrogate pair", R"({"a": "\ud800"})", R"({"a": "\ud800)"},
      {"too deep", "{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}",
       "{\"a\":" + std::string(127, '[')},
  };
  for (const auto& [what, arguments, sent] : broken) {
    const std::string text = raw(arguments);
    const std::string rest = (sent.empty() ? line : "") + (arguments + tail).substr(sent.size());
    cases.push_back({what, text, rest, {{"get_weather", sent}}});
    cases.push_back({what, block(text), rest, {{"get_weather", sent}}});
    cases.push_back({what, "x \n" + block(text + "\n") + "\n y", "x" + rest + "y", {{"get_weather", sent}}});
  }
  const size_t object = a.find('{');
  for (size_t size = object - line.size(); size < a.size(); ++size) {
    const size_t end = std::min(size, a.rfind('}') + 1);
    const std::string sent = end > object ? a.substr(object, end - object) : "";
    cases.push_back({"cut off after the name",
                     "x " + a.substr(0, size),
                     size == object ? "x" + line : "x",
                     {{"get_weather", sent}}});
  }
  // These texts stay unchanged, alone and with text around them.
  std::vector<std::pair<std::string, std::string>> bad = {
      {"no name", call("", "{}")},
      {"a name of spaces", call(" \n ", "{}")},
      {"two words for a name", call("get weather", "{}")},
      {"a name without an end", marks::kCallBegin + std::string(1000, 'n')},
      {"a marker in the name", call(std::string("f") + marks::kCallEnd, "{}")},
      {"a part of a marker", "<｜tool▁call"},
      {"half a character of a marker", "<\xef\xbd"},
  };
  for (size_t size = 1; size < object - line.size(); ++size) bad.emplace_back("cut off", a.substr(0, size));
  for (const auto& [what, text] : bad) {
    for (const std::string& around : {text, block(text), "x \n" + block(text + "\n") + "\n y"})
      cases.push_back({what, around, around, {}});
  }
  return cases;
}

std::vector<Case> cases_of(Format format) {
  const bool fenced = format == Format::kDeepSeekV3;
  std::vector<Case> cases = common_cases(fenced ? v3 : v31, fenced);
  const auto foreign = block((fenced ? v31 : v3)("f", "{}"));
  if (fenced)
    cases.push_back({"the other format", foreign, foreign, {}});
  else
    cases.push_back({"the other format", foreign, "f\n```json\n{}\n```" + marks::kCallEnd, {}, {"function"}});
  if (!fenced) {
    cases.push_back({"spaces around the name", block(v31(" f\n", "{}")), "", {{"f", "{}"}}});
    return cases;
  }
  const std::string begin = std::string(marks::kCallBegin) + "function" + marks::kSep;
  cases.push_back(
      {"other white space", begin + " f \n\n```json {} ``` " + marks::kCallEnd, "", {{"f", "{}"}}});
  cases.push_back(
      {"another type",
       marks::kCallBegin + std::string("tool") + marks::kSep + "f\n```json\n{}\n```" + marks::kCallEnd,
       "",
       {{"f", "{}"}}});
  cases.push_back({"a fence without an end",
                   begin + "f\n```json\n{}\n" + marks::kCallEnd,
                   "\n" + marks::kCallEnd,
                   {{"f", "{}"}}});
  for (const std::string& text : std::vector<std::string>{
           begin + "f\n```\n{}\n```" + marks::kCallEnd, begin + "f\n{}" + marks::kCallEnd,
           marks::kCallBegin + std::string("f\n```json\n{}\n```") + marks::kCallEnd})
    cases.push_back({"a bad fence", text, text, {}});
  return cases;
}

Options options_of(Format format, const Case& c) {
  return {.format = format,
          .tool_names = {"get_weather", "f"},
          .parallel = c.parallel,
          .forward_unknown = c.forward_unknown};
}

Parsed expected_of(const Case& c) {
  Parsed out{.content = c.content, .unknown = c.unknown};
  for (const auto& [name, arguments] : c.calls) {
    const int index = static_cast<int>(out.calls.size());
    out.calls.push_back({index, "call_" + std::to_string(index), name, arguments});
  }
  out.is_whole = tool_calls::are_objects(out.calls);
  return out;
}

class ToolCalls : public ::testing::TestWithParam<Format> {};

TEST_P(ToolCalls, AreReadFromTheWholeText) {
  for (const Case& c : cases_of(GetParam()))
    EXPECT_EQ(parse(options_of(GetParam(), c), c.text, {}), expected_of(c)) << c.what << ": " << c.text;
}

// Tries every cut at one byte, byte by byte, and every pair of cuts of texts up to 220 bytes; longer texts
// get random cuts instead.
TEST_P(ToolCalls, AreTheSameHoweverTheTextIsCut) {
  const uint32_t seed = 5;
  std::mt19937 rng(seed);
  size_t num_parses = 0;
  std::vector<Case> cases = cases_of(GetParam());
  // How a string of the arguments goes on, and where it breaks, depends on the text that follows.
  const std::string call = (GetParam() == Format::kDeepSeekV3 ? v3 : v31)("f", R"({"a": "b", "c": [1, {}]})");
  for (size_t size = call.find('{'); size < call.size(); ++size)
    cases.push_back({"cut off", "x \n" + block(call.substr(0, size) + "\n") + "\n y", {}, {}});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what + ": " + c.text);
    const Options options = options_of(GetParam(), c);
    const Parsed expected = parse(options, c.text, {});
    const size_t size = c.text.size();
    std::vector<size_t> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = i;
    ASSERT_EQ(parse(options, c.text, bytes), expected) << "byte by byte";
    for (size_t first = 0; first <= size; ++first, ++num_parses)
      ASSERT_EQ(parse(options, c.text, {first}), expected) << first;
    if (c.what == "cut off" && size > 120) continue;  // there are many of these, and they are alike
    if (size <= 220) {
      for (size_t first = 0; first <= size; ++first) {
        for (size_t second = first; second <= size; ++second, ++num_parses)
          ASSERT_EQ(parse(options, c.text, {first, second}), expected) << first << ", " << second;
      }
    }
    for (int round = 0; round < 200; ++round, ++num_parses) {
      std::vector<size_t> cuts(rng() % 6 + 1);
      for (size_t& cut : cuts) cut = rng() % (size + 1);
      std::sort(cuts.begin(), cuts.end());
      ASSERT_EQ(parse(options, c.text, cuts), expected) << "seed " << seed << ", round " << round;
    }
  }
  RecordProperty("parses", static_cast<int>(num_parses));
}

// Words of the formats come in any order: most texts are malformed in ways that no hand-written case covers.
TEST_P(ToolCalls, AreTheSameForRandomMixturesOfMarkers) {
  const uint32_t seed = 17;
  std::mt19937 rng(seed);
  const bool fenced = GetParam() == Format::kDeepSeekV3;
  const std::string good = (fenced ? v3 : v31)("f", R"({"a": "```"})");
  const std::string open = good.substr(0, good.find('{'));
  const std::vector<std::string> parts = {marks::kCallsBegin,
                                          marks::kCallsEnd,
                                          marks::kCallBegin,
                                          marks::kCallEnd,
                                          marks::kSep,
                                          "```json",
                                          "```",
                                          good,
                                          good,
                                          open,
                                          open + R"({"a":")",
                                          "{}",
                                          "\"",
                                          R"(":")",
                                          R"(","b":")",
                                          R"("})",
                                          "f",
                                          "\n",
                                          " ",
                                          "x<",
                                          "<｜",
                                          "é"};
  size_t num_calls = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t n = rng() % 14; n > 0; --n) text += parts[rng() % parts.size()];
    const Options options{.format = GetParam(), .tool_names = {"f"}};
    const Parsed whole = parse(options, text, {});
    num_calls += whole.calls.size();
    for (int again = 0; again < 3; ++again) {
      std::vector<size_t> cuts(rng() % 8);
      for (size_t& cut : cuts) cut = rng() % (text.size() + 1);
      std::sort(cuts.begin(), cuts.end());
      ASSERT_EQ(parse(options, text, cuts), whole) << "seed " << seed << ", round " << round << ": " << text;
    }
    if (whole.calls.empty() && whole.unknown.empty()) {
      ASSERT_EQ(whole.content, text);
    }
  }
  EXPECT_GT(num_calls, 10000U);
}

// Calls that the chat template writes for a conversation are parsed back.
TEST_P(ToolCalls, ThatTheChatTemplateRendersAreParsedBack) {
  const ChatFormat chat = GetParam() == Format::kDeepSeekV3 ? ChatFormat::kV25 : ChatFormat::kV31;
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "?"},
      {.role = "assistant",
       .content = "Let me see.",
       .tool_calls = {{.name = "f", .arguments = "{}"},
                      {.name = "get_weather", .arguments = R"({"city": "Köln", "days": 3})"}}}};
  const ChatOptions no_generation{.add_generation_prompt = false};
  const std::string before = *render_chat(chat, {messages.data(), 1});
  std::string answer = *render_chat(chat, messages, no_generation);
  ASSERT_TRUE(answer.starts_with(before));
  const std::string eos = "<｜end▁of▁sentence｜>";
  ASSERT_TRUE(answer.ends_with(eos));
  answer = answer.substr(before.size(), answer.size() - before.size() - eos.size());
  const Case c{"", answer, "Let me see.", {{"f", "{}"}, {"get_weather", R"({"city": "Köln", "days": 3})"}}};
  EXPECT_EQ(parse(options_of(GetParam(), c), answer, {}), expected_of(c)) << answer;
}

// The arguments of these calls extend over the calls after them. If the work were not linear, the test would
// not end.
TEST_P(ToolCalls, AreReadInLinearTimeWhereTheyOverlap) {
  const std::string good = (GetParam() == Format::kDeepSeekV3 ? v3 : v31)("f", "{}");
  const std::string open = good.substr(0, good.find('{'));
  const auto repeat = [](const std::string& text) {
    std::string out;
    for (int i = 0; i < 20000; ++i) out += text;
    return out;
  };
  const std::string texts[] = {
      open + R"({"a":")" + repeat(open + R"({\")"),  // the first one's string continues to the end
      repeat(open + R"({"a":"\")"),                  // each one's string continues into the next
      repeat(open + R"({",":",":")"),                // strings between the strings of another
      repeat(open + "{,"),
      repeat(marks::kCallBegin + "f"),
  };
  const Options options{.format = GetParam(), .tool_names = {"f"}};
  for (const std::string& text : texts) {
    std::vector<size_t> cuts;
    for (size_t at = 0; at < text.size(); at += 4093) cuts.push_back(at);
    const Parsed whole = parse(options, text + "x\"\n" + good, {});
    ASSERT_FALSE(whole.calls.empty());
    EXPECT_EQ(whole.calls.back().arguments, "{}") << "a good call after them is found";
    size_t size = whole.content.size();
    for (const Call& call : whole.calls) size += call.arguments.size();
    EXPECT_LT(size, text.size() + good.size()) << "no text is both arguments and content";
    // EXPECT_EQ would print the whole text.
    EXPECT_TRUE(parse(options, text + "x\"\n" + good, cuts) == whole) << text.substr(0, 300);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ToolCalls, ::testing::Values(Format::kDeepSeekV3, Format::kDeepSeekV31),
                         [](const auto& format) { return std::string(to_string(format.param)); });

}  // namespace
}  // namespace hadal
