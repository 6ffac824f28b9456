#include "server/anthropic/anthropic_messages.h"

#include <utility>

#include <boost/json.hpp>

namespace hadal::server {
namespace json = boost::json;
namespace {

// Turn is one entry of `messages`.
struct Turn {
  FieldReader& fields;
  const std::string& place;  // "messages[2]"
  ChatMessages& out;
};

// Calls read(block, type) for each block of the turn's content, until there is an error.
template <typename Read>
void for_each_block(Turn& turn, const json::array& blocks, Read read) {
  for (size_t i = 0; i < blocks.size() && turn.fields.ok(); ++i) {
    const std::string name = fmt::format("content[{}]", i);
    const json::object* object = blocks[i].if_object();
    if (object == nullptr) return turn.fields.must_be(name, blocks[i], "an object with a type");
    FieldReader block(*object, turn.fields.prefix() + name + ".");
    std::string type;
    block.text("type", type);
    if (block.ok()) read(block, type);
    turn.fields.adopt(block);
  }
}

void read_tool_result(FieldReader& block, ChatMessage& out) {
  out.tool_call_id = block.required_text("tool_use_id");
  bool is_error = false;
  block.boolean("is_error", is_error);
  // No chat format has a field for errors, so the text tells the model.
  if (is_error) out.content = "Error: ";
  if (const json::value* content = block.find("content"); content != nullptr && block.ok())
    out.content += read_block_texts(block, "content", *content, {"text"});
}

void read_user(Turn& turn, const json::array& blocks, std::string_view role) {
  ChatMessage* open = nullptr;  // the message for texts since the last result
  for_each_block(turn, blocks, [&](FieldReader& block, const std::string& type) {
    if (type == "text") {
      const bool is_new = open == nullptr;
      if (is_new) open = &turn.out.add(role, turn.place);
      if (!is_new) open->content += '\n';
      open->content += block.required_text("text");
    } else if (type == "tool_result" && role == "user") {
      open = nullptr;
      read_tool_result(block, turn.out.add("tool", turn.place));
    } else {
      block.must_be("type", role == "user" ? "text or tool_result: the models read text only" : "text");
    }
  });
}

void read_tool_use(FieldReader& block, ChatMessage& out) {
  ToolCall call;
  call.id = block.required_text("id");
  call.name = block.required_text("name");
  const json::value* input = block.find("input");
  if (input != nullptr && !input->is_object()) block.must_be("input", *input, "an object");
  if (!block.ok()) return;
  call.arguments = input == nullptr ? "{}" : json::serialize(*input);
  out.tool_calls.push_back(std::move(call));
}

void read_assistant(Turn& turn, const json::array& blocks) {
  ChatMessage& out = turn.out.add("assistant", turn.place);
  for_each_block(turn, blocks, [&](FieldReader& block, const std::string& type) {
    if (type == "text") {
      out.content += block.required_text("text");
    } else if (type == "thinking") {
      out.reasoning_content += block.required_text("thinking");
    } else if (type == "tool_use") {
      read_tool_use(block, out);
    } else if (type != "redacted_thinking") {
      block.must_be("type", "text, thinking, redacted_thinking or tool_use");
    }
  });
}

void read_turn(Turn& turn) {
  std::string role;
  if (!turn.fields.has("role")) turn.fields.fail("role", "is missing; must be user or assistant");
  turn.fields.choice("role", role, {"user", "assistant", "system"});
  const json::value* content = turn.fields.find("content");
  constexpr std::string_view kAllowed = "a string or a list of blocks";
  if (!turn.fields.ok()) return;
  if (content == nullptr) return turn.fields.fail("content", fmt::format("is missing; must be {}", kAllowed));
  if (const json::string* text = content->if_string()) {
    turn.out.add(role, turn.place).content.assign(text->data(), text->size());
    return;
  }
  const json::array* blocks = content->if_array();
  if (blocks == nullptr) return turn.fields.must_be("content", *content, kAllowed);
  if (role == "assistant") return read_assistant(turn, *blocks);
  if (blocks->empty()) return turn.fields.fail("content", "is empty; must have one block or more");
  read_user(turn, *blocks, role);
}

void read_anthropic_tool(FieldReader& reader, size_t i, const json::value& value, ToolList& tools) {
  const std::string name = fmt::format("tools[{}]", i);
  const json::object* object = value.if_object();
  if (object == nullptr) return reader.must_be(name, value, "{\"name\", \"description\", \"input_schema\"}");
  FieldReader tool(*object, name + ".");
  std::string type = "custom";
  tool.text("type", type);
  if (tool.ok() && type != "custom")
    tool.must_be("type", json::value(type), "custom: the server has no tools of its own");
  tools.read(tool, "input_schema", true);
  reader.adopt(tool);
}

void read_anthropic_tool_choice(FieldReader& reader, ToolFields& tools) {
  const json::value* value = reader.find("tool_choice");
  if (value == nullptr || !reader.ok()) return;
  constexpr std::string_view kAllowed = "an object whose type is auto, any, tool or none";
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("tool_choice", *value, kAllowed);
  FieldReader choice(*object, "tool_choice.");
  std::string type;
  bool disable_parallel = false;
  if (!choice.has("type")) choice.fail("type", "is missing; must be auto, any, tool or none");
  choice.choice("type", type, {"auto", "any", "tool", "none"});
  choice.boolean("disable_parallel_tool_use", disable_parallel);
  tools.parallel = !disable_parallel;
  if (type == "any") {
    if (tools.names.empty()) choice.fail("type", "is \"any\", but there are no tools");
    tools.choice = ToolFields::Choice::kRequired;
  } else if (type == "tool") {
    std::string name;
    if (!choice.has("name")) choice.fail("name", "is missing; must be the name of a tool");
    choice.text("name", name);
    choose_function(choice, "name", std::move(name), tools);
  } else if (type == "none") {
    tools.choice = ToolFields::Choice::kNone;
    tools.tools_json.clear();
  }
  reader.adopt(choice);
}

}  // namespace

void read_anthropic_messages(FieldReader& reader, ChatMessages& messages) {
  if (const json::value* system = reader.find("system"); system != nullptr && reader.ok())
    messages.add("system", "system").content = read_block_texts(reader, "system", *system, {"text"});
  if (!reader.ok()) return;
  const json::value* value = reader.find("messages");
  if (value == nullptr) return reader.fail("messages", "is missing; must be a list of messages");
  const json::array* list = value->if_array();
  if (list == nullptr) return reader.must_be("messages", *value, "a list of messages");
  if (list->empty()) return reader.fail("messages", "is empty; must be one message or more");
  for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    const json::object* object = (*list)[i].if_object();
    if (object == nullptr) return reader.must_be(place, (*list)[i], "an object with role and content");
    FieldReader fields(*object, place + ".");
    Turn turn{.fields = fields, .place = place, .out = messages};
    read_turn(turn);
    reader.adopt(fields);
  }
}

void read_anthropic_tools(FieldReader& reader, ToolFields& tools) {
  if (const json::array* entries = tool_entries(reader)) {
    ToolList list;
    for (size_t i = 0; i < entries->size() && reader.ok(); ++i)
      read_anthropic_tool(reader, i, (*entries)[i], list);
    list.move_to(tools);
  }
  read_anthropic_tool_choice(reader, tools);
}

}  // namespace hadal::server
