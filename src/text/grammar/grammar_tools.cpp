#include "text/grammar/grammar_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include <boost/json.hpp>

#include "base/printable.h"
#include "text/chat/chat_markers.h"
#include "text/grammar/grammar_schema.h"
#include "text/json_error.h"

namespace hadal {

namespace {

namespace json = boost::json;

constexpr size_t kMaxTools = 128;
constexpr size_t kMaxNameLength = 64;

struct Tool {
  std::string name;
  json::value parameters;
};

bool is_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameLength) return false;
  for (const char c : name) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_letter && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '.') return false;
  }
  return true;
}

Result<Tool> read_tool(const json::value& entry, size_t i) {
  const json::object* tool = entry.if_object();
  const json::value* type = tool != nullptr ? tool->if_contains("type") : nullptr;
  if (type != nullptr && (!type->is_string() || type->get_string() != "function"))
    return invalid_argument("tools[{}].type is {}; allowed is \"function\"", i, shown(*type));
  const json::value* function = tool != nullptr ? tool->if_contains("function") : nullptr;
  if (function == nullptr || !function->is_object())
    return invalid_argument(
        "tools[{}] has no \"function\"; allowed is {{\"type\": \"function\", \"function\": …}}", i);
  const json::value* name = function->get_object().if_contains("name");
  if (name == nullptr || !name->is_string() || !is_name(name->get_string()))
    return invalid_argument(
        "tools[{}].function.name is {}; must be 1 to {} characters of a-z, A-Z, 0-9, _, - and .", i,
        name == nullptr ? "missing" : shown(*name), kMaxNameLength);
  // By OpenAI's definition, a function without "parameters" has no parameters.
  Tool out{std::string(name->get_string()),
           json::object{{"type", "object"}, {"properties", json::object()}, {"additionalProperties", false}}};
  const json::value* parameters = function->get_object().if_contains("parameters");
  if (parameters != nullptr && !parameters->is_null()) {
    if (!parameters->is_object())
      return invalid_argument("tools[{}].function.parameters is {}; must be an object", i,
                              shown(*parameters));
    if (!parameters->get_object().empty()) out.parameters = *parameters;
  }
  return out;
}

// Calls enter(i, tool) for each tool of the list.
Result<void> read_tools(std::string_view tools_json, const std::function<Result<void>(size_t, Tool)>& enter) {
  if (tools_json.size() > kMaxGrammarBytes)
    return invalid_argument("tools has {} bytes; at most {} are allowed when a call must match a schema",
                            tools_json.size(), kMaxGrammarBytes);
  HADAL_ASSIGN_OR_RETURN(const json::value root, parse_json_text(tools_json, "tools", 4 * kMaxSchemaDepth));
  if (!root.is_array() || root.get_array().empty())
    return invalid_argument("tools is {}; must be a non-empty list", shown(root));
  if (root.get_array().size() > kMaxTools)
    return invalid_argument("tools has {} entries; at most {} are allowed when a call must match a schema",
                            root.get_array().size(), kMaxTools);
  std::set<std::string> names;
  for (size_t i = 0; i < root.get_array().size(); ++i) {
    HADAL_ASSIGN_OR_RETURN(Tool tool, read_tool(root.get_array()[i], i));
    if (!names.insert(tool.name).second)
      return invalid_argument("tools[{}]: {} is listed twice", i, shown_text(tool.name));
    HADAL_RETURN_IF_ERROR(enter(i, std::move(tool)));
  }
  return {};
}

Result<void> check_parameters(const Tool& tool, size_t i) {
  return check_json_schema(json::serialize(tool.parameters), fmt::format("tools[{}].function.parameters", i));
}

// Returns the tools that a required call may call.
Result<std::vector<Tool>> required_tools(std::string_view tools_json, std::string_view function_name) {
  std::vector<Tool> tools;
  const auto read = read_tools(tools_json, [&](size_t i, Tool tool) -> Result<void> {
    if (!function_name.empty() && tool.name != function_name) return {};
    HADAL_RETURN_IF_ERROR(check_parameters(tool, i));
    tools.push_back(std::move(tool));
    return {};
  });
  HADAL_RETURN_IF_ERROR(read);
  if (tools.empty())
    return invalid_argument("tool_choice: {} is not among the tools", shown_text(function_name));
  return tools;
}

// Returns all tools; a tool that is not strict accepts any object.
Result<std::vector<Tool>> strict_tools(std::string_view tools_json, std::span<const std::string> strict) {
  std::vector<Tool> tools;
  const auto read = read_tools(tools_json, [&](size_t i, Tool tool) -> Result<void> {
    if (std::find(strict.begin(), strict.end(), tool.name) == strict.end())
      tool.parameters = json::object{{"type", "object"}};
    else
      HADAL_RETURN_IF_ERROR(check_parameters(tool, i));
    tools.push_back(std::move(tool));
    return {};
  });
  HADAL_RETURN_IF_ERROR(read);
  return tools;
}

json::value token(std::string_view text) {
  return json::object{{"type", "token"}, {"token", text}};
}
json::value text(std::string_view value) {
  return json::object{{"type", "const_string"}, {"value", value}};
}
json::value sequence(json::array elements) {
  return json::object{{"type", "sequence"}, {"elements", std::move(elements)}};
}
json::value any_of(json::array elements) {
  if (elements.size() == 1) return std::move(elements[0]);
  return json::object{{"type", "or"}, {"elements", std::move(elements)}};
}

json::value star(json::value content) {
  return json::object{{"type", "star"}, {"content", std::move(content)}};
}

// Block is a block of calls, which begins and ends with a marker.
struct Block {
  json::value begin;
  json::value calls;
  json::value end;
};

json::value whole(Block block) {
  return sequence({std::move(block.begin), std::move(block.calls), std::move(block.end)});
}

// Returns V3.2's block of calls as render_chat writes it, except for white space between the tags.
Block dsml_block(const std::vector<Tool>& tools, bool parallel) {
  json::array calls;
  for (const Tool& tool : tools) {
    const json::value parameters =
        json::object{{"type", "json_schema"}, {"json_schema", tool.parameters}, {"style", "deepseek_xml"}};
    calls.push_back(
        sequence({text(fmt::format("{}{}{}{}\n", dsml::kInvoke, dsml::kName, tool.name, dsml::kNameEnd)),
                  parameters, text(fmt::format("\n{}", dsml::kInvokeEnd))}));
  }
  const json::value call = any_of(std::move(calls));
  json::array elements{text("\n"), call};
  if (parallel) elements.push_back(star(sequence({text("\n"), call})));
  elements.push_back(text("\n"));
  return {text(dsml::kCallsBegin), sequence(std::move(elements)), text(dsml::kCallsEnd)};
}

// Returns the text between the markers of a call, as render_chat writes it.
json::value call_of(ChatFormat format, const Tool& tool) {
  const json::value arguments = json::object{{"type", "json_schema"}, {"json_schema", tool.parameters}};
  if (format == ChatFormat::kV31) return sequence({text(tool.name), token(kSep), arguments});
  return sequence({text("function"), token(kSep), text(tool.name + "\n```json\n"), arguments, text("\n```")});
}

// Returns the older formats' block of calls.
Block marked_block(ChatFormat format, const std::vector<Tool>& tools, bool parallel) {
  json::array calls;
  for (const Tool& tool : tools) calls.push_back(call_of(format, tool));
  const json::value call = sequence({token(kCallBegin), any_of(std::move(calls)), token(kCallEnd)});
  json::array elements{call};
  if (parallel) elements.push_back(star(format == ChatFormat::kV31 ? call : sequence({text("\n"), call})));
  return {token(kCallsBegin), sequence(std::move(elements)), token(kCallsEnd)};
}

Result<void> need_calls(ChatFormat format) {
  if (format == ChatFormat::kV2)
    return unsupported("the chat format v2 does not support tool calls; v2.5, r1, v3.1 and v3.2 do");
  return {};
}

GrammarSpec spec_of(json::value format, std::string field) {
  return {.kind = GrammarKind::kStructuralTag,
          .text = json::serialize(json::object{{"type", "structural_tag"}, {"format", std::move(format)}}),
          .field = std::move(field)};
}

}  // namespace

Result<GrammarSpec> tool_choice_grammar(ChatFormat format, std::string_view tools_json,
                                        std::string_view function_name, bool parallel) {
  HADAL_RETURN_IF_ERROR(need_calls(format));
  HADAL_ASSIGN_OR_RETURN(const std::vector<Tool> tools, required_tools(tools_json, function_name));
  // A turn of V3.2 begins with two line breaks even if no text precedes the block.
  json::value calls = format == ChatFormat::kV32
                          ? sequence({text("\n\n"), whole(dsml_block(tools, parallel))})
                          : whole(marked_block(format, tools, parallel));
  return spec_of(std::move(calls), "tool_choice");
}

Result<GrammarSpec> strict_calls_grammar(ChatFormat format, std::string_view tools_json,
                                         std::span<const std::string> strict, bool parallel) {
  HADAL_RETURN_IF_ERROR(need_calls(format));
  HADAL_ASSIGN_OR_RETURN(const std::vector<Tool> tools, strict_tools(tools_json, strict));
  if (format == ChatFormat::kV32) {
    Block block = dsml_block(tools, parallel);
    // If a text triggers a tag, the tag's begin and end must be texts, too.
    const json::value tag = json::object{{"type", "tag"},
                                         {"begin", dsml::kCallsBegin},
                                         {"content", std::move(block.calls)},
                                         {"end", dsml::kCallsEnd}};
    return spec_of(json::object{{"type", "triggered_tags"},
                                {"triggers", json::array{dsml::kCallsBegin}},
                                {"tags", json::array{tag}},
                                {"stop_after_first", true}},
                   "tools");
  }
  Block block = marked_block(format, tools, parallel);
  const json::value tag = json::object{{"type", "tag"},
                                       {"begin", std::move(block.begin)},
                                       {"content", std::move(block.calls)},
                                       {"end", std::move(block.end)}};
  return spec_of(json::object{{"type", "token_triggered_tags"},
                              {"trigger_tokens", json::array{kCallsBegin}},
                              {"tags", json::array{tag}},
                              {"stop_after_first", true}},
                 "tools");
}

}  // namespace hadal
