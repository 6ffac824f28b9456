// Compares V3.2's prompts and tool calls with the results of the model's own encoder and decoder for the same
// texts (tools/dsml_vectors), and tests the parser on further texts.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/text/test_data.h"
#include "tests/text/tool_call_parse.h"
#include "text/chat/chat_template.h"
#include "text/chat/reasoning_parser.h"
#include "text/chat/tool_call_parser.h"

namespace hadal {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using tool_calls::Call;
using tool_calls::parse;
using tool_calls::Parsed;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kBegin = "<｜DSML｜function_calls>";
constexpr const char* kEnd = "</｜DSML｜function_calls>";
constexpr const char* kParameterEnd = "</｜DSML｜parameter>";

const OrderedJson& vectors() {
  static const OrderedJson json = OrderedJson::parse(read_test_file("dsml_vectors.json"));
  return json;
}

std::vector<ChatMessage> messages_of(const OrderedJson& list) {
  std::vector<ChatMessage> out;
  for (const OrderedJson& json : list) {
    ChatMessage& message = out.emplace_back();
    message = {.role = json["role"], .content = json["content"]};
    message.reasoning_content = json.value("reasoning_content", "");
    for (const OrderedJson& call : json.value("tool_calls", OrderedJson::array()))
      message.tool_calls.push_back(
          {.name = call["function"]["name"], .arguments = call["function"]["arguments"]});
  }
  return out;
}

std::string parameter(const std::string& name, const std::string& is_string, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + is_string + "\">" + value + kParameterEnd;
}
std::string invoke(const std::string& name, const std::string& body) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + body + "\n</｜DSML｜invoke>";
}
std::string dsml_block(const std::string& calls) {
  return std::string(kBegin) + "\n" + calls + "\n" + kEnd;
}

ToolCallParser::Options dsml_options(bool parallel = true, bool forward_unknown = false) {
  return {.format = ToolCallFormat::kDeepSeekV32,
          .tool_names = {"f", "add", "now"},
          .parallel = parallel,
          .forward_unknown = forward_unknown};
}

Parsed expected(const std::string& content, const std::vector<std::pair<std::string, std::string>>& calls,
                std::vector<std::string> unknown = {}) {
  Parsed out{.content = content, .unknown = std::move(unknown)};
  for (const auto& [name, arguments] : calls) {
    const int index = static_cast<int>(out.calls.size());
    out.calls.push_back({index, "call_" + std::to_string(index), name, arguments});
  }
  out.is_whole = tool_calls::are_objects(out.calls);
  return out;
}

// Checks the whole text, every byte alone, every single cut, every pair of cuts of a short text, and random
// cuts.
void expect_parsed(const std::string& text, const Parsed& result, const ToolCallParser::Options& options) {
  ASSERT_EQ(parse(options, text, {}), result) << text;
  const size_t size = text.size();
  std::vector<size_t> cuts(size);
  for (size_t i = 0; i < size; ++i) cuts[i] = i;
  ASSERT_EQ(parse(options, text, cuts), result) << "byte by byte: " << text;
  for (size_t first = 0; first <= size; ++first) {
    ASSERT_EQ(parse(options, text, {first}), result) << first << ": " << text;
    for (size_t second = first; second <= size && size <= 220; ++second)
      ASSERT_EQ(parse(options, text, {first, second}), result) << first << ", " << second << ": " << text;
  }
  std::mt19937 rng(32);
  for (int round = 0; round < 50; ++round) {
    cuts.resize(rng() % 6 + 1);
    for (size_t& cut : cuts) cut = rng() % (size + 1);
    std::sort(cuts.begin(), cuts.end());
    ASSERT_EQ(parse(options, text, cuts), result) << "round " << round << ": " << text;
  }
}

TEST(Dsml, PromptsAreThoseOfTheModelsEncoder) {
  size_t num_refused = 0;
  for (const OrderedJson& item : vectors()["encode"]) {
    ChatOptions options{.thinking = item["thinking"]};
    if (!item["tools"].is_null()) options.tools_json = item["tools"].dump();
    const auto prompt = render_chat(ChatFormat::kV32, messages_of(item["messages"]), options);
    if (item["prompt"].is_null()) {
      ++num_refused;
      ASSERT_FALSE(prompt.ok()) << item.dump();
      EXPECT_EQ(prompt.status().code, StatusCode::kInvalidArgument);
      EXPECT_THAT(prompt.status().message, StartsWith("messages["));
    } else {
      ASSERT_TRUE(prompt.ok()) << prompt.status().message << "\n" << item.dump();
      EXPECT_EQ(*prompt, item["prompt"].get<std::string>()) << item.dump();
    }
  }
  EXPECT_GT(num_refused, 10U);
  EXPECT_GT(vectors()["encode"].size(), 4 * num_refused);
}

TEST(Dsml, AnswersAreReadAsByTheModelsDecoderHoweverTheyAreCut) {
  size_t num_calls = 0;
  for (const OrderedJson& item : vectors()["answer"]) {
    const std::string text = item["text"];
    std::vector<std::pair<std::string, std::string>> calls;
    for (const OrderedJson& call : item["calls"]) calls.emplace_back(call[0], call[1]);
    num_calls += calls.size();
    std::string content = item["content"];
    // White space before calls belongs to them here, as in the older formats.
    if (!calls.empty()) content.resize(content.find_last_not_of(" \t\n\v\f\r") + 1);

    ReasoningParser reasoning(
        {.format = ReasoningFormat::kDeepSeekV3, .starts_in_reasoning = item["thinking"]});
    ReasoningParser::Piece read = reasoning.append(text);
    read.content += reasoning.finish().content;
    EXPECT_EQ(read.reasoning, item["reasoning"].get<std::string>());
    expect_parsed(read.content, expected(content, calls), dsml_options());
  }
  EXPECT_GT(num_calls, 15U);
}

TEST(Dsml, WhatTheModelsDecoderRefusesIsNotAWholeCallHoweverItIsCut) {
  ASSERT_GT(vectors()["refused"].size(), 10U);
  for (const OrderedJson& item : vectors()["refused"]) {
    const std::string text = item;
    const Parsed whole = parse(dsml_options(), text, {});
    EXPECT_TRUE(whole.calls.empty() ? whole.content == text : !whole.is_whole) << text;
    expect_parsed(text, whole, dsml_options());
  }
}

TEST(Dsml, ArgumentsOfAPromptAreReadBackAsTheSameValues) {
  size_t num_calls = 0;
  for (const OrderedJson& item : vectors()["encode"]) {
    if (item["prompt"].is_null()) continue;
    std::vector<OrderedJson> sent;
    for (const ChatMessage& message : messages_of(item["messages"]))
      for (const ToolCall& call : message.tool_calls) sent.push_back(OrderedJson::parse(call.arguments));
    std::string prompt = item["prompt"];
    if (!item["tools"].is_null()) prompt.erase(0, prompt.find("</functions>"));
    const Parsed parsed = parse(dsml_options(), prompt, {});
    ASSERT_EQ(parsed.calls.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i)
      EXPECT_EQ(OrderedJson::parse(parsed.calls[i].arguments), sent[i]);
    num_calls += sent.size();
  }
  EXPECT_GT(num_calls, 20U);
}

TEST(Dsml, WhiteSpaceIsFreeBetweenTagsAndExactInValues) {
  const std::string spaced = "x \n" + std::string(kBegin) + "<｜DSML｜invoke\n name=\"f\">\t\n\n " +
                             parameter("a", "false", "\n[1, 2]\t ") + parameter("b", "true", " \n") +
                             "\n \n</｜DSML｜invoke>" + invoke("now", "") + " \n" + kEnd + "\n y";
  expect_parsed(spaced, expected("xy", {{"f", "{\"a\": \n[1, 2]\t , \"b\": \" \\n\"}"}, {"now", "{}"}}),
                dsml_options());
}

TEST(Dsml, AValueThatIsNotJsonBreaksItsCallBeforeItsKey) {
  for (const std::string value : {"", " ", "x", "{\"a\":1", "[1,]", "1 2", "NaN", "'a'", "\"\xff\"",
                                  "\"\\ud800\"", "tru", "01", "\"a\nb\"", "<b>"}) {
    const std::string bad = parameter("a", "false", value) + "\n</｜DSML｜invoke>";
    expect_parsed(dsml_block("<｜DSML｜invoke name=\"f\">\n" + bad), expected("\n" + bad, {{"f", ""}}),
                  dsml_options());
    expect_parsed(dsml_block("<｜DSML｜invoke name=\"f\">\n" + parameter("s", "true", "é\"") + bad),
                  expected(bad, {{"f", "{\"s\": \"é\\\"\""}}), dsml_options());
  }
  std::string deep = "1";
  for (int i = 0; i < 128; ++i) deep = "[" + deep + "]";
  EXPECT_FALSE(parse(dsml_options(), dsml_block(invoke("f", parameter("a", "false", deep))), {}).is_whole)
      << "arguments nest at most 128 deep";
  const std::string allowed = deep.substr(1, deep.size() - 2);
  EXPECT_EQ(parse(dsml_options(), dsml_block(invoke("f", parameter("a", "false", allowed))), {}),
            expected("", {{"f", "{\"a\": " + allowed + "}"}}));
}

TEST(Dsml, AJsonStringMayContainTheEndOfAParameter) {
  const std::string value = std::string("[\"") + kParameterEnd + "</｜DSML｜invoke>\"]";
  expect_parsed(dsml_block(invoke("f", parameter("a", "false", value))),
                expected("", {{"f", "{\"a\": " + value + "}"}}), dsml_options());
}

TEST(Dsml, TextThatIsNotUtf8BreaksACallWhereItStands) {
  const std::string name = dsml_block(invoke("f\xff", ""));
  expect_parsed(name, expected(name, {}), dsml_options());
  const std::string key = parameter("\xff", "true", "a") + "\n</｜DSML｜invoke>";
  expect_parsed(dsml_block("<｜DSML｜invoke name=\"f\">" + key), expected(key, {{"f", ""}}), dsml_options());
  const std::string rest = "\xe6</｜DSML｜parameter>\n</｜DSML｜invoke>";
  expect_parsed("<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"true\">東" + rest,
                expected(rest, {{"f", "{\"a\": \"東"}}), dsml_options());
}

TEST(Dsml, NamesMayContainQuotesButNoTags) {
  expect_parsed(dsml_block(invoke("f", parameter("a\" string=\"", "true", "x"))),
                expected("", {{"f", "{\"a\\\" string=\\\"\": \"x\"}"}}), dsml_options());
  for (const std::string& bad :
       {invoke("", ""), invoke(std::string(300, 'f'), ""), invoke("f</｜DSML｜invoke>", "")}) {
    const std::string text = dsml_block(bad);
    EXPECT_EQ(parse(dsml_options(), text, {}), expected(text, {})) << text;
  }
  for (const std::string& key : {std::string(2000, 'k'), std::string("a</｜DSML｜parameter>")}) {
    const std::string rest = "\n" + parameter(key, "true", "") + "\n</｜DSML｜invoke>";
    EXPECT_EQ(parse(dsml_options(), dsml_block("<｜DSML｜invoke name=\"f\">" + rest), {}),
              expected(rest, {{"f", ""}}));
  }
  const std::string longest(1024, 'k');
  EXPECT_TRUE(parse(dsml_options(), dsml_block(invoke("f", parameter(longest, "true", ""))), {}).is_whole);
}

TEST(Dsml, UnknownFunctionsAndFurtherCallsAreDropped) {
  const std::string text = "x\n\n" +
                           dsml_block(invoke("nope", parameter("a", "true", "")) + "\n" + invoke("f", "") +
                                      "\n" + invoke("now", "")) +
                           "\nDone.";
  expect_parsed(text, expected("xDone.", {{"f", "{}"}, {"now", "{}"}}, {"nope"}), dsml_options());
  expect_parsed(text, expected("xDone.", {{"f", "{}"}}, {"nope"}), dsml_options(false));
  expect_parsed(text, expected("xDone.", {{"nope", "{\"a\": \"\"}"}, {"f", "{}"}, {"now", "{}"}}, {"nope"}),
                dsml_options(true, true));
}

TEST(Dsml, AGoodCallAfterABrokenOneIsFound) {
  const std::string good = invoke("f", parameter("a", "true", "1"));
  const std::string open = good.substr(0, good.find("1"));
  const std::string head = "<｜DSML｜invoke name=\"f\">";
  const struct {
    std::string sent, rest;
  } broken[] = {{"", "\ntext\n</｜DSML｜invoke>"},
                {"", ""},
                {"", parameter("a", "false", "[") + parameter("b", "true", "")},
                {R"({"a": "")", parameter("a", "true", "")},
                {"", "<｜DSML｜parameter name=\"a\" string=\"false\">[\""},
                {"", "<｜DSML｜parameter name=\"a\""}};
  const std::string begin = std::string(kBegin) + "\n";
  for (const auto& [sent, rest] : broken) {
    const std::string first = sent.empty() ? "" : parameter("a", "true", "");
    expect_parsed(begin + head + first + rest + "\n" + good,
                  expected(rest, {{"f", sent}, {"f", "{\"a\": \"1\"}"}}), dsml_options());
  }
  const std::string nameless = begin + "<｜DSML｜invoke";
  expect_parsed(nameless + "\n" + good, expected(nameless, {{"f", "{\"a\": \"1\"}"}}), dsml_options());
  // A string without an end contains everything that follows.
  expect_parsed(open + good, expected("", {{"f", "{\"a\": " + OrderedJson(open + "1").dump() + "}"}}),
                dsml_options());
}

// Words come in any order: most texts are malformed in ways that no hand-written case covers.
TEST(Dsml, RandomMixturesOfTagsAreTheSameHoweverTheyAreCut) {
  const uint32_t seed = 18;
  std::mt19937 rng(seed);
  const std::string good = invoke("f", parameter("a", "false", "[1]"));
  const std::vector<std::string> parts = {
      kBegin,
      kEnd,
      good,
      good,
      good,
      invoke("now", ""),
      "<｜DSML｜invoke",
      " name=\"f\">",
      "</｜DSML｜invoke>",
      "<｜DSML｜parameter",
      " name=\"a",
      "\" string=\"true\">",
      "\" string=\"false\">",
      "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"",
      "true\">",
      "false\">",
      "{\"a\":\"",
      "\"}",
      "1",
      kParameterEnd,
      "\n",
      " ",
      "\"",
      "x<",
      "</",
      "｜DSML｜",
      "é"};
  size_t num_calls = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t n = rng() % 14; n > 0; --n) text += parts[rng() % parts.size()];
    const Parsed whole = parse(dsml_options(), text, {});
    num_calls += whole.calls.size();
    for (int again = 0; again < 3; ++again) {
      std::vector<size_t> cuts(rng() % 8);
      for (size_t& cut : cuts) cut = rng() % (text.size() + 1);
      std::sort(cuts.begin(), cuts.end());
      ASSERT_EQ(parse(dsml_options(), text, cuts), whole)
          << "seed " << seed << ", round " << round << ": " << text;
    }
    if (whole.calls.empty() && whole.unknown.empty()) {
      ASSERT_EQ(whole.content, text);
    }
  }
  EXPECT_GT(num_calls, 10000U);
}

// These malformed calls extend over the calls after them. If the work were not linear, the test would not
// end.
TEST(Dsml, ManyMalformedOverlappingCallsAreReadInLinearTime) {
  const auto repeat = [](const std::string& text) {
    std::string out;
    for (int i = 0; i < 20000; ++i) out += text;
    return out;
  };
  const std::string head = "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"";
  const std::string good = invoke("f", "");
  const std::string texts[] = {
      repeat(head + "true\">") + kParameterEnd + repeat(parameter("b", "true", "")) + "x" + good,
      repeat(head + "false\">[\"") + good,
      repeat("<｜DSML｜invoke name=\"") + good,
      repeat("<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"") + good,
      repeat(head + "true\">\xff") + kParameterEnd + "</｜DSML｜invoke>" + good,
  };
  for (const std::string& text : texts) {
    std::vector<size_t> cuts;
    for (size_t at = 0; at < text.size(); at += 4093) cuts.push_back(at);
    const Parsed whole = parse(dsml_options(), text, {});
    ASSERT_FALSE(whole.calls.empty()) << text.substr(0, 200);
    EXPECT_EQ(whole.calls.back().arguments, "{}") << text.substr(0, 200);
    EXPECT_TRUE(parse(dsml_options(), text, cuts) == whole) << text.substr(0, 200);
  }
  // No parameter ends, and the content of the first string is not read again.
  const std::string open = repeat(head + "true\">");
  const Parsed first = parse(dsml_options(), open, {});
  ASSERT_EQ(first.calls.size(), 1U);
  EXPECT_EQ(first.content, "");
}

TEST(Dsml, TextStreamsUnlessItCouldBeginACall) {
  ToolCallParser parser(dsml_options());
  EXPECT_EQ(parser.append("a <b> ").content, "a <b>");
  EXPECT_EQ(parser.append("c\n\n<｜DS").content, " c");
  EXPECT_EQ(parser.append("x").content, "\n\n<｜DSx");
}

TEST(Dsml, ArgumentsStreamButForJsonThatIsNotWholeYet) {
  ToolCallParser parser(dsml_options());
  const auto append = [&](const std::string& text) {
    const ToolCallParser::Piece piece = parser.append(text);
    EXPECT_EQ(piece.content, "");
    EXPECT_LE(piece.calls.size(), 1U);
    return piece.calls.empty() ? std::string() : piece.calls[0].name + piece.calls[0].arguments;
  };
  EXPECT_EQ(append("\n\n" + std::string(kBegin) + "\n<｜DSML｜invoke name=\"f"), "");
  EXPECT_EQ(append("\">"), "f");
  EXPECT_EQ(append("\n<｜DSML｜parameter name=\"a\" string=\"true\">"), "{\"a\": \"");
  EXPECT_EQ(append("say \"hi\"\n"), "say \\\"hi\\\"\\n");
  EXPECT_EQ(append("1 <"), "1 ") << "the parameter may end here";
  EXPECT_EQ(append(" 2"), "< 2");
  EXPECT_EQ(append(std::string(kParameterEnd) + "<｜DSML｜parameter name=\"b\" string=\"false\">[1,"), "\"");
  EXPECT_EQ(append("2]"), "");
  EXPECT_EQ(append(kParameterEnd), ", \"b\": [1,2]");
  EXPECT_EQ(append("</｜DSML｜invoke>"), "}");
  EXPECT_TRUE(parser.calls_are_whole());
}

TEST(Dsml, PromptsMayLeaveTheLastTurnClosedOrUnfinished) {
  const std::string bos = "<｜begin▁of▁sentence｜>";
  const ChatMessage question{.role = "user", .content = "Q"};
  const auto render = [&](std::vector<ChatMessage> more, ChatOptions options) {
    more.insert(more.begin(), question);
    return render_chat(ChatFormat::kV32, more, options).value();
  };
  EXPECT_EQ(render({}, {.thinking = true, .add_generation_prompt = false}), bos + "<｜User｜>Q");
  const ChatMessage call{.role = "assistant", .tool_calls = {{.name = "f", .arguments = "{}"}}};
  EXPECT_TRUE(render({call, {.role = "tool", .content = "1"}}, {.add_generation_prompt = false})
                  .ends_with("<result>1</result>\n</function_results>"));
  const ChatMessage partly{.role = "assistant", .content = "So", .reasoning_content = "Hm"};
  EXPECT_EQ(render({partly}, {.continue_final_message = true}),
            bos + "<｜User｜>Q<｜Assistant｜><think>Hm</think>So");
  EXPECT_EQ(render({{.role = "assistant", .content = "So"}}, {.continue_final_message = true}),
            bos + "<｜User｜>Q<｜Assistant｜></think>So");
}

TEST(Dsml, ErrorsOfConversationsNameTheMessage) {
  const ChatMessage question{.role = "user", .content = "Q"};
  const ChatMessage call{.role = "assistant", .tool_calls = {{.name = "f", .arguments = "{}"}}};
  const auto error = [](const std::vector<ChatMessage>& messages, ChatOptions options = {}) {
    const auto prompt = render_chat(ChatFormat::kV32, messages, options);
    return prompt.ok() ? "" : prompt.status().message;
  };
  EXPECT_EQ(error({question, {.role = "developer"}}),
            "messages[1].content is empty; a developer message must have a text");
  EXPECT_EQ(error({question, {.role = "tool"}}),
            "messages[1].role is \"tool\"; allowed only after an assistant message with tool_calls");
  EXPECT_THAT(error({question, call, {.role = "tool"}, {.role = "tool"}}),
              StartsWith("messages[3] is result 2 of an assistant message that has 1 in tool_calls"));
  EXPECT_THAT(error({question, {.role = "assistant", .content = "a"}}, {.thinking = true}),
              StartsWith("messages[1] needs reasoning_content or tool_calls"));
  ChatMessage bad = call;
  bad.tool_calls.push_back({.name = "f", .arguments = "[]"});
  EXPECT_EQ(error({question, bad}), "messages[1].tool_calls[1].function.arguments is not a JSON object");
  bad.tool_calls[1].arguments = "{'a': 1}";
  EXPECT_EQ(error({question, bad}), "messages[1].tool_calls[1].function.arguments is not valid JSON");
  EXPECT_THAT(error({question}, {.tools_json = "[1]"}), HasSubstr("tools[0] has no"));
}

TEST(Dsml, PromptsEndEarlyWhenTheyAreLongerThanIsOfUse) {
  std::string arguments = "{\"k\":1";
  for (int i = 0; i < 5000; ++i) arguments += ",\"" + std::to_string(i) + "\":1";
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "Q"},
      {.role = "assistant", .tool_calls = {{.name = "f", .arguments = arguments + "}"}}}};
  const std::string whole = render_chat(ChatFormat::kV32, messages).value();
  const std::string early = render_chat(ChatFormat::kV32, messages, {.max_bytes = 5000}).value();
  EXPECT_GT(whole.size(), 300'000U);
  EXPECT_GT(early.size(), 5000U);
  EXPECT_LT(early.size(), 6000U);
  EXPECT_EQ(early.substr(0, 5000), whole.substr(0, 5000));
}

}  // namespace
}  // namespace hadal
