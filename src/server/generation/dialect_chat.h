// Holds code that the dialects other than OpenAI's chat share. It turns tools into the form of chat, and
// errors about that form into the client's words. The functions are pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/fwd.hpp>

#include "server/json/json_fields.h"
#include "server/native/native_request.h"
#include "server/openai/openai_messages.h"
#include "server/openai/openai_request.h"

namespace hadal::server {

// ChatMessages are the messages of a conversation, with the place of each in the client's body.
struct ChatMessages {
  std::vector<ChatMessage> list;
  std::vector<std::string> places;  // "system", "messages[2]", "input[0]"

  // Appends an empty message.
  ChatMessage& add(std::string_view role, std::string place);
};

// ErrorNames translate what make_chat() reports.
struct ErrorNames {
  std::string_view messages = "messages";                            // the client's field of the conversation
  std::vector<std::string> places;                                   // what messages[i] is for the client
  std::vector<std::pair<std::string_view, std::string_view>> words;  // other names: ours and the client's
};
FieldError renamed(FieldError error, const ErrorNames& names);

// ToolList collects functions in the form of chat's `tools`.
class ToolList {
 public:
  // Reads the fields name, description, `schema_field` (a JSON schema) and strict of one tool.
  void read(FieldReader& tool, std::string_view schema_field, bool schema_is_required);
  // Adds the tools to `out`, which then has the choice kAuto, if there are any.
  void move_to(ToolFields& out);

 private:
  std::string json_ = "[";
  std::vector<std::string> names_;
  std::vector<std::string> strict_;
};

// Returns the list in field `tools`, null if there is none. More than kMaxTools entries are an error.
const boost::json::array* tool_entries(FieldReader& reader);

// Sets the choice of the one function `name`, which must be among the tools. `field` is the client's field
// for it.
void choose_function(FieldReader& reader, std::string_view field, std::string name, ToolFields& tools);

// Reads the texts of `value`, a string or a list of objects {"type", "text"} whose type is in `types`, joined
// by line breaks. Errors call it `name`.
std::string read_block_texts(FieldReader& reader, std::string_view name, const boost::json::value& value,
                             std::initializer_list<std::string_view> types);

// Reads the schema of structured output in `field` of `format`. `place` is its full name in later errors.
std::shared_ptr<const GrammarSpec> read_output_schema(FieldReader& format, std::string_view field,
                                                      std::string place);

// Refuses several choices, because an answer of these dialects has only one.
void need_one_choice(FieldReader& reader, const OpenAiFields& fields);

}  // namespace hadal::server
