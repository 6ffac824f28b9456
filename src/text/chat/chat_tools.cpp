#include "text/chat/chat_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/printable.h"
#include "text/json_reader.h"
#include "text/json_spelling.h"

namespace hadal {

namespace {

using Json = nlohmann::ordered_json;

// Appends the text of value.dump(4) to `out`, but ends early once `out` has more than max_bytes.
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
  if (!tools.is_array()) return invalid_argument("tools is {}; must be a list", cut_text(tools.dump()));
  std::vector<Json> functions;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object())
      return invalid_argument(
          "tools[{}] has no \"function\"; allowed is {{\"type\": \"function\", \"function\": …}}", i);
    if (tool.contains("type") && tool["type"] != "function")
      return invalid_argument("tools[{}].type is {}; allowed is \"function\"", i,
                              cut_text(tool["type"].dump()));
    const Json& function = tool["function"];
    if (!function.contains("name") || !function["name"].is_string())
      return invalid_argument("tools[{}].function.name is {}; must be a string", i,
                              function.contains("name") ? cut_text(function["name"].dump()) : "missing");
    const bool has_description = function.contains("description") && !function["description"].is_null();
    if (has_description && !function["description"].is_string())
      return invalid_argument("tools[{}].function.description is {}; must be a string", i,
                              cut_text(function["description"].dump()));
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
    HADAL_ASSIGN_OR_RETURN(const std::string parameters,
                           spell_json(function.contains("parameters") ? function["parameters"].dump() : "{}",
                                      "parameters", max_bytes - std::min(max_bytes, out.text.size())));
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

Result<MarkedText> announce_tools_v32(std::string_view tools_json, size_t max_bytes) {
  auto functions = functions_of(tools_json);
  if (!functions.ok()) return Status{StatusCode::kInvalidArgument, functions.status().message};
  MarkedText out;
  out.add(
      "## Tools\nYou have access to a set of tools you can use to answer the user's question.\n"
      "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following as part "
      "of "
      "your reply to the user:\n"
      "<｜DSML｜function_calls>\n"
      "<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
      "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
      "</｜DSML｜parameter>\n...\n"
      "</｜DSML｜invoke>\n"
      "<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n...\n"
      "</｜DSML｜invoke>\n"
      "</｜DSML｜function_calls>\n"
      "String and scalar parameters should be specified as is without any escaping or quotes, while lists "
      "and objects should use JSON format. The \"string\" attribute should be set to \"true\" for string "
      "type parameters and \"false\" for other types (numbers, booleans, arrays, objects).\n"
      "If the thinking_mode is enabled, then after function results you should strongly consider outputting "
      "a thinking block. Here is an example:\n"
      "<｜DSML｜function_calls>\n...\n</｜DSML｜function_calls>\n"
      "<function_results>\n...\n</function_results>\n"
      "<think>...thinking about results</think>\n"
      "Here are the functions available in JSONSchema format:\n<functions>\n");
  for (size_t i = 0; i < functions->size(); ++i) {
    if (out.text.size() > max_bytes) return out;
    HADAL_ASSIGN_OR_RETURN(const std::string function,
                           spell_json((*functions)[i].dump(), fmt::format("tools[{}].function", i),
                                      max_bytes - std::min(max_bytes, out.text.size())));
    if (i > 0) out.add("\n");
    out.add_content(function);
  }
  return out.add("\n</functions>\n");
}

}  // namespace hadal
