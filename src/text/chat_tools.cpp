#include "text/chat_tools.h"

#include <algorithm>
#include <vector>

#include "text/json_reader.h"

namespace hadal {

namespace {

using Json = nlohmann::ordered_json;

// Writes JSON on one line in the style of Python's json.dumps(ensure_ascii=False), with which templates were
// run: it puts a space after each comma and colon and keeps the members in their order. The reader bounds the
// depth.
void dump_spaced(const Json& value, std::string& out) {
  if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!first) out += ", ";
      first = false;
      out += Json(key).dump() + ": ";
      dump_spaced(member, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ", ";
      dump_spaced(value[i], out);
    }
    out += ']';
  } else {
    out += value.dump();
  }
}

// Writes what value.dump(4) returns, but ends early once `out` has more than max_bytes.
void dump_indented(const Json& value, size_t indent, size_t max_bytes, std::string& out) {
  if (!value.is_structured() || value.empty()) {
    out += value.dump();
    return;
  }
  const bool is_object = value.is_object();
  out += is_object ? '{' : '[';
  bool first = true;
  for (const auto& [key, member] : value.items()) {
    if (out.size() > max_bytes) return;
    out += first ? "\n" : ",\n";
    first = false;
    out.append(indent + 4, ' ');
    if (is_object) out += Json(key).dump() + ": ";
    dump_indented(member, indent + 4, max_bytes, out);
  }
  out += '\n';
  out.append(indent, ' ');
  out += is_object ? '}' : ']';
}

// Checks the list and returns its "function" objects.
Result<std::vector<Json>> functions_of(std::string_view tools_json) {
  HADAL_ASSIGN_OR_RETURN(const Json tools, read_json(tools_json, "tools"));
  if (!tools.is_array()) return invalid_argument("tools is not a list");
  std::vector<Json> functions;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object())
      return invalid_argument(
          "tools[{}] has no \"function\"; allowed is {{\"type\": \"function\", \"function\": …}}", i);
    if (tool.contains("type") && tool["type"] != "function")
      return invalid_argument("tools[{}].type is {}; allowed is \"function\"", i, tool["type"].dump());
    const Json& function = tool["function"];
    if (!function.contains("name") || !function["name"].is_string())
      return invalid_argument("tools[{}].function.name is missing or not a string", i);
    const bool has_description = function.contains("description") && !function["description"].is_null();
    if (has_description && !function["description"].is_string())
      return invalid_argument("tools[{}].function.description is not a string", i);
    functions.push_back(function);
  }
  return functions;
}

}  // namespace

Result<MarkedText> announce_tools_v31(std::string_view tools_json, size_t max_bytes) {
  auto functions = functions_of(tools_json);
  if (!functions.ok()) return Status{StatusCode::kInvalidArgument, functions.status().message};
  MarkedText out;
  out.add("## Tools\nYou have access to the following tools:\n");
  for (const Json& function : *functions) {
    if (out.text.size() > max_bytes) return out;
    const bool has_description = function.contains("description") && function["description"].is_string();
    out.add("\n### ").add_content(function["name"].get<std::string>()).add("\nDescription: ");
    if (has_description) out.add_content(function["description"].get<std::string>());
    std::string parameters;
    dump_spaced(function.contains("parameters") ? function["parameters"] : Json::object(), parameters);
    out.add("\n\nParameters: ").add_content(parameters).add("\n");
  }
  return out.add(
      "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
      "<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n\nWhere:\n"
      "- `tool_call_name` must be an exact match to one of the available tools\n"
      "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
      "- For multiple tool calls, chain them directly without separators or spaces\n");
}

Result<MarkedText> announce_tools_v25(std::string_view tools_json, size_t max_bytes) {
  auto functions = functions_of(tools_json);
  if (!functions.ok()) return Status{StatusCode::kInvalidArgument, functions.status().message};
  MarkedText out;
  out.add("## Tools\n\n### Function\n\nYou have the following functions available:\n\n");
  for (const Json& function : *functions) {
    if (out.text.size() > max_bytes) return out;
    out.add("- `").add_content(function["name"].get<std::string>()).add("`:\n```json\n");
    std::string json;
    dump_indented(function, 0, max_bytes - std::min(max_bytes, out.text.size()), json);
    out.add_content(json).add("\n```\n");
  }
  return out;
}

}  // namespace hadal
