#include "server/openai/openai_messages.h"

#include <algorithm>
#include <utility>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/json/sampling_fields.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

// These are the types of parts that are not text. Other servers support them.
constexpr std::string_view kOtherMedia[] = {"image",       "image_url", "input_image", "audio", "audio_url",
                                            "input_audio", "video",     "video_url",   "file",  "input_file"};

// Reads one part of a content list; its text is added to the message.
void read_part(FieldReader& message, size_t i, const json::value& value, ChatMessage& out, bool& has_text) {
  const std::string name = fmt::format("content[{}]", i);
  const json::object* object = value.if_object();
  if (object == nullptr) return message.must_be(name, value, "an object with a type");
  FieldReader part(*object, message.prefix() + name + ".");
  std::string type;
  part.text("type", type);
  if (part.ok() && (type == "text" || type == "refusal")) {
    if (!part.has(type)) part.fail(type, "is missing; must be a string");
    std::string text;
    part.text(type, text);
    if (std::exchange(has_text, true)) out.content += ' ';
    out.content += text;
  } else if (part.ok() && (type == "thinking" || type == "reasoning")) {
    std::string text;
    part.text("text", text);
    part.text("thinking", text);
    out.reasoning_content += text;
  } else if (part.ok() &&
             std::find(std::begin(kOtherMedia), std::end(kOtherMedia), type) != std::end(kOtherMedia)) {
    part.refuse("type", unsupported("{}type is {}; {}", part.prefix(), shown_text(type), kTextOnly));
  } else if (part.ok()) {
    part.must_be("type", "text: the models read text only");
  }
  message.adopt(part);
}

void read_content(FieldReader& message, ChatMessage& out) {
  const json::value* value = message.find("content");
  if (!message.ok()) return;
  if (value == nullptr) {
    if (out.role == "system" || out.role == "developer" || out.role == "user") {
      message.fail("content", "is missing; must be a string or a list of parts");
    }
    return;
  }
  if (const json::string* text = value->if_string()) {
    out.content.assign(text->data(), text->size());
    return;
  }
  const json::array* parts = value->if_array();
  if (parts == nullptr) return message.must_be("content", *value, "a string or a list of parts");
  bool has_text = false;
  for (size_t i = 0; i < parts->size() && message.ok(); ++i) {
    read_part(message, i, (*parts)[i], out, has_text);
  }
}

void read_tool_call(FieldReader& message, const ToolCallForm& form, size_t i, const json::value& value,
                    ChatMessage& out) {
  const std::string name = fmt::format("tool_calls[{}]", i);
  const json::object* object = value.if_object();
  const json::value* inner = object == nullptr ? nullptr : object->if_contains("function");
  const json::object* function = inner == nullptr ? nullptr : inner->if_object();
  if (function == nullptr) return message.must_be(name, value, form.shape);
  ToolCall call;
  FieldReader outer(*object, message.prefix() + name + ".");
  outer.text("id", call.id);
  if (form.has_type) outer.text("type", call.type);
  if (outer.ok() && call.type != "function") outer.must_be("type", "\"function\"");
  FieldReader fields(*function, outer.prefix() + "function.");
  fields.text("name", call.name);
  if (fields.ok() && call.name.empty()) fields.fail("name", "is missing; must be the function's name");
  const json::value* arguments = fields.find("arguments");
  if (arguments != nullptr && !arguments->is_object() && !(form.has_text && arguments->is_string()))
    fields.must_be("arguments", form.has_text ? "a string of JSON or an object" : "an object");
  if (arguments != nullptr && fields.ok()) call.arguments = text_or_json(*arguments);
  if (call.arguments.empty()) call.arguments = "{}";
  outer.adopt(fields);
  message.adopt(outer);
  out.tool_calls.push_back(std::move(call));
}

void read_message(FieldReader& message, ChatMessage& out) {
  if (!message.has("role")) {
    message.fail("role", "is missing; must be system, developer, user, assistant or tool");
  }
  message.choice("role", out.role, {"system", "developer", "user", "assistant", "tool"});
  read_content(message, out);
  message.unsupported({"function_call"}, "use tool_calls");
  message.unsupported({"audio"}, "the models read text only");
  std::string name;  // the speaker's name, which no format of the family shows
  message.text("name", name);
  message.text("tool_call_id", out.tool_call_id);
  std::string reasoning;
  message.text("reasoning", reasoning);
  message.text("reasoning_content", reasoning);
  if (!reasoning.empty()) out.reasoning_content = std::move(reasoning);
  read_tool_calls(message,
                  {.shape = "{\"id\", \"type\": \"function\", \"function\": {\"name\", …}}",
                   .has_type = true,
                   .has_text = true},
                  out);
}

// Reads the function that a tool_choice object names.
void read_named_choice(FieldReader& reader, const json::value& value, ToolFields& tools) {
  constexpr std::string_view kAllowed =
      "none, auto, required or {\"type\": \"function\", \"function\": {\"name\"}}";
  const json::object* object = value.if_object();
  const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  const json::value* name =
      function == nullptr || !function->is_object() ? nullptr : function->get_object().if_contains("name");
  if (name == nullptr || !name->is_string()) return reader.must_be("tool_choice", value, kAllowed);
  tools.choice = ToolFields::Choice::kNamed;
  tools.function = text_or_json(*name);
  if (std::find(tools.names.begin(), tools.names.end(), tools.function) == tools.names.end()) {
    reader.fail("tool_choice",
                fmt::format("names {}, which is not among the tools", shown_text(tools.function)));
  }
}

void read_tool(FieldReader& reader, size_t i, const json::value& value, ToolFields& tools) {
  const json::object* object = value.if_object();
  const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  if (function == nullptr || !function->is_object()) {
    return reader.must_be(fmt::format("tools[{}]", i), value,
                          "{\"type\": \"function\", \"function\": {\"name\", …}}");
  }
  FieldReader fields(function->get_object(), fmt::format("tools[{}].function.", i));
  std::string name;
  fields.text("name", name);
  if (fields.ok() && name.empty()) fields.fail("name", "is missing; must be the function's name");
  const json::value* parameters = fields.find("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    fields.must_be("parameters", *parameters, "a JSON schema, which is an object");
  }
  bool strict = false;
  fields.boolean("strict", strict);
  reader.adopt(fields);
  if (strict) tools.strict.push_back(name);
  tools.names.push_back(std::move(name));
}

}  // namespace

void read_tool_calls(FieldReader& message, const ToolCallForm& form, ChatMessage& out) {
  const json::value* calls = message.find("tool_calls");
  if (calls == nullptr || !message.ok()) return;
  const json::array* list = calls->if_array();
  if (list == nullptr) return message.must_be("tool_calls", *calls, "a list");
  if (!list->empty() && out.role != "assistant") {
    return message.fail("tool_calls",
                        fmt::format("belong to the assistant; the role of this message is \"{}\"", out.role));
  }
  for (size_t i = 0; i < list->size() && message.ok(); ++i) {
    read_tool_call(message, form, i, (*list)[i], out);
  }
}

void read_messages(FieldReader& reader, std::vector<ChatMessage>& messages) {
  if (!reader.ok()) return;
  const json::value* value = reader.find("messages");
  if (value == nullptr) return reader.fail("messages", "is missing; must be a list of messages");
  const json::array* list = value->if_array();
  if (list == nullptr) return reader.must_be("messages", *value, "a list of messages");
  if (list->empty()) return reader.fail("messages", "is empty; must be one message or more");
  for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
    const json::object* object = (*list)[i].if_object();
    if (object == nullptr) {
      return reader.must_be(fmt::format("messages[{}]", i), (*list)[i], "an object with role and content");
    }
    FieldReader message(*object, fmt::format("messages[{}].", i));
    read_message(message, messages.emplace_back());
    reader.adopt(message);
  }
}

void read_tools(FieldReader& reader, ToolFields& tools) {
  reader.boolean("parallel_tool_calls", tools.parallel);
  const json::value* value = reader.find("tools");
  if (!reader.ok()) return;
  if (value != nullptr) {
    const json::array* list = value->if_array();
    if (list == nullptr || list->size() > kMaxTools) {
      return reader.must_be("tools", *value, fmt::format("a list of at most {} tools", kMaxTools));
    }
    for (size_t i = 0; i < list->size() && reader.ok(); ++i) read_tool(reader, i, (*list)[i], tools);
    if (!list->empty()) {
      tools.tools_json = json::serialize(*list);
      tools.choice = ToolFields::Choice::kAuto;
    }
  }
  const json::value* choice = reader.find("tool_choice");
  if (choice != nullptr && reader.ok()) {
    const json::string* word = choice->if_string();
    if (word != nullptr && *word == "none") {
      tools.choice = ToolFields::Choice::kNone;
    } else if (word != nullptr && *word == "required") {
      if (tools.names.empty()) reader.fail("tool_choice", "is \"required\", but there are no tools");
      tools.choice = ToolFields::Choice::kRequired;
    } else if (word == nullptr || *word != "auto") {
      read_named_choice(reader, *choice, tools);
    }
  }
  if (tools.choice == ToolFields::Choice::kNone) tools.tools_json.clear();
}

}  // namespace hadal::server
