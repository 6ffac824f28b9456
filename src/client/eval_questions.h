// Implements few-shot arithmetic and multiple choice: reads questions from local files, makes prompts of
// them, and finds the answers in a model's output. The functions are pure, except for those that read files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::client {

struct NumericQuestion {
  std::string question;
  std::string answer;  // the worked solution, which few-shot examples show
  double value = 0.0;  // the number after "####"
};
// Reads one JSON object per line, with the fields question and answer ("… #### 42"). Errors name file, line
// and field.
Result<std::vector<NumericQuestion>> load_numeric(const std::string& path);

// Returns the solved examples, then the question and "Answer:", for the model to continue.
std::string numeric_prompt(std::span<const NumericQuestion> shots, const NumericQuestion& question);

// Returns the last number of a text ("1,234.50" is one number); nullopt if there is none.
std::optional<double> last_number(std::string_view text);

struct ChoiceQuestion {
  std::string question;
  std::vector<std::string> options;
  int correct = 0;  // index of options
};
// Reads one JSON object per line, with the fields of one of these forms: question, correct_answer and
// incorrect_answers (a list); "Question", "Correct Answer", "Incorrect Answer 1", …; question, choices (a
// list) and answer (a letter or an index from 0). Errors name file, line and field.
Result<std::vector<ChoiceQuestion>> load_choices(const std::string& path);

// Returns the question with its options in an order that depends on `seed` alone.
ChoiceQuestion shuffled(const ChoiceQuestion& question, uint64_t seed);

// Returns the message to send, which asks for a last line "Answer: X".
std::string choice_prompt(const ChoiceQuestion& question);

// Returns the option that an answer names: the letter after the last "Answer", or the whole answer if that is
// one letter; nullopt if no such letter stands for one of num_options.
std::optional<int> chosen_option(std::string_view answer, int num_options);

}  // namespace hadal::client
