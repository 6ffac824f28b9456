#include "text/chat/chat_template.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <span>

#include "tests/text/test_data.h"

namespace hadal {
namespace {

using ::testing::HasSubstr;

ChatMessage to_message(const nlohmann::json& json) {
  ChatMessage message{.role = json["role"], .content = json["content"]};
  if (json.contains("tool_calls"))
    for (const auto& call : json["tool_calls"])
      message.tool_calls.push_back({.type = call["type"],
                                    .name = call["function"]["name"],
                                    .arguments = call["function"]["arguments"]});
  return message;
}

TEST(ChatTemplate, RendersTheTextsOfThePublishedTemplates) {
  const auto cases = nlohmann::ordered_json::parse(read_test_file("chat_cases.json"));
  ASSERT_GT(cases.size(), 80U);
  for (const auto& item : cases) {
    const auto format = parse_chat_format(item["format"].get<std::string>());
    ASSERT_TRUE(format.ok());
    std::vector<ChatMessage> messages;
    for (const auto& message : item["messages"]) messages.push_back(to_message(message));
    ChatOptions options{.thinking = item["thinking"], .add_generation_prompt = item["generate"]};
    if (!item["tools"].empty()) options.tools_json = item["tools"].dump();
    const auto rendered = render_chat(*format, messages, options);
    ASSERT_TRUE(rendered.ok()) << rendered.status().message;
    EXPECT_EQ(*rendered, item["expected"].get<std::string>()) << item.dump();
  }
}

// This is the prompt that SGLang's examples/chat_template/tool_chat_template_deepseekv31.jinja (and vLLM's,
// which follows it) makes of "Hello" with the cases' tools. The template is not the one that V3.1 ships with,
// and differs from the model card only in these places.
TEST(ChatTemplate, ToolsOfV31DifferFromOtherEnginesInKnownPlaces) {
  const auto cases = nlohmann::ordered_json::parse(read_test_file("chat_cases.json"));
  const auto found = std::find_if(cases.begin(), cases.end(), [](const auto& item) {
    return !item["tools"].empty() && item["messages"].size() == 1 && item["generate"];
  });
  ASSERT_NE(found, cases.end());
  const ChatMessage user = to_message((*found)["messages"][0]);
  std::string theirs =
      render_chat(ChatFormat::kV31, std::span(&user, 1), {.tools_json = (*found)["tools"].dump()}).value();
  const auto replace = [&](const std::string& ours, const std::string& other) {
    const size_t at = theirs.find(ours);
    ASSERT_NE(at, theirs.npos) << ours;
    theirs.replace(at, ours.size(), other);
  };
  replace("Where:\n", "Where:\n\n");
  replace("{additional_tool_calls}", "{{additional_tool_calls}}");
  // These spaces and line breaks belong to the template's own layout.
  replace("<｜Assistant｜></think>", "  <｜Assistant｜>    </think>");
  EXPECT_EQ("\n\n" + theirs, read_test_file("tool_prompt_sglang.txt"));
}

TEST(ChatTemplate, ChoosesTheFormatByMarkers) {
  const auto format_of = [](std::string_view text) { return detect_chat_format(text); };
  EXPECT_EQ(*format_of("{{'User: ' + x}}{{'Assistant: ' + y}}"), ChatFormat::kV2);
  EXPECT_EQ(*format_of("{{'<｜User｜>' + x}}{{'<｜Assistant｜>' + y}}"), ChatFormat::kV25);
  EXPECT_EQ(*format_of(R"({{'<｜User｜>'}}{{'<｜Assistant｜>'}}{{'<｜Assistant｜><think>\n'}})"),
            ChatFormat::kR1);
  EXPECT_EQ(*format_of("{% if thinking %}{{'<｜User｜>'}}{{'<｜Assistant｜></think>'}}{{'<｜Assistant｜>'}}"),
            ChatFormat::kV31);
  EXPECT_EQ(*format_of("{{'<｜Assistant｜></think>'}}{{thinking}}{{'<｜DSML｜function_calls>'}}"),
            ChatFormat::kV32);
  for (const char* text : {"", "{{ '<|im_start|>' + role }}"}) {
    const auto unknown = format_of(text);
    ASSERT_FALSE(unknown.ok());
    EXPECT_THAT(unknown.status().message, HasSubstr("v2, v2.5, r1, v3.1, v3.2"));
  }
}

TEST(ChatTemplate, WithoutATemplateTheArchitectureOfV32ChoosesItsFormat) {
  EXPECT_EQ(*detect_chat_format("", "DeepseekV32ForCausalLM"), ChatFormat::kV32);
  EXPECT_FALSE(detect_chat_format("", "DeepseekV3ForCausalLM").ok());
  EXPECT_EQ(*detect_chat_format("{{'<｜User｜>' + x}}{{'<｜Assistant｜>' + y}}", "DeepseekV32ForCausalLM"),
            ChatFormat::kV25)
      << "a template comes first";
  EXPECT_FALSE(detect_chat_format("{{ '<|im_start|>' }}", "DeepseekV32ForCausalLM").ok());
}

TEST(ChatTemplate, ADeveloperIsASystemExceptInV32) {
  std::vector<ChatMessage> messages = {{.role = "developer", .content = "D"},
                                       {.role = "user", .content = "Q"}};
  const auto as_developer = [&](ChatFormat format) { return *render_chat(format, messages); };
  std::vector<ChatMessage> system = messages;
  system[0].role = "system";
  for (const ChatFormat format : {ChatFormat::kV2, ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31})
    EXPECT_EQ(as_developer(format), *render_chat(format, system));
  EXPECT_THAT(as_developer(ChatFormat::kV32),
              HasSubstr("<｜User｜>\n\n# The user's message is: D<｜Assistant｜>"));
}

TEST(ChatTemplate, NamesAreParsedAndPrinted) {
  for (const char* name : {"v2", "v2.5", "r1", "v3.1", "v3.2"})
    EXPECT_STREQ(to_string(*parse_chat_format(name)), name);
  const auto unknown = parse_chat_format("v9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.status().message, HasSubstr("\"v9\"; allowed are v2, v2.5, r1, v3.1, v3.2"));
}

TEST(ChatTemplate, ContinuesTheLastMessageWithoutClosingIt) {
  const auto render = [](ChatFormat format, ChatMessage last, bool thinking) {
    const std::vector<ChatMessage> messages = {{.role = "user", .content = "Q"}, std::move(last)};
    return render_chat(format, messages, {.thinking = thinking, .continue_final_message = true}).value();
  };
  const ChatMessage answer{.role = "assistant", .content = "So"};
  const ChatMessage thought{.role = "assistant", .reasoning_content = "Hm"};
  const ChatMessage both{.role = "assistant", .content = "So", .reasoning_content = "Hm"};
  const std::string bos = "<｜begin▁of▁sentence｜>";
  EXPECT_EQ(render(ChatFormat::kV2, answer, false), bos + "User: Q\n\nAssistant: So");
  EXPECT_EQ(render(ChatFormat::kV25, answer, false), bos + "<｜User｜>Q<｜Assistant｜>So");
  EXPECT_EQ(render(ChatFormat::kR1, both, false), bos + "<｜User｜>Q<｜Assistant｜><think>\nHm</think>So");
  EXPECT_EQ(render(ChatFormat::kV31, answer, false), bos + "<｜User｜>Q<｜Assistant｜></think>So");
  EXPECT_EQ(render(ChatFormat::kV31, thought, true), bos + "<｜User｜>Q<｜Assistant｜><think>Hm");
  EXPECT_EQ(render(ChatFormat::kV31, both, false), bos + "<｜User｜>Q<｜Assistant｜><think>Hm</think>So");
}

// R1's template splits at </think> and uses the last part. V3.1's template uses everything after the first
// </think>.
TEST(ChatTemplate, PastReasoningEndsAtTheFirstEndOfThinkingInV31AndAtTheLastInR1) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Q"},
                                             {.role = "assistant", .content = "a</think>b</think>c"},
                                             {.role = "user", .content = "R"}};
  EXPECT_THAT(render_chat(ChatFormat::kV31, messages, {}).value(),
              HasSubstr("<｜Assistant｜></think>b</think>c<"));
  EXPECT_THAT(render_chat(ChatFormat::kR1, messages, {}).value(), HasSubstr("<｜Assistant｜>c<"));
}

TEST(ChatTemplate, EveryRoundOfToolCallsOpensANewBlock) {
  const ToolCall call{.name = "f", .arguments = "{}"};
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Q"},
                                             {.role = "assistant", .tool_calls = {call}},
                                             {.role = "tool", .content = "1"},
                                             {.role = "assistant", .tool_calls = {call}},
                                             {.role = "tool", .content = "2"}};
  const std::string fenced =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<"
      "｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
  EXPECT_EQ(
      *render_chat(ChatFormat::kV25, messages),
      "<｜begin▁of▁sentence｜><｜User｜>Q<｜Assistant｜>" + fenced +
          "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>1<｜tool▁output▁end｜><｜tool▁outputs▁end｜>" +
          fenced +
          "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>2<｜tool▁output▁end｜><｜tool▁outputs▁end｜>");
}

TEST(ChatTemplate, AnnouncesToolsToV25AsItsModelCardDoes) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Q"}};
  const ChatOptions options{
      .tools_json = R"([{"type": "function", "function": {"name": "f", "parameters": {"b": [], "a": 1}}}])"};
  EXPECT_EQ(*render_chat(ChatFormat::kV25, messages, options),
            "<｜begin▁of▁sentence｜>You are a helpful Assistant.\n\n## Tools\n\n### Function\n\nYou have the "
            "following functions "
            "available:\n\n- `f`:\n```json\n{\n    \"name\": \"f\",\n    \"parameters\": {\n        \"b\": "
            "[],\n        \"a\": "
            "1\n    }\n}\n```\n<｜User｜>Q<｜Assistant｜>");
}

TEST(ChatTemplate, RefusesMessagesThatNoFormatSupports) {
  const auto error = [](ChatFormat format, std::vector<ChatMessage> messages, ChatOptions options = {}) {
    const auto rendered = render_chat(format, messages, options);
    return rendered.ok() ? "" : rendered.status().message;
  };
  const ChatMessage user{.role = "user", .content = "Q"};
  EXPECT_THAT(error(ChatFormat::kV31, {user, {.role = "robot"}}),
              HasSubstr("messages[1].role is \"robot\"; allowed are"));
  EXPECT_THAT(error(ChatFormat::kV31, {{.role = "user", .tool_calls = {{}}}}),
              HasSubstr("messages[0].tool_calls"));
  EXPECT_THAT(error(ChatFormat::kV31, {user}, {.continue_final_message = true}),
              HasSubstr("continue_final_message"));
  EXPECT_THAT(error(ChatFormat::kV31, {}, {.continue_final_message = true}), HasSubstr("missing"));
  EXPECT_THAT(error(ChatFormat::kV2, {user}, {.tools_json = "[]"}), HasSubstr("v2 does not support tools"));
  EXPECT_THAT(error(ChatFormat::kV2, {{.role = "tool"}}), HasSubstr("v2 does not support tool calls"));
  const std::pair<const char*, const char*> tools[] = {
      {"{", "tools: is not valid JSON"},
      {"{}", "tools is {}; must be a list"},
      {"[1]", "tools[0] has no"},
      {R"([{"function": {}}])", "tools[0].function.name"},
      {R"([{"type": "code", "function": {"name": "f"}}])", "tools[0].type is \"code\""},
      {R"([{"function": {"name": "f", "description": 1}}])",
       "tools[0].function.description is 1; must be a string"}};
  for (const auto& [json, message] : tools)
    for (const ChatFormat format : {ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31, ChatFormat::kV32})
      EXPECT_THAT(error(format, {user}, {.tools_json = json}), HasSubstr(message));
}

TEST(ChatTemplate, TellsWhetherGenerationStartsInReasoning) {
  EXPECT_TRUE(generation_starts_in_reasoning(ChatFormat::kR1, {}));
  EXPECT_TRUE(generation_starts_in_reasoning(ChatFormat::kV31, {.thinking = true}));
  EXPECT_TRUE(generation_starts_in_reasoning(ChatFormat::kV32, {.thinking = true}));
  EXPECT_FALSE(generation_starts_in_reasoning(ChatFormat::kV32, {}));
  EXPECT_FALSE(generation_starts_in_reasoning(ChatFormat::kV31, {}));
  EXPECT_FALSE(generation_starts_in_reasoning(ChatFormat::kV25, {.thinking = true}));
}

TEST(ChatTools, NestedToolsEndEarlyWhenTheyAreLongerThanIsOfUse) {
  std::string nested = "1";
  for (int i = 0; i < 1000; ++i) nested += ",1";
  for (int i = 0; i < 50; ++i) nested = "[" + nested + "]";
  const std::string tools = R"([{"type":"function","function":{"name":"f","x":)" + nested + "}}]";
  const ChatMessage message{.role = "user", .content = "Hello"};
  ChatOptions options{.tools_json = tools};
  const auto whole = render_chat(ChatFormat::kV25, std::span(&message, 1), options);
  ASSERT_TRUE(whole.ok());
  EXPECT_GT(whole->size(), 50 * tools.size());
  options.max_bytes = 5000;
  const auto early = render_chat(ChatFormat::kV25, std::span(&message, 1), options);
  ASSERT_TRUE(early.ok());
  EXPECT_GT(early->size(), 5000U);
  EXPECT_LT(early->size(), 2 * tools.size() + 60'000);
  EXPECT_EQ(early->substr(0, 5000), whole->substr(0, 5000));
}

}  // namespace
}  // namespace hadal
