#include "client/eval_questions.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <random>

#include <boost/json.hpp>

#include "base/mapped_file.h"
#include "client/bench_text.h"
#include "client/text_lines.h"

namespace hadal::client {
namespace {

namespace json = boost::json;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

// Calls `take` with the object of every line that is not blank, and with "file:line".
Result<void> for_each_line(const std::string& path,
                           const std::function<Result<void>(const json::object&, const std::string&)>& take) {
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  const std::vector<TextLine> lines = lines_of(text);
  for (const TextLine& line : lines) {
    const std::string where = fmt::format("{}:{}", path, line.number);
    json::error_code error;
    const json::value parsed = json::parse(line.text, error);
    if (error || !parsed.is_object()) return data_loss("{}: is not a JSON object", where);
    HADAL_RETURN_IF_ERROR(take(parsed.as_object(), where));
  }
  if (lines.empty()) return data_loss("{}: contains no questions", path);
  return {};
}

const std::string* text_in(const json::value* value, std::string& hold) {
  if (value == nullptr || !value->is_string()) return nullptr;
  hold = value->as_string().c_str();
  return &hold;
}

Result<std::string> text_field(const json::object& object, std::initializer_list<const char*> names,
                               const std::string& where) {
  std::string hold;
  for (const char* name : names) {
    if (text_in(object.if_contains(name), hold) != nullptr) return hold;
  }
  return data_loss("{}: {} is missing or not a string", where, *names.begin());
}

Result<std::vector<std::string>> text_list(const json::value& value, const char* name,
                                           const std::string& where) {
  std::vector<std::string> out;
  std::string hold;
  if (!value.is_array()) return data_loss("{}: {} must be a list of strings", where, name);
  for (const json::value& item : value.as_array()) {
    if (text_in(&item, hold) == nullptr)
      return data_loss("{}: {} must be a list of strings, but item {} is not a string", where, name,
                       out.size() + 1);
    out.push_back(hold);
  }
  return out;
}

// Returns the index that "answer" gives as a number, a letter, or the text of a choice.
Result<int> answer_index(const json::object& object, const std::vector<std::string>& options,
                         const std::string& where) {
  const json::value* answer = object.if_contains("answer");
  if (answer != nullptr && answer->is_int64() && answer->as_int64() >= 0 &&
      answer->as_int64() < static_cast<int64_t>(options.size())) {
    return static_cast<int>(answer->as_int64());
  }
  std::string text;
  if (text_in(answer, text) != nullptr) {
    const auto same = std::find(options.begin(), options.end(), text);
    if (same != options.end()) return static_cast<int>(same - options.begin());
    const int letter = text.size() == 1 ? std::toupper(static_cast<unsigned char>(text[0])) - 'A' : -1;
    if (letter >= 0 && letter < static_cast<int>(options.size())) return letter;
  }
  return data_loss("{}: answer must be a letter or an index of choices", where);
}

Result<ChoiceQuestion> parse_choice(const json::object& object, const std::string& where) {
  ChoiceQuestion out;
  HADAL_ASSIGN_OR_RETURN(out.question, text_field(object, {"question", "Question"}, where));
  if (const json::value* choices = object.if_contains("choices")) {
    HADAL_ASSIGN_OR_RETURN(out.options, text_list(*choices, "choices", where));
    HADAL_ASSIGN_OR_RETURN(out.correct, answer_index(object, out.options, where));
  } else {
    HADAL_ASSIGN_OR_RETURN(const std::string correct,
                           text_field(object, {"correct_answer", "Correct Answer"}, where));
    out.options.push_back(correct);
    if (const json::value* wrong = object.if_contains("incorrect_answers")) {
      HADAL_ASSIGN_OR_RETURN(const auto others, text_list(*wrong, "incorrect_answers", where));
      out.options.insert(out.options.end(), others.begin(), others.end());
    } else {
      std::string hold;
      for (int i = 1; text_in(object.if_contains(fmt::format("Incorrect Answer {}", i)), hold); ++i) {
        out.options.push_back(hold);
      }
    }
  }
  constexpr size_t kLetters = 26;
  if (out.options.size() < 2 || out.options.size() > kLetters) {
    return data_loss("{}: has {} options; must have 2 to {}", where, out.options.size(), kLetters);
  }
  return out;
}

}  // namespace

Result<std::vector<NumericQuestion>> load_numeric(const std::string& path) {
  std::vector<NumericQuestion> questions;
  HADAL_RETURN_IF_ERROR(
      for_each_line(path, [&](const json::object& object, const std::string& where) -> Result<void> {
        NumericQuestion one;
        HADAL_ASSIGN_OR_RETURN(one.question, text_field(object, {"question"}, where));
        HADAL_ASSIGN_OR_RETURN(one.answer, text_field(object, {"answer"}, where));
        const size_t mark = one.answer.rfind("####");
        const auto value = last_number(mark == std::string::npos ? std::string_view()
                                                                 : std::string_view(one.answer).substr(mark));
        if (!value) return data_loss("{}: answer must end in \"#### NUMBER\"", where);
        one.value = *value;
        questions.push_back(std::move(one));
        return {};
      }));
  return questions;
}

std::string numeric_prompt(std::span<const NumericQuestion> shots, const NumericQuestion& question) {
  std::string out;
  for (const NumericQuestion& shot : shots) {
    out += fmt::format("Question: {}\nAnswer: {}\n\n", shot.question, shot.answer);
  }
  return out + fmt::format("Question: {}\nAnswer:", question.question);
}

std::optional<double> last_number(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  // Moves `begin` back over digits, and over commas and at most one point between digits.
  size_t begin = end - 1;
  bool has_point = false;
  while (begin > 0) {
    const char c = text[begin - 1];
    const bool joins = (c == ',' || (c == '.' && !has_point)) && begin > 1 && is_digit(text[begin - 2]);
    if (!is_digit(c) && !joins) break;
    has_point = has_point || c == '.';
    --begin;
  }
  std::string digits;
  for (const char c : text.substr(begin, end - begin)) {
    if (c != ',') digits += c;
  }
  // A dash is a minus sign unless a number, a word or a parenthesis precedes it, because then it may be a
  // subtraction.
  const bool negative =
      begin > 0 && text[begin - 1] == '-' &&
      (begin == 1 || (!is_digit(text[begin - 2]) && !is_letter(text[begin - 2]) && text[begin - 2] != ')'));
  double value = 0.0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return negative ? -value : value;
}

Result<std::vector<ChoiceQuestion>> load_choices(const std::string& path) {
  std::vector<ChoiceQuestion> questions;
  HADAL_RETURN_IF_ERROR(
      for_each_line(path, [&](const json::object& object, const std::string& where) -> Result<void> {
        HADAL_ASSIGN_OR_RETURN(ChoiceQuestion one, parse_choice(object, where));
        questions.push_back(std::move(one));
        return {};
      }));
  return questions;
}

ChoiceQuestion shuffled(const ChoiceQuestion& question, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> order(question.options.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  shuffle_by(random, order);
  ChoiceQuestion out{.question = question.question, .options = {}, .correct = 0};
  for (const int from : order) {
    if (from == question.correct) out.correct = static_cast<int>(out.options.size());
    out.options.push_back(question.options[static_cast<size_t>(from)]);
  }
  return out;
}

std::string choice_prompt(const ChoiceQuestion& question) {
  const char last = static_cast<char>('A' + question.options.size() - 1);
  std::string out = fmt::format("{}\n\n", question.question);
  for (size_t i = 0; i < question.options.size(); ++i) {
    out += fmt::format("{}) {}\n", static_cast<char>('A' + i), question.options[i]);
  }
  return out +
         fmt::format(
             "\nExactly one of the options A to {0} is right. Reason as long as you need, then end with "
             "a line of its own that reads \"Answer: X\", where X is a letter from A to {0}.",
             last);
}

std::optional<int> chosen_option(std::string_view answer, int num_options) {
  const auto option_of = [num_options](char letter) -> std::optional<int> {
    const int index = std::toupper(static_cast<unsigned char>(letter)) - 'A';
    return index >= 0 && index < num_options ? std::optional(index) : std::nullopt;
  };
  std::string lower;
  for (const char c : answer) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (size_t at = lower.rfind("answer"); at != std::string::npos;
       at = at == 0 ? std::string::npos : lower.rfind("answer", at - 1)) {
    // Looks for a letter that stands alone, after punctuation and "is", on the same line.
    size_t from = at + 6;
    while (from < answer.size() && answer[from] != '\n' && !is_letter(answer[from])) ++from;
    if (lower.compare(from, 3, "is ") == 0 || lower.compare(from, 3, "is:") == 0) {
      from += 3;
      while (from < answer.size() && answer[from] != '\n' && !is_letter(answer[from])) ++from;
    }
    if (from >= answer.size() || answer[from] == '\n') continue;
    const bool alone =
        from + 1 == answer.size() || !std::isalnum(static_cast<unsigned char>(answer[from + 1]));
    if (alone && option_of(answer[from])) return option_of(answer[from]);
  }
  const size_t begin = answer.find_first_not_of(" \t\r\n(*");
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view rest = answer.substr(begin);
  const bool one_letter = rest.substr(1).find_first_not_of(" \t\r\n).*") == std::string_view::npos;
  return one_letter ? option_of(rest[0]) : std::nullopt;
}

}  // namespace hadal::client
