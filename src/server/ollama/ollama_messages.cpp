#include "server/ollama/ollama_messages.h"

#include <boost/json.hpp>

#include "server/openai/openai_messages.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

void read_ollama_message(FieldReader& message, ChatMessage& out) {
  if (!message.has("role")) message.fail("role", "is missing; must be system, user, assistant or tool");
  message.choice("role", out.role, {"system", "user", "assistant", "tool"});
  refuse_ollama_images(message, "images");
  message.text("content", out.content);
  message.text("thinking", out.reasoning_content);
  message.text("tool_call_id", out.tool_call_id);
  std::string name;  // of a tool message's function; no format of the family shows it
  message.text("tool_name", name);
  read_tool_calls(message, {.shape = "{\"function\": {\"name\", \"arguments\"}}"}, out);
}

}  // namespace

void refuse_ollama_images(FieldReader& reader, std::string_view name) {
  const json::value* value = reader.find(name);
  if (value == nullptr || !reader.ok()) return;
  if (!value->is_array()) return reader.must_be(name, *value, "a list");
  if (!value->get_array().empty()) {
    reader.refuse(name, unsupported("{}{}: {}", reader.prefix(), name, kTextOnly));
  }
}

void read_ollama_messages(FieldReader& reader, std::vector<ChatMessage>& messages) {
  const json::value* value = reader.find("messages");
  if (value == nullptr || !reader.ok()) return;
  const json::array* list = value->if_array();
  if (list == nullptr) return reader.must_be("messages", *value, "a list of messages");
  for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
    const json::object* object = (*list)[i].if_object();
    if (object == nullptr) {
      return reader.must_be(fmt::format("messages[{}]", i), (*list)[i], "an object with role and content");
    }
    FieldReader message(*object, fmt::format("messages[{}].", i));
    read_ollama_message(message, messages.emplace_back());
    reader.adopt(message);
  }
}

}  // namespace hadal::server
