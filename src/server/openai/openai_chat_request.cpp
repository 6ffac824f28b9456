#include "server/openai/openai_chat_request.h"

#include <utility>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/generation/chat_input.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

// Reads DeepSeek's {"type": "enabled" | "disabled"}, which is refused if the chat format always thinks or
// never does.
void read_thinking_type(FieldReader& reader, const std::optional<ChatFormat>& format, bool& thinking) {
  const json::value* value = reader.find("thinking");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr)
    return reader.must_be("thinking", *value, R"({"type": "enabled"} or {"type": "disabled"})");
  FieldReader inner(*object, "thinking.");
  std::string type;
  if (!inner.has("type")) inner.fail("type", "is missing; must be enabled or disabled");
  inner.choice("type", type, {"enabled", "disabled"});
  if (const json::value* budget = inner.find("budget_tokens"))
    inner.must_be("budget_tokens", *budget, "left out: max_tokens bounds thinking and answer together");
  if (type == "disabled" && format == ChatFormat::kR1)
    inner.fail("type", "is disabled; the chat format r1 always thinks");
  if (type == "enabled" && (format == ChatFormat::kV2 || format == ChatFormat::kV25))
    inner.fail("type", fmt::format("is enabled; the chat format {} has no thinking", to_string(*format)));
  reader.adopt(inner);
  thinking = type == "enabled";
}

// Reads DeepSeek's "prefix" of messages: the answer continues the last message if it is the assistant's and
// has it.
void read_prefix(FieldReader& reader, bool& continue_final_message) {
  const json::value* value = reader.find("messages");
  const json::array* list = value == nullptr ? nullptr : value->if_array();
  if (list == nullptr || !reader.ok()) return;
  for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
    FieldReader message((*list)[i].get_object(), fmt::format("messages[{}].", i));
    bool is_prefix = false;
    message.boolean("prefix", is_prefix);
    std::string role;
    message.text("role", role);
    if (is_prefix && (i + 1 < list->size() || role != "assistant"))
      message.fail("prefix", "is true; allowed only in the last message, and if its role is assistant");
    continue_final_message = continue_final_message || is_prefix;
    reader.adopt(message);
  }
}

// Reads chat_template_kwargs, or else thinking, or else reasoning_effort, which say whether the model should
// think; the models have no levels of thinking. Other template arguments have no meaning for these formats
// and are ignored, as a template ignores arguments that it does not use.
void read_thinking(FieldReader& reader, const std::optional<ChatFormat>& format, bool& thinking) {
  std::string effort;
  reader.choice("reasoning_effort", effort, {"", "none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (!effort.empty()) thinking = effort != "none";
  read_thinking_type(reader, format, thinking);
  const json::value* value = reader.find("chat_template_kwargs");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("chat_template_kwargs", *value, "an object");
  FieldReader inner(*object, "chat_template_kwargs.");
  inner.boolean("enable_thinking", thinking);
  inner.boolean("thinking", thinking);
  reader.adopt(inner);
}

// Reads the length under both of its names, and returns the name that counts. max_completion_tokens is the
// newer name and takes precedence, as in vLLM, because clients send the older name for old servers.
std::string_view read_max_tokens(FieldReader& reader, const PromptLimits& limits,
                                 std::optional<int64_t>& out) {
  read_answer_length(reader, "max_tokens", out, 1, limits);
  read_answer_length(reader, "max_completion_tokens", out, 1, limits);
  return reader.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
}

void refuse_audio(FieldReader& reader) {
  constexpr std::string_view kWhy = "the models write text only";
  reader.unsupported({"audio"}, kWhy);
  std::vector<std::string> modalities;
  reader.texts("modalities", modalities, 16);
  for (const std::string& name : modalities) {
    if (name != "text")
      reader.fail("modalities", fmt::format("has {}; must be [\"text\"]: {}", shown_text(name), kWhy));
  }
}

}  // namespace

void read_chat_logprobs(FieldReader& reader, const RequestLimits& limits, LogprobOptions& out) {
  reader.boolean("logprobs", out.enabled);
  read_num_alternatives(reader, "top_logprobs", kMaxChatTopLogprobs, limits, out.top_num);
  if (reader.ok() && out.top_num > 0 && !out.enabled) {
    reader.fail("top_logprobs", fmt::format("is {}; needs logprobs to be true", out.top_num));
  }
}

void read_openai_chat(FieldReader& reader, const OpenAiLimits& limits, OpenAiChatRequest& out) {
  reader.unsupported({"functions", "function_call"}, "use tools and tool_choice");
  reader.unsupported({"prompt", "suffix", "echo"}, "a chat has messages; use /v1/completions");
  if (const json::value* best_of = reader.find("best_of"))
    reader.must_be("best_of", *best_of,
                   "left out: choices of a chat are not ranked, and n says how many there are");
  refuse_audio(reader);
  ChatInput input;
  check_openai_fields(reader, out.common);
  read_openai_fields(reader, limits, out.common, input.fields);
  read_chat_logprobs(reader, limits.request, input.logprobs);
  input.length_field = read_max_tokens(reader, limits.prompt, input.fields.sampling.max_new_tokens);
  read_thinking(reader, limits.chat_format, input.options.thinking);
  reader.boolean("separate_reasoning", input.separate_reasoning);
  reader.boolean("stream_reasoning", out.parsing.stream_reasoning);
  reader.boolean("continue_final_message", input.options.continue_final_message);
  reader.boolean("add_generation_prompt", input.options.add_generation_prompt);
  read_content_special_tokens(reader, limits, input);
  read_messages(reader, input.messages);
  read_prefix(reader, input.options.continue_final_message);
  read_tools(reader, input.tools);
  make_chat(reader, limits, std::move(input), out);
}

std::variant<OpenAiChatRequest, FieldError> parse_openai_chat(std::string_view body,
                                                              const OpenAiLimits& limits) {
  MemoryCharge reading(limits.prompt.memory);
  auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return FieldError{parsed.status(), {}};
  FieldReader reader(parsed.value());
  OpenAiChatRequest out;
  out.common.memory = MemoryCharge(limits.prompt.memory);
  read_openai_chat(reader, limits, out);
  if (!reader.ok()) return FieldError{reader.status(), reader.failed_field()};
  return out;
}

}  // namespace hadal::server
