// Holds a conversation of `hadal chat`, and writes and reads it as JSON. Plain data; the functions are pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat/chat_template.h"

namespace hadal::cli {

struct Transcript {
  std::string system;  // empty: none
  bool thinking = false;
  std::vector<ChatMessage> turns;  // the user's and the assistant's in turn, beginning with the user's

  // Returns the messages from which a prompt is made.
  std::vector<ChatMessage> messages() const;
  // Returns the user's last message, or null if there is none.
  ChatMessage* last_question();
  // Drops the answer to the user's last message, if there is one.
  void drop_answer();
};

// Returns {"messages": [{"role", "content"}, …], "thinking": …}, in the form of OpenAI's requests.
std::string transcript_json(const Transcript& transcript);

// Reads the form that transcript_json writes. The errors (kDataLoss) name `source`, the field, its value and
// what is allowed.
Result<Transcript> parse_transcript(std::string_view text, std::string_view source);

}  // namespace hadal::cli
