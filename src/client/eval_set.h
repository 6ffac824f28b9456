// Reads questions with exact answers. A file holds one JSON object per line: {"task", "messages": [{"role",
// "content"}], "thinking", "answer", "compare"?}. The functions are pure, except for the one that reads the
// file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat/chat_template.h"

namespace hadal::client {

enum class Compare { kText, kJson };

struct EvalQuestion {
  std::string task;
  std::vector<ChatMessage> messages;
  bool thinking = false;
  std::string answer;
  Compare compare = Compare::kText;
};

// Reads at most `limit` questions of the file. Errors name file, line and field.
Result<std::vector<EvalQuestion>> load_questions(const std::string& path, int64_t limit);

// Returns the answer in an output: the text after </think>, without white space around it. An output that
// begins in the reasoning and never ends it has no answer.
std::string_view extract_answer(std::string_view output, bool starts_in_reasoning);

// Compares `answer` with the question's answer, as text or as JSON values, as the question's "compare" says.
bool is_correct(const EvalQuestion& question, std::string_view answer);

}  // namespace hadal::client
