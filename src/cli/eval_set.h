// Questions with exact answers: one JSON object a line, {"task", "messages": [{"role", "content"}],
// "thinking", "answer", "compare"?}. Pure functions but for reading the file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"

namespace hadal::cli {

enum class Compare { kText, kJson };

struct EvalQuestion {
  std::string task;
  std::vector<ChatMessage> messages;
  bool thinking = false;
  std::string answer;
  Compare compare = Compare::kText;
};

// At most `limit` questions of the file. Errors name file, line and field.
Result<std::vector<EvalQuestion>> load_questions(const std::string& path, int64_t limit);

// The answer inside an output: what follows </think>, without white space around it. An output that began
// in reasoning and never left it has none.
std::string_view extract_answer(std::string_view output, bool starts_in_reasoning);

// Equal as text, or as parsed JSON values.
bool is_correct(const EvalQuestion& question, std::string_view answer);

}  // namespace hadal::cli
