#include "server/generation/dialect_chat.h"

#include <algorithm>
#include <charconv>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/json/json_writer.h"
#include "server/json/sampling_fields.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Replaces each "messages[i]" by places[i].
void replace_places(std::string& text, const std::vector<std::string>& places) {
  constexpr std::string_view kBegin = "messages[";
  for (size_t at = text.find(kBegin); at != text.npos;) {
    size_t number = 0;
    const char* const first = text.data() + at + kBegin.size();
    const auto [end, error] = std::from_chars(first, text.data() + text.size(), number);
    const auto size = static_cast<size_t>(end - (text.data() + at)) + 1;
    if (error != std::errc() || at + size > text.size() || *end != ']' || number >= places.size()) {
      at = text.find(kBegin, at + kBegin.size());
      continue;
    }
    text.replace(at, size, places[number]);
    at = text.find(kBegin, at + places[number].size());
  }
}

void rename(std::string& text, const ErrorNames& names) {
  constexpr std::string_view kMessages = "messages";
  replace_places(text, names.places);
  if (text.starts_with(kMessages)) text.replace(0, kMessages.size(), names.messages);
  for (const auto& [ours, theirs] : names.words) replace_all(text, ours, theirs);
}

}  // namespace

ChatMessage& ChatMessages::add(std::string_view role, std::string place) {
  places.push_back(std::move(place));
  ChatMessage& message = list.emplace_back();
  message.role = role;
  return message;
}

FieldError renamed(FieldError error, const ErrorNames& names) {
  rename(error.status.message, names);
  rename(error.field, names);
  return error;
}

void ToolList::read(FieldReader& tool, std::string_view schema_field, bool schema_is_required) {
  std::string name;
  std::string description;
  tool.text("name", name);
  if (tool.ok() && name.empty()) tool.fail("name", "is missing; must be the function's name");
  tool.text("description", description);
  const json::value* schema = tool.find(schema_field);
  if (schema == nullptr && schema_is_required)
    tool.fail(schema_field, "is missing; must be a JSON schema, which is an object");
  if (schema != nullptr && !schema->is_object())
    tool.must_be(schema_field, *schema, "a JSON schema, which is an object");
  bool strict = false;
  tool.boolean("strict", strict);
  if (!tool.ok()) return;
  if (strict) strict_.push_back(name);
  if (json_.size() > 1) json_ += ',';
  json_ += "{\"type\":\"function\",\"function\":{\"name\":";
  append_json_string(json_, name);
  if (tool.has("description")) {
    json_ += ",\"description\":";
    append_json_string(json_, description);
  }
  if (schema != nullptr) {
    json_ += ",\"parameters\":";
    json_ += json::serialize(*schema);
  }
  json_ += "}}";
  names_.push_back(std::move(name));
}

void ToolList::move_to(ToolFields& out) {
  if (names_.empty()) return;
  out.tools_json = std::move(json_) + "]";
  out.names = std::move(names_);
  out.strict = std::move(strict_);
  out.choice = ToolFields::Choice::kAuto;
}

const json::array* tool_entries(FieldReader& reader) {
  const json::value* value = reader.find("tools");
  if (value == nullptr || !reader.ok()) return nullptr;
  const json::array* list = value->if_array();
  if (list != nullptr && list->size() <= kMaxTools) return list;
  reader.must_be("tools", *value, fmt::format("a list of at most {} tools", kMaxTools));
  return nullptr;
}

void choose_function(FieldReader& reader, std::string_view field, std::string name, ToolFields& tools) {
  if (std::find(tools.names.begin(), tools.names.end(), name) == tools.names.end())
    return reader.fail(field, fmt::format("names {}, which is not among the tools", shown_text(name)));
  tools.choice = ToolFields::Choice::kNamed;
  tools.function = std::move(name);
}

std::string read_block_texts(FieldReader& reader, std::string_view name, const json::value& value,
                             std::initializer_list<std::string_view> types) {
  if (const json::string* text = value.if_string()) return {text->data(), text->size()};
  const json::array* blocks = value.if_array();
  if (blocks == nullptr) {
    reader.must_be(name, value, "a string or a list of blocks of text");
    return {};
  }
  std::string out;
  for (size_t i = 0; i < blocks->size() && reader.ok(); ++i) {
    const std::string place = fmt::format("{}[{}]", name, i);
    const json::object* object = (*blocks)[i].if_object();
    if (object == nullptr) {
      reader.must_be(place, (*blocks)[i], "an object with type and text");
      break;
    }
    FieldReader block(*object, reader.prefix() + place + ".");
    std::string type;
    std::string text;
    block.text("type", type);
    if (block.ok() && std::find(types.begin(), types.end(), type) == types.end())
      block.must_be("type", json::value(type),
                    fmt::format("{}: the models read text only", fmt::join(types, " or ")));
    if (!block.has("text")) block.fail("text", "is missing; must be a string");
    block.text("text", text);
    reader.adopt(block);
    if (i > 0) out += '\n';
    out += text;
  }
  return out;
}

std::shared_ptr<const GrammarSpec> read_output_schema(FieldReader& format, std::string_view field,
                                                      std::string place) {
  const json::value* schema = format.find(field);
  if (schema == nullptr) {
    format.fail(field, "is missing; must be a JSON schema");
    return nullptr;
  }
  if (!schema->is_object()) {
    format.must_be(field, *schema, "a JSON schema, which is an object");
    return nullptr;
  }
  return std::make_shared<const GrammarSpec>(GrammarSpec{.kind = GrammarKind::kJsonSchema,
                                                         .text = grammar_text(format, field, *schema),
                                                         .field = std::move(place)});
}

void need_one_choice(FieldReader& reader, const OpenAiFields& fields) {
  if (fields.sampling.n != 1)
    reader.fail("n",
                fmt::format("is {}; must be 1, because an answer here has one choice", fields.sampling.n));
}

}  // namespace hadal::server
