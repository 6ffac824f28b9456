// Tests how questions with exact answers are read, and how answers are compared with them.
#include "client/eval_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace hadal::client {
namespace {

using testing::HasSubstr;

TEST(EvalSet, TheAnswerFollowsTheReasoning) {
  EXPECT_EQ(extract_answer("1+1 is 2</think> 2\n", true), "2");
  EXPECT_EQ(extract_answer(" 2 ", false), "2");
  EXPECT_EQ(extract_answer("2", true), "") << "never stopped thinking";
}

TEST(EvalSet, ComparesTextOrParsedJson) {
  EvalQuestion question{.task = "t", .answer = R"({"a": 1, "b": [2]})"};
  EXPECT_FALSE(is_correct(question, R"({"b": [2], "a": 1})"));
  question.compare = Compare::kJson;
  EXPECT_TRUE(is_correct(question, R"({"b":[2],"a":1})"));
  EXPECT_FALSE(is_correct(question, R"({"b":[2],"a":2})"));
  EXPECT_FALSE(is_correct(question, "{"));
  question.answer = "not json";
  EXPECT_FALSE(is_correct(question, "also not json"));
}

TEST(EvalSet, QuestionsAreCheckedLineByLine) {
  const std::string good =
      R"({"task": "add", "messages": [{"role": "user", "content": "1+1"}], "thinking": true, "answer": "2"})";
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / fmt::format("hadal_eval_set_{}", ::getpid());
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "good.jsonl") << good + "\n\n" + good + "\n" + good;
  const auto questions = load_questions((dir / "good.jsonl").string(), 2);
  ASSERT_TRUE(questions.ok()) << questions.status().message;
  ASSERT_EQ(questions->size(), 2U);
  EXPECT_TRUE((*questions)[0].thinking);
  EXPECT_EQ((*questions)[1].messages[0].content, "1+1");
  for (const char* bad : {"{", "[]", R"({"task": "add", "answer": "2", "messages": []})",
                          R"({"task": "add", "answer": 2, "messages": [{"role": "user", "content": ""}]})"}) {
    std::ofstream(dir / "bad.jsonl") << good + "\n" + bad;
    const auto result = load_questions((dir / "bad.jsonl").string(), 9);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_THAT(result.status().message, HasSubstr("bad.jsonl:2"));
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace hadal::client
