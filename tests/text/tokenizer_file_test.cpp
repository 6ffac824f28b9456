// Tests that each broken or hostile tokenizer file causes one clear error, never a crash.
#include <functional>

#include "tests/text/test_data.h"

namespace hadal {
namespace {

using Json = nlohmann::json;

std::string error_of(const std::string& json, const std::string& config = "") {
  const auto tokenizer = Tokenizer::from_json(json, config);
  return tokenizer.ok() ? "" : tokenizer.status().message;
}

TEST(TokenizerFile, RefusesUnknownComponentsAndNamesTheSupportedOnes) {
  struct Case {
    std::function<void(Json&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](Json& j) { j["model"]["type"] = "Unigram"; },
       "model.type = \"Unigram\" is not supported (supported: BPE)"},
      {[](Json& j) { j["model"]["byte_fallback"] = true; }, "model.byte_fallback = true is not supported"},
      {[](Json& j) { j["model"]["unk_token"] = "<unk>"; }, "model.unk_token = \"<unk>\" is not supported"},
      {[](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout = 0.1 is not supported"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "NFC"}};
       },
       "normalizer.type = \"NFC\" is not supported"},
      {[](Json& j) {
         j["decoder"] = {{"type", "Metaspace"}};
       },
       "decoder.type = \"Metaspace\" is not supported"},
      {[](Json& j) { j.erase("decoder"); }, "decoder is missing"},
      {[](Json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       },
       "post_processor.type = \"BertProcessing\""},
      {[](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["type"] = "Metaspace"; },
       "pre_tokenizer.pretokenizers[0].type = \"Metaspace\" is not supported (supported: Sequence, Split, "
       "Digits, ByteLevel)"},
      {[](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Removed"; },
       "pretokenizers[1].behavior = \"Removed\" is not supported (supported: Isolated)"},
      {[](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][1]["pattern"] = {{"Regex", "(a"}};
       },
       "\"(a\" is not a regular expression"},
      {[](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][1]["pattern"] = {{"Regex", "[a-z&&[^b]]"}};
       },
       "nested and intersected classes"},
      {[](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["pattern"] = 3; },
       "pretokenizers[1].pattern is 3"},
      {[](Json& j) { j["pre_tokenizer"] = nullptr; }, "pre_tokenizer must end with its only ByteLevel"},
      {[](Json& j) { j["model"]["merges"].push_back("a zz"); }, "model.merges[2] needs the token \"zz\""},
      {[](Json& j) { j["model"]["merges"].push_back("b a"); }, "model.merges[2] needs the token \"ba\""},
      {[](Json& j) { j["model"]["merges"].push_back("ab"); }, "model.merges[2] is \"ab\", not two tokens"},
      {[](Json& j) { j["model"]["merges"].push_back({"a"}); }, "model.merges[2] has 1 parts"},
      {[](Json& j) {
         j["model"]["merges"].push_back({"a", "b", "c"});
       },
       "model.merges[2] has more than 2 parts"},
      {[](Json& j) { j["model"]["merges"].push_back(7); }, "model.merges[2] contains a number"},
      {[](Json& j) { j["model"]["merges"] = "x"; }, "model.merges is missing or not a list"},
      {[](Json& j) { j["model"]["vocab"] = 1; }, "model.vocab is missing or not an object"},
      {[](Json& j) { j["model"]["vocab"]["zz"] = 0; }, "model.vocab gives id 0 to more than one token"},
      {[](Json& j) { j["model"]["vocab"]["zz"] = -1; }, "model.vocab[\"zz\"] = -1; allowed are ids of 0 to"},
      {[](Json& j) { j["model"]["vocab"]["zz"] = 1U << 31; }, "allowed are ids of 0 to"},
      {[](Json& j) { j["model"]["vocab"]["zz"] = 18446744073709551615ULL; }, "allowed are ids of 0 to"},
      {[](Json& j) { j["model"]["vocab"]["zz"] = "5"; },
       "model.vocab[\"zz\"] is a string, not an integer id"},
      {[](Json& j) { j["model"]["vocab"]["zz"] = Json::array(); }, "model.vocab[\"zz\"] is a list"},
      {[](Json& j) { j["model"]["vocab"] = Json::object(); }, "the vocabulary is empty"},
      {[](Json& j) {
         j["added_tokens"] = {{{"id", -3}, {"content", "x"}}};
       },
       "added_tokens[0].id is -3"},
      {[](Json& j) {
         j["added_tokens"] = {{{"id", 3}, {"content", "x<>"}}};
       },
       "has id 3, which is another token's"},
      {[](Json& j) {
         j["added_tokens"] = {{{"id", 900}, {"content", ""}}};
       },
       "added_tokens[0].content is empty"},
      {[](Json& j) {
         j["added_tokens"] = {{{"id", 900}, {"content", "ab"}}};
       },
       "the same text has id"},
      {[](Json& j) {
         j["added_tokens"] = {{{"id", 900}, {"content", "q"}, {"special", 1}}};
       },
       "special is 1; allowed"},
      {[](Json& j) { j["added_tokens"] = {1}; }, "added_tokens[0].content is missing"},
      {[](Json& j) {
         j["added_tokens"] = {{{"id", 2000000000}, {"content", "x<>"}}};
       },
       "has id 2000000000; allowed"},
      {[](Json& j) { j = Json::array(); }, "not a JSON object"},
      {[](Json& j) { j.erase("model"); }, "model is missing"},
  };
  ASSERT_EQ(error_of(tiny_tokenizer_json().dump()), "");
  for (const Case& test : cases) {
    Json file = tiny_tokenizer_json();
    test.change(file);
    const std::string message = error_of(file.dump());
    EXPECT_NE(message.find(test.message), std::string::npos)
        << "got: " << message << "\nwanted: " << test.message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(TokenizerFile, SurvivesTruncationAnywhere) {
  const std::string good = tiny_tokenizer_json().dump();
  for (size_t size = 0; size < good.size(); size += 37) EXPECT_NE(error_of(good.substr(0, size)), "");
}

TEST(TokenizerFile, LimitsItsDepthAndFindsDuplicateKeys) {
  EXPECT_NE(error_of(std::string(1000000, '[')).find("nested 1000000 levels deep; at most 64 are allowed"),
            std::string::npos);
  std::string deep = R"({"a": )";
  for (int i = 0; i < 100000; ++i) deep += R"({"a": )";
  EXPECT_NE(error_of(deep).find("nested 100001 levels deep; at most 64"), std::string::npos);
  EXPECT_NE(error_of(R"({"x": 1, "y": 2, "x": 3})").find("\"x\" appears twice"), std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}, "decoder": {"type": "ByteLevel"},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})")
                .find("model.vocab has \"a\" twice"),
            std::string::npos);
}

TEST(TokenizerFile, ChecksTheConfigToo) {
  const std::string file = tiny_tokenizer_json().dump();
  EXPECT_NE(error_of(file, "{").find("tokenizer_config.json: is not valid JSON"), std::string::npos);
  EXPECT_NE(error_of(file, R"({"add_bos_token": 1})").find("add_bos_token is 1"), std::string::npos);
  EXPECT_NE(error_of(file, R"({"add_bos_token": true})").find("there is no bos_token"), std::string::npos);
  EXPECT_NE(error_of(file, R"({"bos_token": "<nope>"})").find("\"<nope>\", which is not in the vocabulary"),
            std::string::npos);
  EXPECT_NE(error_of(file, R"({"chat_template": 3})").find("chat_template is 3"), std::string::npos);
}

TEST(TokenizerFile, NamesTheDirectoryThatHasNoTokenizer) {
  const auto missing = Tokenizer::load("/nonexistent-directory");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code, StatusCode::kNotFound);
  EXPECT_NE(missing.status().message.find("/nonexistent-directory"), std::string::npos);
}

}  // namespace
}  // namespace hadal
