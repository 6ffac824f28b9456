#include "server/openai_chat_request.h"

#include <algorithm>
#include <span>
#include <utility>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/openai_messages.h"
#include "text/chat_markers.h"
#include "text/grammar_tools.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

// Reads chat_template_kwargs, or else reasoning_effort, which tell whether the model should think: the models
// here have no degrees of it. Other template arguments have no meaning for the formats here and are ignored,
// as a template ignores arguments that it does not use.
void read_thinking(FieldReader& reader, bool& thinking) {
  std::string effort;
  reader.choice("reasoning_effort", effort, {"", "none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (!effort.empty()) thinking = effort != "none";
  const json::value* value = reader.find("chat_template_kwargs");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("chat_template_kwargs", *value, "an object");
  FieldReader inner(*object, "chat_template_kwargs.");
  inner.boolean("enable_thinking", thinking);
  inner.boolean("thinking", thinking);
  reader.adopt(inner);
}

void read_logprobs(FieldReader& reader, const RequestLimits& limits, LogprobOptions& out) {
  reader.boolean("logprobs", out.enabled);
  read_num_alternatives(reader, "top_logprobs", kMaxChatTopLogprobs, limits, out.top_num);
  if (reader.ok() && out.top_num > 0 && !out.enabled) {
    reader.fail("top_logprobs", fmt::format("is {}; needs logprobs to be true", out.top_num));
  }
}

// max_completion_tokens is the newer name of max_tokens and takes precedence.
std::string_view read_max_tokens(FieldReader& reader, std::optional<int64_t>& out) {
  reader.integer("max_tokens", out, 1, kMaxTokenCount);
  std::string_view field = "max_tokens";
  if (reader.has("max_completion_tokens")) field = "max_completion_tokens";
  reader.integer("max_completion_tokens", out, 1, kMaxTokenCount);
  return field;
}

// A required call becomes a grammar; an optional one is only parsed.
void apply_tools(FieldReader& reader, const OpenAiLimits& limits, const ToolFields& tools,
                 std::shared_ptr<const GrammarSpec>& grammar, ChatParsing& parsing) {
  if (!reader.ok() || tools.choice == ToolFields::Choice::kNone) return;
  parsing.tool_calls = limits.tool_calls;
  parsing.tool_names = tools.names;
  parsing.parallel_tool_calls = tools.parallel;
  if (tools.choice == ToolFields::Choice::kAuto) return;
  if (grammar) {
    return reader.fail("tool_choice", fmt::format("forces a call and excludes {}", grammar->field));
  }
  // A single named function is called once, as in OpenAI's API.
  const bool several = tools.parallel && tools.choice == ToolFields::Choice::kRequired;
  auto spec = tool_choice_grammar(*limits.chat_format, tools.tools_json, tools.function, several);
  if (!spec.ok()) return reader.fail("tool_choice", spec.status().message);
  grammar = std::make_shared<const GrammarSpec>(std::move(spec).value());
  const auto format = resolve_tool_call_format("auto", *limits.chat_format);
  if (parsing.tool_calls == ToolCallFormat::kNone && format.ok()) parsing.tool_calls = *format;
}

// Returns true if the tags at which text is cut are special tokens, which must then be decoded.
bool tags_are_special(const Tokenizer& tokenizer) {
  for (const std::string_view tag : {kThink, kEndThink}) {
    const auto id = tokenizer.token_to_id(tag);
    if (id && tokenizer.is_special(*id)) return true;
  }
  return false;
}

void refuse_audio(FieldReader& reader) {
  constexpr std::string_view kWhy = "the models here write text only";
  reader.unsupported({"audio"}, kWhy);
  std::vector<std::string> modalities;
  reader.texts("modalities", modalities, 16);
  for (const std::string& name : modalities) {
    if (name != "text")
      reader.fail("modalities", fmt::format("has {}; must be [\"text\"]: {}", shown_text(name), kWhy));
  }
}

// Reads content_special_tokens: whether special tokens in messages and tools are found or are text.
void read_content_special_tokens(FieldReader& reader, bool& as_text) {
  std::string mode = as_text ? "text" : "special";
  reader.choice("content_special_tokens", mode, {"text", "special"});
  as_text = mode == "text";
}

void read_chat(FieldReader& reader, const OpenAiLimits& limits, OpenAiChatRequest& out) {
  reader.unsupported({"functions", "function_call"}, "use tools and tool_choice");
  refuse_audio(reader);
  OpenAiFields fields;
  read_openai_fields(reader, limits, out.common, fields);
  OpenAiItem item;
  read_logprobs(reader, limits.request, item.request.logprobs);
  out.logprobs = item.request.logprobs.enabled;
  item.request.long_logprobs = true;
  const std::string_view length_field = read_max_tokens(reader, fields.sampling.max_new_tokens);
  ChatOptions options;
  read_thinking(reader, options.thinking);
  bool separate_reasoning = true;
  reader.boolean("separate_reasoning", separate_reasoning);
  reader.boolean("stream_reasoning", out.parsing.stream_reasoning);
  reader.boolean("continue_final_message", options.continue_final_message);
  bool content_as_text = limits.content_as_text;
  read_content_special_tokens(reader, content_as_text);
  std::vector<ChatMessage> messages;
  read_messages(reader, messages);
  ToolFields tools;
  read_tools(reader, tools);
  if (!reader.ok()) return;
  if (!limits.chat_format || limits.tokenizer == nullptr) {
    return reader.fail("messages", limits.tokenizer == nullptr
                                       ? "the server runs without a tokenizer (--skip-tokenizer-init)"
                                       : "the model has no known chat template; choose one with "
                                         "--chat-template or use /v1/completions");
  }

  options.tools_json = tools.tools_json;
  options.max_bytes = max_prompt_bytes(*limits.tokenizer, limits.prompt);
  if (tools.tools_json.size() > options.max_bytes) {  // a prompt cut inside of them would have no messages
    return reader.fail("tools", fmt::format("are {} bytes of JSON; at most {} can fit into a prompt",
                                            tools.tools_json.size(), options.max_bytes));
  }
  const auto prompt = render_marked_chat(*limits.chat_format, messages, options);
  if (!prompt.ok()) {
    const std::string& why = prompt.status().message;
    const std::string_view field =
        tools.tools_json.empty() || why.starts_with("messages") ? "messages" : "tools";
    // Most of these errors begin with the place in the field.
    if (why.starts_with(field)) return reader.refuse(field, invalid_argument("{}", why));
    return reader.fail(field, why);
  }
  const std::span<const TextRange> literal = content_as_text ? prompt->content : std::span<const TextRange>();
  auto ids = encode_prompt(*limits.tokenizer, prompt->text, false, limits.prompt, literal);
  if (!ids.ok()) return reader.fail("messages", ids.status());

  // If the contents are plain text for the model, tags in them do not count here either.
  const std::string turns = content_as_text ? prompt->without_content() : prompt->text;
  const auto natural = resolve_reasoning_format("auto", *limits.chat_format);
  out.opened_thinking = natural.ok() && starts_in_reasoning(*natural, turns);
  if (separate_reasoning) {
    out.parsing.reasoning = limits.reasoning;
    out.parsing.starts_in_reasoning = starts_in_reasoning(limits.reasoning, turns);
  }
  item.grammar = std::move(fields.sampling.grammar);
  apply_tools(reader, limits, tools, item.grammar, out.parsing);
  if (item.grammar && out.opened_thinking) {
    item.request.grammar_after_token = limits.tokenizer->token_to_id(kEndThink);
    if (!item.request.grammar_after_token) {
      return reader.fail(item.grammar->field,
                         "cannot follow reasoning: this vocabulary has no token </think>");
    }
  }
  const bool needs_markers =
      out.parsing.tool_calls != ToolCallFormat::kNone ||
      (out.parsing.reasoning != ReasoningFormat::kNone && tags_are_special(*limits.tokenizer));
  item.request.skip_special_tokens = !needs_markers;
  const std::vector<int64_t> lengths =
      fit_openai_prompts(reader, limits, fields, item.request.logprobs, std::nullopt, "messages",
                         length_field, std::span(&ids.value(), 1), out.common.places);
  item.request.input_ids = std::move(ids).value();
  if (reader.ok()) add_openai_prompt(reader, limits, fields, std::move(item), lengths[0], out.common);
  make_openai_choices(reader, fields, "chatcmpl-", out.common);
}

}  // namespace

std::variant<OpenAiChatRequest, FieldError> parse_openai_chat(std::string_view body,
                                                              const OpenAiLimits& limits) {
  MemoryCharge reading(limits.prompt.memory);
  auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return FieldError{parsed.status(), {}};
  FieldReader reader(parsed.value());
  OpenAiChatRequest out;
  out.common.memory = MemoryCharge(limits.prompt.memory);
  read_chat(reader, limits, out);
  if (!reader.ok()) return FieldError{reader.status(), reader.failed_field()};
  return out;
}

}  // namespace hadal::server
