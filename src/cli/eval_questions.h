// Few-shot arithmetic and multiple choice: the questions of local files, as prompts, and the answers read
// from what a model wrote. Pure functions but for reading the files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::cli {

struct NumericQuestion {
  std::string question;
  std::string answer;  // the worked solution, as a few-shot example shows it
  double value = 0.0;  // what stands after "####"
};
// One JSON object a line: question, answer ("… #### 42"). Errors name file, line and field.
Result<std::vector<NumericQuestion>> load_numeric(const std::string& path);

// The solved examples, then the question and "Answer:", to be continued.
std::string numeric_prompt(std::span<const NumericQuestion> shots, const NumericQuestion& question);

// The last number of a text ("1,234.50" is one number); nullopt without one.
std::optional<double> last_number(std::string_view text);

struct ChoiceQuestion {
  std::string question;
  std::vector<std::string> options;
  int correct = 0;  // index of options
};
// One JSON object a line, in one of these forms: question, correct_answer, incorrect_answers (a list);
// "Question", "Correct Answer", "Incorrect Answer 1", …; question, choices (a list), answer (a letter or an
// index from 0). Errors name file, line and field.
Result<std::vector<ChoiceQuestion>> load_choices(const std::string& path);

// The options in an order that depends on nothing but `seed`.
ChoiceQuestion shuffled(const ChoiceQuestion& question, uint64_t seed);

// The message that asks for a last line "Answer: X".
std::string choice_prompt(const ChoiceQuestion& question);

// The option that an answer names: the letter after the last "Answer", or the whole answer when that is one
// letter; nullopt when there is none below num_options.
std::optional<int> chosen_option(std::string_view answer, int num_options);

}  // namespace hadal::cli
