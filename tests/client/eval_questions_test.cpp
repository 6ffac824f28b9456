#include "client/eval_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "client/eval_report.h"

namespace hadal::client {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

class EvalFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string& write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  std::string path_ = (std::filesystem::temp_directory_path() /
                       fmt::format("hadal_questions_{}.jsonl", static_cast<int>(::getpid())))
                          .string();
};

TEST(LastNumber, IsReadInAllUsualNotations) {
  const std::pair<const char*, double> cases[] = {{"The answer is 42.", 42},
                                                  {"1,234 apples", 1234},
                                                  {"costs $1,234.50", 1234.5},
                                                  {"from 3 to 5", 5},
                                                  {"x = -7", -7},
                                                  {"7-3", 3},
                                                  {"(5)-2", 2},
                                                  {"#### 18", 18},
                                                  {"it is 0.5", 0.5},
                                                  {"-12", -12},
                                                  {"a-12", 12},
                                                  {"5.", 5},
                                                  {"in 2024, 10%", 10},
                                                  {"3.14.15", 14.15},
                                                  {"1, 2", 2}};
  for (const auto& [text, wanted] : cases) EXPECT_EQ(last_number(text), wanted) << text;
  for (const char* text : {"", "none", "-", ",."}) EXPECT_EQ(last_number(text), std::nullopt) << text;
}

TEST(ChosenOption, IsTheLetterAfterTheLastAnswer) {
  const std::pair<const char*, int> cases[] = {
      {"Answer: B", 1},
      {"answer: (c)", 2},
      {"Thus the answer is D.", 3},
      {"**Answer:** A", 0},
      {"Answer: A\nNo, wait.\nAnswer: C", 2},
      {"The answer is: b", 1},
      {"Answer: B\nThis answer follows from the text.", 1},
      {"C", 2},
      {" (D). ", 3},
      {"\\boxed{}\nAnswer: \\textbf{}\nAnswer: $A$", 0},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(chosen_option(text, 4), wanted) << text;
  for (const char* text : {"", "Answer: E", "I do not know", "Answer:", "Bananas", "Answer: Because"}) {
    EXPECT_EQ(chosen_option(text, 4), std::nullopt) << text;
  }
}

TEST_F(EvalFile, NumericQuestionsBecomeFewShotPrompts) {
  const auto questions =
      load_numeric(write("{\"question\":\"1+1?\",\"answer\":\"One more. #### 2\"}\n\n"
                         "{\"question\":\"A thousand?\",\"answer\":\"#### 1,000\"}\n"));
  ASSERT_TRUE(questions.ok()) << questions.status().message;
  ASSERT_EQ(questions->size(), 2U);
  EXPECT_EQ((*questions)[0].value, 2);
  EXPECT_EQ((*questions)[1].value, 1000);
  EXPECT_EQ(numeric_prompt(std::span(*questions).first(1), (*questions)[1]),
            "Question: 1+1?\nAnswer: One more. #### 2\n\nQuestion: A thousand?\nAnswer:");
  EXPECT_THAT(load_numeric(write("{\"question\":\"a\",\"answer\":\"2\"}")).status().message,
              HasSubstr(".jsonl:1: answer must end in"));
  EXPECT_THAT(load_numeric(write("\n{\"answer\":\"#### 2\"}")).status().message,
              HasSubstr(":2: question is missing"));
  EXPECT_THAT(load_numeric(write("[]")).status().message, HasSubstr("not a JSON object"));
  EXPECT_THAT(load_numeric(write("\n")).status().message, HasSubstr("no questions"));
}

TEST_F(EvalFile, ChoicesComeInThreeForms) {
  const auto questions = load_choices(
      write("{\"question\":\"q\",\"correct_answer\":\"r\",\"incorrect_answers\":[\"x\",\"y\",\"z\"]}\n"
            "{\"Question\":\"q\",\"Correct Answer\":\"r\",\"Incorrect Answer 1\":\"x\",\"Incorrect Answer "
            "2\":\"y\"}\n"
            "{\"question\":\"q\",\"choices\":[\"x\",\"r\"],\"answer\":\"B\"}\n"
            "{\"question\":\"q\",\"choices\":[\"x\",\"r\"],\"answer\":1}\n"));
  ASSERT_TRUE(questions.ok()) << questions.status().message;
  ASSERT_EQ(questions->size(), 4U);
  for (const ChoiceQuestion& question : *questions) {
    EXPECT_EQ(question.options[static_cast<size_t>(question.correct)], "r");
  }
  EXPECT_EQ((*questions)[0].options.size(), 4U);
  EXPECT_EQ((*questions)[1].options.size(), 3U);
  EXPECT_THAT(
      load_choices(write("{\"question\":\"q\",\"choices\":[\"x\",\"r\"],\"answer\":\"C\"}")).status().message,
      HasSubstr("answer must be a letter"));
  EXPECT_THAT(load_choices(write("{\"question\":\"q\",\"correct_answer\":\"x\"}")).status().message,
              HasSubstr("1 options"));
}

TEST(Choices, AreShuffledBySeedAndKeepTheRightOption) {
  const ChoiceQuestion question{.question = "q", .options = {"a", "b", "c", "d"}, .correct = 2};
  std::set<int> places;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    const ChoiceQuestion other = shuffled(question, seed);
    EXPECT_THAT(other.options, UnorderedElementsAre("a", "b", "c", "d"));
    EXPECT_EQ(other.options[static_cast<size_t>(other.correct)], "c");
    EXPECT_EQ(other.options, shuffled(question, seed).options);
    places.insert(other.correct);
  }
  EXPECT_EQ(places.size(), 4U);
  EXPECT_THAT(choice_prompt(question), HasSubstr("A) a\nB) b\nC) c\nD) d\n"));
  EXPECT_EQ(chosen_option(choice_prompt(question), 4), std::nullopt) << "the question itself is no answer";
}

TEST(EvalReport, PrintsTheLinesOfSglangAndTheSpread) {
  const EvalRound first{.questions = 4, .correct = 3, .invalid = 1, .latency_s = 2.0, .output_tokens = 100};
  EvalRound second = first;
  second.correct = 1;
  EXPECT_EQ(round_report(first),
            "Accuracy: 0.750\nInvalid: 0.250\nLatency: 2.000 s\nOutput throughput: 50.000 token/s\n");
  const std::vector<EvalRound> both = {first, second};
  EXPECT_EQ(repeat_report(both),
            "Repeat: 2, mean: 0.500, std: 0.354, min: 0.250, max: 0.750\nScores: 0.750 0.250\n");
  EXPECT_EQ(repeat_report({&first, 1}), "");
  const auto parsed = nlohmann::json::parse(rounds_json("gsm8k", both));
  EXPECT_EQ(parsed["accuracy"], 0.5);
  EXPECT_EQ(parsed["rounds"].size(), 2U);
  EXPECT_EQ(parsed["rounds"][1]["accuracy"], 0.25);
}

TEST(EvalReport, HasTheAcceptLengthOfRoundsThatVerifiedDrafts) {
  const EvalRound plain{.questions = 4, .correct = 3, .latency_s = 2.0, .output_tokens = 100};
  EvalRound speculated = plain;
  speculated.accepted = {.verifications = 30, .tokens = 50};
  speculated.accepted += {.verifications = 10, .tokens = 48};
  EXPECT_THAT(round_report(speculated), HasSubstr("\nAccept length: 2.450\n"));
  const auto parsed = nlohmann::json::parse(rounds_json("gsm8k", std::vector{plain, speculated}));
  EXPECT_EQ(parsed["rounds"][0]["accept_length"], nullptr);
  EXPECT_DOUBLE_EQ(parsed["rounds"][1]["accept_length"].get<double>(), 2.45);
}

}  // namespace
}  // namespace hadal::client
