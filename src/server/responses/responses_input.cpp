#include "server/responses/responses_input.h"

#include <utility>

#include <boost/json.hpp>

namespace hadal::server {
namespace json = boost::json;
namespace {

// Reads the list of texts in `field` if the field is present.
std::string texts_of(FieldReader& item, std::string_view field,
                     std::initializer_list<std::string_view> types) {
  const json::value* value = item.find(field);
  if (value == nullptr || !item.ok()) return {};
  return read_block_texts(item, field, *value, types);
}

class InputReader {
 public:
  explicit InputReader(ChatMessages& out) : out_(out) {}

  void read(FieldReader& item, const std::string& place) {
    std::string type = item.has("role") ? "message" : "";
    if (type.empty() && !item.has("type"))
      item.fail("type", "is missing; must be message, function_call or another");
    item.choice("type", type, {"message", "function_call", "function_call_output", "reasoning"});
    if (!item.ok()) return;
    if (type == "message") {
      message(item, place);
    } else if (type == "function_call") {
      call(item, turn(place, false));
    } else if (type == "function_call_output") {
      output(item, place);
    } else {
      reasoning(item, place);
    }
  }

 private:
  // Returns the assistant's message to which an item belongs: the open one, unless the item begins a new one.
  ChatMessage& turn(const std::string& place, bool begins) {
    if (!std::exchange(in_turn_, true) || begins) return out_.add("assistant", place);
    return out_.list.back();
  }

  bool has_said() const {
    return in_turn_ && (!out_.list.back().content.empty() || !out_.list.back().tool_calls.empty());
  }

  void message(FieldReader& item, const std::string& place) {
    std::string role;
    if (!item.has("role")) item.fail("role", "is missing; must be user, assistant, system or developer");
    item.choice("role", role, {"user", "assistant", "system", "developer"});
    if (!item.has("content")) item.fail("content", "is missing; must be a string or a list of parts");
    std::string text = texts_of(item, "content", {"input_text", "output_text"});
    if (!item.ok()) return;
    if (role == "assistant") {
      turn(place, has_said()).content = std::move(text);
    } else {
      in_turn_ = false;
      out_.add(role, place).content = std::move(text);
    }
  }

  static void call(FieldReader& item, ChatMessage& out) {
    ToolCall call;
    call.id = item.required_text("call_id");
    call.name = item.required_text("name");
    call.arguments = item.required_text("arguments");
    if (call.arguments.empty()) call.arguments = "{}";
    out.tool_calls.push_back(std::move(call));
  }

  void output(FieldReader& item, const std::string& place) {
    in_turn_ = false;
    ChatMessage& out = out_.add("tool", place);
    out.tool_call_id = item.required_text("call_id");
    if (!item.has("output")) item.fail("output", "is missing; must be a string or a list of parts");
    out.content = texts_of(item, "output", {"input_text", "output_text"});
  }

  // An item without content has only its summary.
  void reasoning(FieldReader& item, const std::string& place) {
    std::string text = texts_of(item, "content", {"reasoning_text"});
    const std::string summary = texts_of(item, "summary", {"summary_text"});
    if (text.empty()) text = summary;
    const bool begins = has_said() || (in_turn_ && !out_.list.back().reasoning_content.empty());
    turn(place, begins).reasoning_content = std::move(text);
  }

  ChatMessages& out_;
  bool in_turn_ = false;  // the last message is the assistant's, and further items may still belong to it
};

void read_responses_tool(FieldReader& reader, size_t i, const json::value& value, ToolList& tools) {
  const std::string name = fmt::format("tools[{}]", i);
  const json::object* object = value.if_object();
  if (object == nullptr)
    return reader.must_be(name, value, "{\"type\": \"function\", \"name\", \"parameters\"}");
  FieldReader tool(*object, name + ".");
  std::string type;
  tool.text("type", type);
  if (tool.ok() && type != "function")
    tool.must_be("type", json::value(type), "function: the server has no tools of its own");
  tools.read(tool, "parameters", false);
  reader.adopt(tool);
}

void read_responses_tool_choice(FieldReader& reader, ToolFields& tools) {
  const json::value* value = reader.find("tool_choice");
  if (value == nullptr || !reader.ok()) return;
  constexpr std::string_view kAllowed = "none, auto, required or {\"type\": \"function\", \"name\"}";
  if (const json::string* word = value->if_string()) {
    if (*word == "none") {
      tools.choice = ToolFields::Choice::kNone;
      tools.tools_json.clear();
    } else if (*word == "required") {
      if (tools.names.empty()) reader.fail("tool_choice", "is \"required\", but there are no tools");
      tools.choice = ToolFields::Choice::kRequired;
    } else if (*word != "auto") {
      reader.must_be("tool_choice", *value, kAllowed);
    }
    return;
  }
  const json::object* object = value->if_object();
  const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
  if (type == nullptr || *type != json::value("function"))
    return reader.must_be("tool_choice", *value, kAllowed);
  FieldReader choice(*object, "tool_choice.");
  std::string name = choice.required_text("name");
  if (choice.ok()) choose_function(choice, "name", std::move(name), tools);
  reader.adopt(choice);
}

}  // namespace

void read_responses_input(FieldReader& reader, ChatMessages& messages) {
  if (!reader.ok()) return;
  const json::value* value = reader.find("input");
  if (value == nullptr) return reader.fail("input", "is missing; must be a string or a list of items");
  if (const json::string* text = value->if_string()) {
    messages.add("user", "input").content.assign(text->data(), text->size());
    return;
  }
  const json::array* items = value->if_array();
  if (items == nullptr) return reader.must_be("input", *value, "a string or a list of items");
  if (items->empty()) return reader.fail("input", "is empty; must be one item or more");
  InputReader input(messages);
  for (size_t i = 0; i < items->size() && reader.ok(); ++i) {
    const std::string place = fmt::format("input[{}]", i);
    const json::object* object = (*items)[i].if_object();
    if (object == nullptr) return reader.must_be(place, (*items)[i], "an object with a type or a role");
    FieldReader item(*object, place + ".");
    input.read(item, place);
    reader.adopt(item);
  }
}

void read_responses_tools(FieldReader& reader, ToolFields& tools) {
  reader.boolean("parallel_tool_calls", tools.parallel);
  if (const json::array* entries = tool_entries(reader)) {
    ToolList list;
    for (size_t i = 0; i < entries->size() && reader.ok(); ++i)
      read_responses_tool(reader, i, (*entries)[i], list);
    list.move_to(tools);
  }
  read_responses_tool_choice(reader, tools);
}

}  // namespace hadal::server
