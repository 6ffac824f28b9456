#include "text/chat/chat_template.h"

#include <algorithm>

#include "text/chat/chat_markers.h"
#include "text/chat/chat_tools.h"
#include "text/chat/chat_v32.h"

namespace hadal {

namespace {

struct ChatFormatName {
  std::string_view name;
  ChatFormat format;
};
constexpr ChatFormatName kChatFormatNames[] = {{"v2", ChatFormat::kV2},
                                               {"v2.5", ChatFormat::kV25},
                                               {"r1", ChatFormat::kR1},
                                               {"v3.1", ChatFormat::kV31},
                                               {"v3.2", ChatFormat::kV32}};
constexpr std::string_view kAllowedNames = "v2, v2.5, r1, v3.1, v3.2";

// This is the architecture whose models ship without a template.
constexpr std::string_view kV32Architecture = "DeepseekV32ForCausalLM";

// FormatMarker is a row of the table that recognises a template's format. The first row whose two texts both
// occur in the template decides. The order matters, because a row's texts may also occur in templates of
// earlier rows.
struct FormatMarker {
  std::string_view text;
  std::string_view and_text;
  ChatFormat format;
};
constexpr FormatMarker kFormatMarkers[] = {
    {dsml::kCallsBegin, "<｜Assistant｜>", ChatFormat::kV32},   // third-party templates for V3.2
    {"<｜Assistant｜></think>", "thinking", ChatFormat::kV31},  // V3.1, V3.1-Terminus: past turns are closed
    {"<｜Assistant｜><think>\\n", "<｜User｜>", ChatFormat::kR1},  // R1: opens <think> itself
    {"<｜Assistant｜><think>\n", "<｜User｜>", ChatFormat::kR1},   // the same, with the line break unescaped
    {"<｜User｜>", "<｜Assistant｜>", ChatFormat::kV25},           // V2.5, V3, V3-0324, R1-0528
    {"'User: '", "'Assistant: '", ChatFormat::kV2},                // V2, V2-Lite, Coder-V2
    {"User: ", "Assistant:", ChatFormat::kV2},                     // the same with other quotes
};

// Returns the text after the last "</think>".
std::string_view after_reasoning(std::string_view content) {
  const size_t at = content.rfind(kEndThink);
  return at == content.npos ? content : content.substr(at + kEndThink.size());
}

// Returns the text after the first "</think>", where V3.1 cuts.
std::string_view after_first_reasoning(std::string_view content) {
  const size_t at = content.find(kEndThink);
  return at == content.npos ? content : content.substr(at + kEndThink.size());
}

// Returns all system messages, joined, and the announcement of tools. In all formats except V2, this text
// follows bos.
Result<MarkedText> system_text(ChatFormat format, std::span<const ChatMessage> messages,
                               const ChatOptions& options) {
  MarkedText out;
  bool has_system = false;
  for (const ChatMessage& message : messages) {
    if (message.role != "system") continue;
    if (has_system) out.add("\n\n");
    has_system = true;
    out.add_content(message.content);
  }
  if (options.tools_json.empty()) return out;
  if (format == ChatFormat::kV31) {
    HADAL_ASSIGN_OR_RETURN(const MarkedText tools, announce_tools_v31(options.tools_json, options.max_bytes));
    return out.add("\n\n").add(
        tools);  // also where there is no system message: the model card has no exception
  }
  HADAL_ASSIGN_OR_RETURN(const MarkedText tools, announce_tools_v25(options.tools_json, options.max_bytes));
  if (!has_system) out.add("You are a helpful Assistant.");
  return out.add("\n\n").add(tools);
}

// Renders V2's turns, which are plain text.
MarkedText render_v2(std::span<const ChatMessage> messages, bool generate) {
  MarkedText out;
  out.add(kBos);
  for (const ChatMessage& message : messages) {
    if (message.role == "user")
      out.add("User: ").add_content(message.content).add("\n\n");
    else if (message.role == "assistant")
      out.add("Assistant: ").add_content(message.content).add(kEos);
    else
      out.add_content(message.content).add("\n\n");
  }
  if (generate) out.add("Assistant:");
  return out;
}

// Renders V2.5 and R1, which differ only in how generation begins.
MarkedText render_v25(const MarkedText& system, std::span<const ChatMessage> messages, bool generate,
                      std::string_view opening) {
  MarkedText out;
  out.add(kBos).add(system);
  bool in_outputs = false;  // tool results are open
  for (const ChatMessage& message : messages) {
    if (message.role == "user") {
      in_outputs = false;  // left open, as in the published templates
      out.add(kUser).add_content(message.content);
    } else if (message.role == "assistant") {
      out.add(in_outputs ? kOutputsEnd : kAssistant);
      in_outputs = false;
      out.add_content(after_reasoning(message.content));
      for (size_t i = 0; i < message.tool_calls.size(); ++i) {
        const ToolCall& call = message.tool_calls[i];
        out.add(i == 0 ? kCallsBegin : std::string_view("\n"));
        out.add(kCallBegin).add_content(call.type).add(kSep).add_content(call.name);
        out.add("\n```json\n").add_content(call.arguments).add("\n```").add(kCallEnd);
      }
      if (!message.tool_calls.empty()) out.add(kCallsEnd);
      out.add(kEos);
    } else if (message.role == "tool") {
      if (!in_outputs) out.add(kOutputsBegin);
      in_outputs = true;
      out.add(kOutputBegin).add_content(message.content).add(kOutputEnd);
    }
  }
  // After tool results the assistant's turn is still open.
  if (in_outputs)
    out.add(kOutputsEnd);
  else if (generate)
    out.add(opening);
  return out;
}

// Renders V3.1, where a turn opens with <think> or </think>.
MarkedText render_v31(const MarkedText& system, std::span<const ChatMessage> messages, bool generate,
                      bool thinking) {
  MarkedText out;
  out.add(kBos).add(system);
  bool after_user = false;
  bool after_tool = false;
  for (const ChatMessage& message : messages) {
    if (message.role == "user") {
      out.add(kUser).add_content(message.content);
      after_user = true;
      after_tool = false;
    } else if (message.role == "assistant") {
      if (after_user) out.add(kAssistant).add(kEndThink);
      out.add_content(after_tool ? std::string_view(message.content)
                                 : after_first_reasoning(message.content));
      if (!message.tool_calls.empty()) {
        out.add(kCallsBegin);
        for (const ToolCall& call : message.tool_calls) {
          out.add(kCallBegin).add_content(call.name).add(kSep).add_content(call.arguments);
          out.add(kCallEnd);
        }
        out.add(kCallsEnd);
      }
      out.add(kEos);
      after_user = after_tool = false;
    } else if (message.role == "tool") {
      out.add(kOutputBegin).add_content(message.content).add(kOutputEnd);
      after_user = false;
      after_tool = true;
    }
  }
  if (generate && after_user) out.add(kAssistant).add(thinking ? kThink : kEndThink);
  return out;
}

Result<void> check(ChatFormat format, std::span<const ChatMessage> messages, const ChatOptions& options) {
  const bool is_v2 = format == ChatFormat::kV2;
  if (is_v2 && !options.tools_json.empty())
    return unsupported("the chat format v2 does not support tools; v2.5, r1, v3.1 and v3.2 do");
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "system" && message.role != "developer" && message.role != "user" &&
        message.role != "assistant" && message.role != "tool")
      return invalid_argument(
          "messages[{}].role is \"{}\"; allowed are system, developer, user, assistant, tool", i,
          message.role);
    if (!message.tool_calls.empty() && message.role != "assistant")
      return invalid_argument(
          "messages[{}].tool_calls: only an assistant message may have them, but its role is \"{}\"", i,
          message.role);
    if (is_v2 && (message.role == "tool" || !message.tool_calls.empty()))
      return unsupported(
          "messages[{}]: the chat format v2 does not support tool calls; v2.5, r1, v3.1 and v3.2 do", i);
  }
  if (!options.continue_final_message) return {};
  if (messages.empty() || messages.back().role != "assistant")
    return invalid_argument(
        "continue_final_message needs the assistant's message as the last one, but it is {}",
        messages.empty() ? "missing" : "of \"" + messages.back().role + "\"");
  if (!messages.back().tool_calls.empty())
    return invalid_argument("continue_final_message: the last message has tool calls, which end a turn");
  return {};
}

Result<MarkedText> render_checked(ChatFormat format, std::span<const ChatMessage> messages,
                                  const ChatOptions& options, bool generate, bool thinking) {
  if (format == ChatFormat::kV2) return render_v2(messages, generate);
  if (format == ChatFormat::kV32) return render_v32(messages, options, generate, thinking);
  HADAL_ASSIGN_OR_RETURN(const MarkedText system, system_text(format, messages, options));
  if (format == ChatFormat::kV31) return render_v31(system, messages, generate, thinking);
  const bool is_r1 = format == ChatFormat::kR1;
  return render_v25(system, messages, generate, is_r1 ? "<｜Assistant｜><think>\n" : kAssistant);
}

}  // namespace

Result<ChatFormat> parse_chat_format(std::string_view name) {
  for (const ChatFormatName& row : kChatFormatNames)
    if (row.name == name) return row.format;
  return invalid_argument("unknown chat template \"{}\"; allowed are {}", name, kAllowedNames);
}

const char* to_string(ChatFormat format) {
  for (const ChatFormatName& row : kChatFormatNames)
    if (row.format == format) return row.name.data();
  return "unknown";
}

Result<ChatFormat> detect_chat_format(std::string_view chat_template, std::string_view architecture) {
  if (chat_template.empty() && architecture == kV32Architecture) return ChatFormat::kV32;
  if (chat_template.empty())
    return not_found("the model has no chat_template; choose one with --chat-template (allowed: {})",
                     kAllowedNames);
  for (const FormatMarker& row : kFormatMarkers)
    if (chat_template.find(row.text) != chat_template.npos &&
        chat_template.find(row.and_text) != chat_template.npos)
      return row.format;
  return unsupported(
      "the model's chat_template has no known format; choose one with --chat-template (allowed: {})",
      kAllowedNames);
}

Result<MarkedText> render_marked_chat(ChatFormat format, std::span<const ChatMessage> messages,
                                      const ChatOptions& options) {
  HADAL_RETURN_IF_ERROR(check(format, messages, options));
  const auto is_developer = [](const ChatMessage& message) { return message.role == "developer"; };
  if (format != ChatFormat::kV32 && std::any_of(messages.begin(), messages.end(), is_developer)) {
    std::vector<ChatMessage> known(messages.begin(), messages.end());
    for (ChatMessage& message : known)
      if (is_developer(message)) message.role = "system";
    return render_marked_chat(format, known, options);
  }
  if (!options.continue_final_message)
    return render_checked(format, messages, options, options.add_generation_prompt, options.thinking);

  // The last turn is opened like one to be generated, and its existing text follows.
  const ChatMessage& last = messages.back();
  const bool has_reasoning =
      !last.reasoning_content.empty() && format != ChatFormat::kV2 && format != ChatFormat::kV25;
  HADAL_ASSIGN_OR_RETURN(MarkedText out, render_checked(format, messages.first(messages.size() - 1), options,
                                                        true, options.thinking || has_reasoning));
  if (has_reasoning) {
    out.add_content(last.reasoning_content);
    if (!last.content.empty()) out.add(kEndThink);
  }
  if (format == ChatFormat::kV2) out.add(" ");
  out.add_content(last.content);
  return out;
}

Result<std::string> render_chat(ChatFormat format, std::span<const ChatMessage> messages,
                                const ChatOptions& options) {
  HADAL_ASSIGN_OR_RETURN(MarkedText marked, render_marked_chat(format, messages, options));
  return std::move(marked.text);
}

bool generation_starts_in_reasoning(ChatFormat format, const ChatOptions& options) {
  return format == ChatFormat::kR1 ||
         ((format == ChatFormat::kV31 || format == ChatFormat::kV32) && options.thinking);
}

}  // namespace hadal
