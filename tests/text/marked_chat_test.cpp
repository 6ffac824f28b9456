// Tests the text of clients in a rendered chat: where it is, and that none of its special tokens becomes an
// id of its own when the text is encoded.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/source_dir.h"
#include "tests/text/test_data.h"
#include "text/chat/chat_template.h"

namespace hadal {
namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& tiny() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
  return *tokenizer;
}

Ids encode(const MarkedText& marked, bool as_text) {
  return tiny().encode(marked.text, false, SIZE_MAX, as_text ? marked.content : std::span<const TextRange>());
}

Ids added_of(const Ids& ids) {
  Ids out;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(out),
               [](int32_t id) { return tiny().is_added(id); });
  return out;
}

constexpr ChatFormat kFormats[] = {ChatFormat::kV2, ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31,
                                   ChatFormat::kV32};

// Returns a conversation that has `text` everywhere a client writes.
std::vector<ChatMessage> conversation(ChatFormat format, const std::string& text) {
  std::vector<ChatMessage> messages = {{.role = "system", .content = text},
                                       {.role = "user", .content = text},
                                       {.role = "assistant", .content = text}};
  if (format != ChatFormat::kV2) {
    messages.push_back({.role = "user", .content = text});
    const std::string arguments =
        format == ChatFormat::kV32 ? nlohmann::json{{text, text}, {"n", {text}}}.dump() : text;
    messages.push_back({.role = "assistant", .tool_calls = {{.name = text, .arguments = arguments}}});
    messages.push_back({.role = "tool", .content = text});
    messages.push_back({.role = "assistant", .content = text});
  }
  messages.push_back({.role = "user", .content = text});
  return messages;
}

ChatOptions options_for(ChatFormat format, const std::string& text) {
  ChatOptions options;
  if (format == ChatFormat::kV2) return options;
  const nlohmann::json function = {
      {"name", text}, {"description", text}, {"parameters", {{"description", text}, {text, text}}}};
  options.tools_json = nlohmann::json::array({{{"type", "function"}, {"function", function}}}).dump();
  return options;
}

TEST(MarkedChat, MarksWhatClientsWroteAndNothingElse) {
  for (const ChatFormat format : kFormats) {
    const std::string text = "xyzzy";
    const MarkedText marked =
        render_marked_chat(format, conversation(format, text), options_for(format, text)).value();
    EXPECT_EQ(marked.text,
              render_chat(format, conversation(format, text), options_for(format, text)).value());
    EXPECT_EQ(marked.without_content().find(text), std::string::npos) << to_string(format);
    size_t before = 0;
    for (const TextRange& range : marked.content) {
      EXPECT_LT(range.begin, range.end);
      EXPECT_TRUE(range.begin > before || before == 0) << "ranges that touch are one";
      before = range.end;
      EXPECT_EQ(marked.text.substr(range.begin, range.end - range.begin).find("<｜"), std::string::npos);
    }
  }
}

TEST(MarkedChat, SpecialTokensOfClientsAreTextAndThoseOfTheFormatAreNot) {
  const std::string plain = "abc";
  std::string forged;
  for (int32_t id = 0; id < tiny().vocab_size(); ++id)
    if (tiny().is_added(id)) forged += tiny().token_bytes(id);
  ASSERT_GT(forged.size(), 100U);
  for (const ChatFormat format : kFormats) {
    for (const bool continued : {false, true}) {
      const auto render = [&](const std::string& text) {
        std::vector<ChatMessage> messages = conversation(format, text);
        ChatOptions options = options_for(format, text);
        options.continue_final_message = continued;
        if (continued) messages.push_back({.role = "assistant", .content = text, .reasoning_content = text});
        return render_marked_chat(format, messages, options).value();
      };
      const Ids honest = encode(render(plain), true);
      const Ids ids = encode(render(forged), true);
      EXPECT_EQ(added_of(ids), added_of(honest)) << to_string(format);
      EXPECT_EQ(tiny().decode(ids, false), render(forged).text) << "nothing is lost";
      EXPECT_GT(added_of(encode(render(forged), false)).size(), added_of(ids).size())
          << "as in SGLang, they are tokens otherwise";
    }
  }
}

TEST(MarkedChat, TextWithoutSpecialTokensHasTheSameIdsEitherWay) {
  std::mt19937 random(11);
  const std::vector<std::string> parts = {"a",  " ", "\n",   "Hello", " world", "12345", "<",  "｜",
                                          "ab", ">", "\n\n", "é",     "日本",   "User",  ": ", "\t"};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (unsigned i = random() % 12; i > 0; --i) text += parts[random() % parts.size()];
    for (const ChatFormat format : kFormats) {
      const MarkedText marked =
          render_marked_chat(format, conversation(format, text), options_for(format, text)).value();
      ASSERT_EQ(encode(marked, true), encode(marked, false)) << to_string(format) << " \"" << text << '"';
    }
  }
}

TEST(LiteralText, ATokenThatIsPartlyInsideIsNotFound) {
  const std::string token = "<think>";
  const auto count = [&](size_t begin, size_t end) {
    const TextRange range{begin, end};
    return added_of(tiny().encode("a" + token + "b", false, SIZE_MAX, {&range, 1})).size();
  };
  EXPECT_EQ(count(0, 1), 1U);
  EXPECT_EQ(count(8, 9), 1U);
  for (size_t begin = 1; begin < 8; ++begin)
    for (size_t end = begin + 1; end <= 8; ++end) EXPECT_EQ(count(begin, end), 0U) << begin << " " << end;
}

TEST(LiteralText, LimitsAndBrokenBytesMoveNoRange) {
  const std::string broken = "<think>\xff\xfe<think>\xf0\x9f<think>";
  const TextRange range{9, 16};  // the second token
  const Ids ids = tiny().encode(broken, false, SIZE_MAX, {&range, 1});
  EXPECT_EQ(added_of(ids).size(), 2U);
  EXPECT_TRUE(tiny().is_added(ids.front()) && tiny().is_added(ids.back()));
  std::string text;
  std::vector<TextRange> ranges;
  for (int i = 0; i < 1000; ++i) {
    text += "<think>";
    ranges.push_back({text.size(), text.size() + 7});
    text += "<think>";
  }
  const Ids all = tiny().encode(text, false, SIZE_MAX, ranges);
  EXPECT_EQ(added_of(all).size(), 1000U);
  for (const size_t limit : {1, 2, 10, 100}) {
    const Ids cut = tiny().encode(text, false, limit, ranges);
    ASSERT_GT(cut.size(), limit);
    EXPECT_TRUE(std::equal(cut.begin(), cut.begin() + static_cast<int64_t>(limit), all.begin()));
  }
}

}  // namespace
}  // namespace hadal
