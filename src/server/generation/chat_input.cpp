#include "server/generation/chat_input.h"

#include <span>
#include <utility>

#include "text/chat/chat_markers.h"
#include "text/grammar/grammar_tools.h"

namespace hadal::server {
namespace {

// A required call becomes a grammar, and so does an optional call of a strict function; other calls are only
// parsed. An answer with a grammar of its own gets no grammar for optional calls.
void apply_tools(FieldReader& reader, const OpenAiLimits& limits, const ToolFields& tools,
                 std::shared_ptr<const GrammarSpec>& grammar, ChatParsing& parsing) {
  if (!reader.ok() || tools.choice == ToolFields::Choice::kNone) return;
  parsing.tool_calls = limits.tool_calls;
  parsing.tool_names = tools.names;
  parsing.parallel_tool_calls = tools.parallel;
  const bool is_forced = tools.choice != ToolFields::Choice::kAuto;
  if (!is_forced && (tools.strict.empty() || grammar)) return;
  if (grammar) {
    return reader.fail("tool_choice", fmt::format("forces a call and excludes {}", grammar->field));
  }
  // A single named function is called once, as in OpenAI's API.
  const bool several = tools.parallel && tools.choice != ToolFields::Choice::kNamed;
  auto spec = is_forced ? tool_choice_grammar(*limits.chat_format, tools.tools_json, tools.function, several)
                        : strict_calls_grammar(*limits.chat_format, tools.tools_json, tools.strict, several);
  if (!spec.ok()) return reader.fail(is_forced ? "tool_choice" : "tools", spec.status().message);
  grammar = std::make_shared<const GrammarSpec>(std::move(spec).value());
  const auto format = resolve_tool_call_format("auto", *limits.chat_format);
  if (parsing.tool_calls == ToolCallFormat::kNone && format.ok()) parsing.tool_calls = *format;
}

// Returns true if <think> or </think> is a special token, because decoding must then keep special tokens.
bool tags_are_special(const Tokenizer& tokenizer) {
  for (const std::string_view tag : {kThink, kEndThink}) {
    const auto id = tokenizer.token_to_id(tag);
    if (id && tokenizer.is_special(*id)) return true;
  }
  return false;
}

}  // namespace

void read_content_special_tokens(FieldReader& reader, const OpenAiLimits& limits, ChatInput& input) {
  std::string mode = limits.content_as_text ? "text" : "special";
  reader.choice("content_special_tokens", mode, {"text", "special"});
  input.content_as_text = mode == "text";
}

void make_chat(FieldReader& reader, const OpenAiLimits& limits, ChatInput input, OpenAiChatRequest& out) {
  if (!reader.ok()) return;
  OpenAiItem item;
  item.request.logprobs = input.logprobs;
  item.request.long_logprobs = true;
  out.logprobs = input.logprobs.enabled;
  if (!limits.chat_format || limits.tokenizer == nullptr) {
    return reader.fail("messages", limits.tokenizer == nullptr
                                       ? "the server runs without a tokenizer (--skip-tokenizer-init)"
                                       : "the model has no known chat template; choose one with "
                                         "--chat-template or use /v1/completions");
  }

  ChatOptions& options = input.options;
  const ToolFields& tools = input.tools;
  options.tools_json = tools.tools_json;
  options.max_bytes = max_prompt_bytes(*limits.tokenizer, limits.prompt);
  if (tools.tools_json.size() > options.max_bytes) {  // a prompt cut inside the tools would have no messages
    return reader.fail("tools", fmt::format("are {} bytes of JSON; at most {} can fit into a prompt",
                                            tools.tools_json.size(), options.max_bytes));
  }
  const auto prompt = render_marked_chat(*limits.chat_format, input.messages, options);
  if (!prompt.ok()) {
    const std::string& why = prompt.status().message;
    const std::string_view field =
        tools.tools_json.empty() || why.starts_with("messages") ? "messages" : "tools";
    // Most of these errors begin with the position in the field.
    if (why.starts_with(field)) return reader.refuse(field, invalid_argument("{}", why));
    return reader.fail(field, why);
  }
  const std::span<const TextRange> literal =
      input.content_as_text ? prompt->content : std::span<const TextRange>();
  auto ids = encode_prompt(*limits.tokenizer, prompt->text, false, limits.prompt, literal);
  if (!ids.ok()) return reader.fail("messages", ids.status());

  // If the model reads the contents as plain text, a <think> in them does not open the reasoning either.
  const std::string turns = input.content_as_text ? prompt->without_content() : prompt->text;
  const auto natural = resolve_reasoning_format("auto", *limits.chat_format);
  out.opened_thinking = natural.ok() && starts_in_reasoning(*natural, turns);
  if (input.separate_reasoning) {
    out.parsing.reasoning = limits.reasoning;
    out.parsing.starts_in_reasoning = starts_in_reasoning(limits.reasoning, turns);
  }
  item.grammar = std::move(input.fields.sampling.grammar);
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
      fit_openai_prompts(reader, limits, input.fields, item.request.logprobs, std::nullopt, "messages",
                         input.length_field, std::span(&ids.value(), 1), out.common.places);
  item.request.input_ids = std::move(ids).value();
  if (reader.ok()) add_openai_prompt(reader, limits, input.fields, std::move(item), lengths[0], out.common);
  make_openai_choices(reader, input.fields, input.id_prefix, out.common);
}

}  // namespace hadal::server
