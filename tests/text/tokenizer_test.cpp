#include "text/tokenizer/tokenizer.h"

#include <thread>

#include "tests/text/test_data.h"
#include "text/tokenizer/detokenizer.h"

namespace hadal {
namespace {

void expect_reference_ids(const std::string& name) {
  const auto tokenizer = load_test_tokenizer(name);
  const auto cases = nlohmann::json::parse(read_test_file(name + "_small_ids.json"));
  ASSERT_GT(cases.size(), 100U);
  for (const auto& item : cases) {
    const auto text = item["text"].get<std::string>();
    const auto expected = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->encode(text, false), expected) << text;
    EXPECT_EQ(tokenizer->decode(expected, false), text);
  }
}

TEST(Tokenizer, GivesTheReferencesIdsWithV3Splits) {
  expect_reference_ids("v3");
}

TEST(Tokenizer, GivesTheReferencesIdsWithV2Splits) {
  expect_reference_ids("v2");
}

TEST(Tokenizer, ReplacesInvalidBytesByOneReplacementCharacterPerMaximalSubpart) {
  const auto tokenizer = load_test_tokenizer("v3");
  const std::pair<std::string, std::string> cases[] = {
      {"a\xFF"
       "b",
       "a\uFFFDb"},
      {"\xE4\xBD", "\uFFFD"},  // cut short: one
      {"\xE4\xBD"
       "a",
       "\uFFFDa"},
      {"\xC0\x80", "\uFFFD\uFFFD"},                      // overlong
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // beyond U+10FFFF
      {"\xF0\x9F\x98\xE2\x82\xAC", "\uFFFD€"},
      {"\x80\xBF", "\uFFFD\uFFFD"},
  };
  for (const auto& [bad, good] : cases)
    EXPECT_EQ(tokenizer->encode(bad, false), tokenizer->encode(good, false)) << bad;
}

TEST(Tokenizer, ALimitOfTokensKeepsShortTextsWholeAndEndsLongOnesEarly) {
  for (const char* name : {"v3", "v2"}) {
    const auto tokenizer = load_test_tokenizer(name);
    const size_t longest = tokenizer->longest_token_bytes();
    ASSERT_GT(longest, 1U);
    std::string words;
    while (words.size() < 20'000) words += "the cat sat on 12345 mats, 你好 ";
    const std::string texts[] = {words, std::string(20'000, 'a'), std::string(20'000, ' '), "a cat"};
    for (const std::string& text : texts) {
      const auto all = tokenizer->encode(text, false);
      EXPECT_LE((text.size() + longest - 1) / longest, all.size());
      EXPECT_EQ(tokenizer->encode(text, false, all.size()), all);
      for (const size_t limit : {size_t{0}, size_t{1}, all.size() / 2, all.size() - 1}) {
        const auto some = tokenizer->encode(text, false, limit);
        EXPECT_GT(some.size(), limit);
        EXPECT_LE(some.size(), all.size());
      }
    }
    // The work does not grow with the text.
    EXPECT_EQ(tokenizer->encode(std::string(1 << 20, 'a'), false, 10),
              tokenizer->encode(std::string(8 << 20, 'a'), false, 10));
  }
}

TEST(Tokenizer, ATokenThatTakesSpacesAroundItHasNoLargestSize) {
  auto file = nlohmann::json::parse(read_test_file("v3_small.json"));
  ASSERT_FALSE(file["added_tokens"].empty());
  file["added_tokens"][0]["lstrip"] = true;
  const auto tokenizer = Tokenizer::from_json(file.dump());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->longest_token_bytes(), 0U);
  EXPECT_GT((*tokenizer)->encode("a b c d e f", false, 2).size(), 2U);
}

TEST(Tokenizer, AddsBosByTheConfigOrElseByThePostProcessor) {
  auto file = nlohmann::json::parse(read_test_file("v3_small.json"));
  const int bos = 0;
  const auto encode = [&](const std::string& config, bool add) {
    auto tokenizer = Tokenizer::from_json(file.dump(), config);
    EXPECT_TRUE(tokenizer.ok());
    return (*tokenizer)->encode("the", add);
  };
  const auto plain = encode("", true);
  EXPECT_NE(plain.front(), bos);
  const std::string names =
      R"("bos_token": {"content": "<｜begin▁of▁sentence｜>"}, "eos_token": "<｜end▁of▁sentence｜>")";
  auto expected = plain;
  expected.insert(expected.begin(), bos);
  EXPECT_EQ(encode("{\"add_bos_token\": true, " + names + "}", true), expected);
  EXPECT_EQ(encode("{\"add_bos_token\": true, " + names + "}", false), plain);
  EXPECT_EQ(encode("{\"add_bos_token\": false, \"add_eos_token\": true, " + names + "}", true).back(), 1);

  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "<｜begin▁of▁sentence｜>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                            {"special_tokens", nlohmann::json::object()}};
  EXPECT_EQ(encode("", true), expected);
  EXPECT_EQ(encode("{" + names + "}", true), expected);
  EXPECT_EQ(encode("{\"add_bos_token\": false}", true), plain);
}

TEST(Tokenizer, ReadsBosEosAndTheChatTemplate) {
  const auto bare = load_test_tokenizer("v3");
  EXPECT_EQ(bare->bos_id(), 0);
  EXPECT_EQ(bare->eos_id(), 1);
  EXPECT_EQ(bare->chat_template(), "");
  EXPECT_TRUE(bare->is_special(0));
  const auto user = bare->token_to_id("<｜User｜>");
  ASSERT_TRUE(user.has_value());
  EXPECT_FALSE(bare->is_special(*user));
  EXPECT_EQ(bare->id_to_token(*user), "<｜User｜>");
  EXPECT_FALSE(bare->token_to_id("no such token").has_value());
  for (int id = 0; id < bare->vocab_size(); ++id) EXPECT_EQ(bare->token_to_id(bare->id_to_token(id)), id);

  const auto named = load_test_tokenizer("v3", R"({"bos_token": "<｜User｜>", "chat_template": "x"})");
  EXPECT_EQ(named->bos_id(), user);
  EXPECT_EQ(named->chat_template(), "x");
  const auto list = load_test_tokenizer(
      "v3",
      R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(list->chat_template(), "d");
}

TEST(Tokenizer, SkipsSpecialTokensOnlyAndIdsWithoutAToken) {
  const auto tokenizer = load_test_tokenizer("v3");
  const auto ids =
      tokenizer->encode("<｜begin▁of▁sentence｜><｜User｜>hi<think>x<｜end▁of▁sentence｜>", false);
  EXPECT_EQ(tokenizer->decode(ids, true), "<｜User｜>hi<think>x");
  EXPECT_EQ(tokenizer->decode(ids, false),
            "<｜begin▁of▁sentence｜><｜User｜>hi<think>x<｜end▁of▁sentence｜>");
  const std::vector<int32_t> odd = {-1, ids[2], 1 << 30, tokenizer->vocab_size()};
  EXPECT_EQ(tokenizer->decode(odd, false), tokenizer->token_bytes(ids[2]));
  EXPECT_EQ(tokenizer->token_bytes(-1), "");
  EXPECT_EQ(tokenizer->id_to_token(1 << 30), "");
  EXPECT_FALSE(tokenizer->is_special(-5));
}

TEST(Tokenizer, GivesTheSameIdsFromManyThreads) {
  const auto tokenizer = load_test_tokenizer("v3");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the river mill counted boats " + std::to_string(i) + " 三艘\n";
  const auto fresh = load_test_tokenizer("v3");
  const auto expected = fresh->encode(text, false);
  std::vector<std::thread> threads;
  std::vector<std::vector<int32_t>> results(4);
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer->encode(text, false); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(Tokenizer, ReadsMergesAsPairsOrAsText) {
  auto file = tiny_tokenizer_json();
  const auto as_text = Tokenizer::from_json(file.dump());
  file["model"]["merges"] = nlohmann::json::parse(R"([["a", "b"], ["ab", "c"]])");
  const auto as_pairs = Tokenizer::from_json(file.dump());
  ASSERT_TRUE(as_text.ok() && as_pairs.ok());
  const auto ids = (*as_text)->encode("abcab", false);
  EXPECT_EQ(ids.size(), 2U);
  EXPECT_EQ((*as_pairs)->encode("abcab", false), ids);
}

TEST(Tokenizer, HonoursStripAndSingleWordOfAddedTokens) {
  auto file = tiny_tokenizer_json();
  const auto added = [](int id, const char* content) {
    return nlohmann::json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                          {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  file["added_tokens"] = {added(300, "<l>"), added(301, "<r>"), added(302, "tok"), added(303, "<lo>"),
                          added(304, "<long>")};
  file["added_tokens"][0]["lstrip"] = true;
  file["added_tokens"][1]["rstrip"] = true;
  file["added_tokens"][2]["single_word"] = true;
  const auto tokenizer = Tokenizer::from_json(file.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message;
  const auto encode = [&](const char* text) { return (*tokenizer)->encode(text, false); };
  const int a = *(*tokenizer)->token_to_id("a");
  const int space = *(*tokenizer)->token_to_id("Ġ");
  EXPECT_EQ(encode("a \u3000\n<l> a"), (std::vector<int32_t>{a, 300, space, a}));
  EXPECT_EQ(encode("a <r> \n a"), (std::vector<int32_t>{a, space, 301, a}));
  EXPECT_EQ(encode("tok"), std::vector<int32_t>{302});
  EXPECT_EQ(encode("tok!").front(), 302);
  EXPECT_NE(encode("atok").back(), 302);
  EXPECT_NE(encode("toka").front(), 302);
  EXPECT_EQ(encode("<long>"), std::vector<int32_t>{304});
  EXPECT_EQ(encode("<lo>"), std::vector<int32_t>{303});
  EXPECT_EQ(encode("<r><r>  <l>"), (std::vector<int32_t>{301, 301, 300}));
}

TEST(Detokenizer, NeverCutsACharacterAndJoinsToDecode) {
  const auto tokenizer = load_test_tokenizer("v3");
  std::vector<int32_t> ids = tokenizer->encode("a 👨‍👩‍👧 河水𠀀é", false);
  const auto byte = [&](const char* token) { return *tokenizer->token_to_id(token); };
  // The text contains broken sequences: the beginning of a character that never ends, and a stray
  // continuation.
  for (const char* token : {"ð", "Ł", "a", "Ģ", "ä", "½", "ł", "ç", "ð", "Ł"}) ids.push_back(byte(token));
  Detokenizer detokenizer(*tokenizer, false);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece(detokenizer.append(id));
    if (piece.empty()) continue;
    EXPECT_NE(static_cast<unsigned char>(piece.front()) & 0xC0U, 0x80U);
    text += piece;
  }
  text += detokenizer.finish();
  EXPECT_EQ(text, tokenizer->decode(ids, false));
  EXPECT_NE(text.find("👨‍👩‍👧 河水𠀀é\uFFFDa\uFFFD你\uFFFD\uFFFD"), std::string::npos)
      << text;
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, DropsSpecialTokensOnly) {
  const auto tokenizer = load_test_tokenizer("v3");
  Detokenizer skipping(*tokenizer, true);
  EXPECT_EQ(skipping.append(0), "");
  EXPECT_EQ(skipping.append(*tokenizer->token_to_id("<think>")), "<think>");
  EXPECT_EQ(skipping.append(1 << 20), "");
  Detokenizer keeping(*tokenizer, false);
  EXPECT_EQ(keeping.append(0), "<｜begin▁of▁sentence｜>");
}

}  // namespace
}  // namespace hadal
