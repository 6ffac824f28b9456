#include "server/ollama/ollama_messages.h"

#include <utility>

#include <boost/json.hpp>

#include "server/json/sampling_fields.h"
#include "server/openai/openai_messages.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

void read_tool_call(FieldReader& message, const std::string& prefix, size_t i, const json::value& value,
                    ChatMessage& out) {
  const std::string name = fmt::format("tool_calls[{}]", i);
  const json::object* object = value.if_object();
  const json::value* inner = object == nullptr ? nullptr : object->if_contains("function");
  const json::object* function = inner == nullptr ? nullptr : inner->if_object();
  if (function == nullptr) {
    return message.must_be(name, value, "{\"function\": {\"name\", \"arguments\"}}");
  }
  ToolCall call;
  FieldReader outer(*object, prefix + name + ".");
  outer.text("id", call.id);
  FieldReader fields(*function, prefix + name + ".function.");
  fields.text("name", call.name);
  if (fields.ok() && call.name.empty()) fields.fail("name", "is missing; must be the function's name");
  call.arguments = "{}";
  if (const json::value* arguments = fields.find("arguments"); arguments != nullptr) {
    if (!arguments->is_object()) fields.must_be("arguments", *arguments, "an object");
    call.arguments = text_or_json(*arguments);
  }
  outer.adopt(fields);
  message.adopt(outer);
  out.tool_calls.push_back(std::move(call));
}

void read_message(FieldReader& message, const std::string& prefix, ChatMessage& out) {
  if (!message.has("role")) message.fail("role", "is missing; must be system, user, assistant or tool");
  message.choice("role", out.role, {"system", "user", "assistant", "tool"});
  refuse_ollama_images(message, "images");
  message.text("content", out.content);
  message.text("thinking", out.reasoning_content);
  message.text("tool_call_id", out.tool_call_id);
  std::string name;  // of the function whose result a tool's message is, which no format of the family shows
  message.text("tool_name", name);
  const json::value* calls = message.find("tool_calls");
  if (calls == nullptr || !message.ok()) return;
  const json::array* list = calls->if_array();
  if (list == nullptr) return message.must_be("tool_calls", *calls, "a list");
  if (!list->empty() && out.role != "assistant") {
    return message.fail("tool_calls",
                        fmt::format("belong to the assistant; the role of this message is \"{}\"", out.role));
  }
  for (size_t i = 0; i < list->size() && message.ok(); ++i) {
    read_tool_call(message, prefix, i, (*list)[i], out);
  }
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
    const std::string prefix = fmt::format("messages[{}].", i);
    FieldReader message(*object, prefix);
    read_message(message, prefix, messages.emplace_back());
    reader.adopt(message);
  }
}

}  // namespace hadal::server
