#include "text/chat/chat_v32.h"

#include <fmt/format.h>

#include <vector>

#include "text/chat/chat_markers.h"
#include "text/chat/chat_tools.h"
#include "text/json_spelling.h"

namespace hadal {

namespace {

constexpr std::string_view kResultsBegin = "\n\n<function_results>";
constexpr std::string_view kResultsEnd = "\n</function_results>";
constexpr std::string_view kResultBegin = "\n<result>";
constexpr std::string_view kResultEnd = "</result>";

bool is_question(const ChatMessage& message) {
  return message.role == "user" || message.role == "developer";
}

class Rendering {
 public:
  Rendering(std::span<const ChatMessage> messages, const ChatOptions& options, bool generate, bool thinking)
      : messages_(messages), options_(options), generate_(generate), thinking_(thinking) {
    for (size_t i = 0; i < messages.size(); ++i)
      if (is_question(messages[i])) last_question_ = static_cast<ptrdiff_t>(i);
  }

  Result<MarkedText> render() {
    out_.add(kBos);
    const bool has_system = !messages_.empty() && messages_[0].role == "system";
    if (!has_system) HADAL_RETURN_IF_ERROR(add_tools());
    for (size_t i = 0; i < messages_.size() && !is_long(); ++i) {
      const ChatMessage& message = messages_[i];
      if (message.role == "system") {
        out_.add_content(message.content);
        if (i == 0) HADAL_RETURN_IF_ERROR(add_tools());
      } else if (is_question(message)) {
        if (thinking_ && message.role == "developer" && static_cast<ptrdiff_t>(i) < last_question_) continue;
        HADAL_RETURN_IF_ERROR(add_question(i));
      } else if (message.role == "tool") {
        HADAL_RETURN_IF_ERROR(add_result(i));
        continue;
      } else {
        HADAL_RETURN_IF_ERROR(add_answer(i));
        continue;
      }
      is_after_answer_ = false;
    }
    return std::move(out_);
  }

 private:
  bool is_long() const { return out_.text.size() > options_.max_bytes; }
  bool is_last(size_t i) const { return i + 1 == messages_.size(); }

  Result<void> add_tools() {
    if (options_.tools_json.empty()) return {};
    HADAL_ASSIGN_OR_RETURN(const MarkedText tools,
                           announce_tools_v32(options_.tools_json, options_.max_bytes));
    out_.add("\n\n").add(tools);
    return {};
  }

  // Opens the turn that answers message i.
  void open_turn(size_t i, std::string_view before) {
    if (is_last(i) && !generate_) return;
    out_.add(before).add(thinking_ && static_cast<ptrdiff_t>(i) >= last_question_ ? kThink : kEndThink);
  }

  Result<void> add_question(size_t i) {
    const ChatMessage& message = messages_[i];
    out_.add(kUser);
    if (message.role == "developer") {
      if (message.content.empty())
        return invalid_argument("messages[{}].content is empty; a developer message must have a text", i);
      out_.add("\n\n# The user's message is: ");
    }
    out_.add_content(message.content);
    open_turn(i, kAssistant);
    return {};
  }

  Result<void> add_result(size_t i) {
    if (!is_after_answer_ || num_calls_ == 0)
      return invalid_argument(
          "messages[{}].role is \"tool\"; allowed only after an assistant message with tool_calls", i);
    if (num_results_ == num_calls_)
      return invalid_argument(
          "messages[{}] is result {} of an assistant message that has {} in tool_calls; each call has one "
          "result",
          i, num_results_ + 1, num_calls_);
    if (num_results_++ == 0) out_.add(kResultsBegin);
    out_.add(kResultBegin).add_content(messages_[i].content).add(kResultEnd);
    if (num_results_ < num_calls_) return {};
    out_.add(kResultsEnd);
    open_turn(i, "\n\n");
    return {};
  }

  Result<void> add_answer(size_t i) {
    const ChatMessage& message = messages_[i];
    is_after_answer_ = true;
    num_calls_ = message.tool_calls.size();
    num_results_ = 0;
    if (thinking_ && static_cast<ptrdiff_t>(i) > last_question_) {
      if (message.reasoning_content.empty() && message.tool_calls.empty())
        return invalid_argument(
            "messages[{}] needs reasoning_content or tool_calls, because it is the assistant's, follows the "
            "last question, and thinking is on",
            i);
      out_.add_content(message.reasoning_content).add(kEndThink);
    }
    out_.add_content(message.content);
    if (!message.tool_calls.empty()) HADAL_RETURN_IF_ERROR(add_calls(i));
    out_.add(kEos);
    return {};
  }

  Result<void> add_calls(size_t i) {
    out_.add("\n\n").add(dsml::kCallsBegin).add("\n");
    for (size_t c = 0; c < messages_[i].tool_calls.size() && !is_long(); ++c) {
      const ToolCall& call = messages_[i].tool_calls[c];
      HADAL_ASSIGN_OR_RETURN(
          const std::vector<JsonMember> arguments,
          read_json_members(call.arguments,
                            fmt::format("messages[{}].tool_calls[{}].function.arguments", i, c)));
      out_.add(dsml::kInvoke).add(dsml::kName).add_content(call.name).add(dsml::kNameEnd).add("\n");
      for (size_t a = 0; a < arguments.size() && !is_long(); ++a) {
        if (a > 0) out_.add("\n");
        out_.add(dsml::kParameter).add(dsml::kName).add_content(arguments[a].key);
        out_.add(arguments[a].is_string ? dsml::kIsString : dsml::kIsJson).add_content(arguments[a].text);
        out_.add(dsml::kParameterEnd);
      }
      out_.add("\n").add(dsml::kInvokeEnd).add("\n");
    }
    out_.add(dsml::kCallsEnd);
    return {};
  }

  std::span<const ChatMessage> messages_;
  const ChatOptions& options_;
  bool generate_;
  bool thinking_;
  ptrdiff_t last_question_ = -1;
  MarkedText out_;
  bool is_after_answer_ = false;  // only results came since the last answer
  size_t num_calls_ = 0;          // of the last answer
  size_t num_results_ = 0;        // of these calls
};

}  // namespace

Result<MarkedText> render_v32(std::span<const ChatMessage> messages, const ChatOptions& options,
                              bool generate, bool thinking) {
  return Rendering(messages, options, generate, thinking).render();
}

}  // namespace hadal
