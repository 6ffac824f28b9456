#include "client/eval_set.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "client/text_lines.h"

namespace hadal::client {
namespace {

using Json = nlohmann::json;

Result<std::string> string_field(const Json& object, const char* name, const std::string& where) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_string())
    return data_loss("{}: {} is missing or not a string", where, name);
  return at->get<std::string>();
}

Result<EvalQuestion> parse_question(std::string_view line, const std::string& where) {
  const Json object = Json::parse(line, nullptr, false);
  if (!object.is_object()) return data_loss("{}: is not a JSON object", where);
  EvalQuestion question;
  HADAL_ASSIGN_OR_RETURN(question.task, string_field(object, "task", where));
  HADAL_ASSIGN_OR_RETURN(question.answer, string_field(object, "answer", where));
  const auto messages = object.find("messages");
  if (messages == object.end() || !messages->is_array() || messages->empty()) {
    return data_loss("{}: messages is missing or not a list", where);
  }
  for (const Json& message : *messages) {
    if (!message.is_object()) return data_loss("{}: a message is not an object", where);
    ChatMessage parsed;
    HADAL_ASSIGN_OR_RETURN(parsed.role, string_field(message, "role", where));
    HADAL_ASSIGN_OR_RETURN(parsed.content, string_field(message, "content", where));
    question.messages.push_back(std::move(parsed));
  }
  if (const auto thinking = object.find("thinking"); thinking != object.end()) {
    if (!thinking->is_boolean())
      return data_loss("{}: thinking is {}; must be true or false", where, thinking->dump());
    question.thinking = thinking->get<bool>();
  }
  if (const auto compare = object.find("compare"); compare != object.end()) {
    if (*compare == "json") {
      question.compare = Compare::kJson;
    } else if (*compare != "text") {
      return data_loss("{}: compare is {}; must be \"text\" or \"json\"", where, compare->dump());
    }
  }
  return question;
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

Result<std::vector<EvalQuestion>> load_questions(const std::string& path, int64_t limit) {
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  std::vector<EvalQuestion> questions;
  for (const TextLine& line : lines_of(text)) {
    if (static_cast<int64_t>(questions.size()) >= limit) break;
    HADAL_ASSIGN_OR_RETURN(EvalQuestion question,
                           parse_question(line.text, fmt::format("{}:{}", path, line.number)));
    questions.push_back(std::move(question));
  }
  if (questions.empty()) return data_loss("{}: contains no questions", path);
  return questions;
}

std::string_view extract_answer(std::string_view output, bool starts_in_reasoning) {
  constexpr std::string_view kEndThink = "</think>";
  const size_t end = output.rfind(kEndThink);
  if (end != std::string_view::npos) return stripped(output.substr(end + kEndThink.size()));
  return starts_in_reasoning ? std::string_view() : stripped(output);
}

bool is_correct(const EvalQuestion& question, std::string_view answer) {
  if (question.compare == Compare::kText) return answer == stripped(question.answer);
  const Json expected = Json::parse(question.answer, nullptr, false);
  const Json given = Json::parse(answer, nullptr, false);
  return !given.is_discarded() && given == expected;
}

}  // namespace hadal::client
