#include "server/anthropic/anthropic_request.h"

#include <utility>

#include <boost/json.hpp>

#include "server/anthropic/anthropic_messages.h"
#include "server/generation/chat_input.h"
#include "server/generation/dialect_chat.h"
#include "server/json/known_fields.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

constexpr int64_t kMinThinkingBudget = 1024;  // Anthropic's bound

void refuse_unsupported_anthropic(FieldReader& reader) {
  reader.unsupported({"max_completion_tokens", "max_output_tokens"}, "use max_tokens");
  reader.unsupported({"reasoning_effort"}, "use thinking");
  reader.unsupported({"container", "mcp_servers"}, "the server has no tools of its own");
  reader.unsupported({"context_management"}, "the client keeps the conversation and may shorten it");
}

// Reads thinking. Its budget is checked but does not bound the reasoning, which max_tokens bounds.
void read_thinking_budget(FieldReader& reader, std::optional<int64_t> max_tokens, bool& thinking,
                          bool& omit) {
  const json::value* value = reader.find("thinking");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr)
    return reader.must_be("thinking", *value, "an object whose type is enabled, adaptive or disabled");
  FieldReader inner(*object, "thinking.");
  std::string type;
  if (!inner.has("type")) inner.fail("type", "is missing; must be enabled, adaptive or disabled");
  inner.choice("type", type, {"enabled", "adaptive", "disabled"});
  thinking = type != "disabled";
  std::string display;
  inner.choice("display", display, {"summarized", "omitted"});
  omit = display == "omitted";
  std::optional<int64_t> budget;
  inner.integer("budget_tokens", budget, kMinThinkingBudget, kMaxTokenCount);
  if (inner.ok() && budget && max_tokens && *budget >= *max_tokens) {
    inner.must_be(
        "budget_tokens", *inner.find("budget_tokens"),
        fmt::format("at least {} and less than max_tokens, which is {}", kMinThinkingBudget, *max_tokens));
  }
  if (type == "enabled" && !budget)
    inner.fail("budget_tokens", fmt::format("is missing; must be {} or more", kMinThinkingBudget));
  reader.adopt(inner);
}

void read_schema_format(FieldReader& reader, std::string_view field, std::string prefix,
                        std::shared_ptr<const GrammarSpec>& grammar) {
  const json::value* value = reader.find(field);
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  const std::string place = prefix + std::string(field);
  if (object == nullptr) return reader.must_be(field, *value, "{\"type\": \"json_schema\", \"schema\"}");
  FieldReader format(*object, place + ".");
  std::string type;
  format.text("type", type);
  if (format.ok() && type != "json_schema") format.must_be("type", json::value(type), "json_schema");
  auto schema = read_output_schema(format, "schema", place + ".schema");
  reader.adopt(format);
  if (!reader.ok()) return;
  if (grammar)
    return reader.fail(field, fmt::format("excludes {}; only one of them may be given", grammar->field));
  grammar = std::move(schema);
}

// Reads output_config and output_format, its older form. The effort in output_config makes no difference,
// because the models have no levels of effort.
void read_output(FieldReader& reader, std::shared_ptr<const GrammarSpec>& grammar) {
  read_schema_format(reader, "output_format", {}, grammar);
  const json::value* value = reader.find("output_config");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("output_config", *value, "an object");
  FieldReader config(*object, "output_config.");
  std::string effort;
  config.choice("effort", effort, {"low", "medium", "high", "xhigh", "max"});
  read_schema_format(config, "format", "output_config.", grammar);
  reader.adopt(config);
}

void read_stop_sequences(FieldReader& reader, SamplingFields& sampling) {
  std::vector<std::string> strings;
  reader.texts("stop_sequences", strings, kMaxStops, kMaxStopBytes);
  if (!reader.ok() || strings.empty()) return;
  if (sampling.stops) return reader.fail("stop_sequences", "excludes stop and stop_regex");
  auto compiled = StopPatterns::compile(strings, {});
  if (!compiled.ok()) return reader.fail("stop_sequences", compiled.status().message);
  if (!(*compiled)->empty()) sampling.stops = std::move(compiled).value();
}

// If the last message is the assistant's, it is the beginning of the answer.
void continue_last_turn(FieldReader& reader, const ChatMessages& messages, ChatOptions& options) {
  if (!reader.ok() || messages.list.empty() || messages.list.back().role != "assistant") return;
  if (!messages.list.back().tool_calls.empty()) {
    return reader.fail(messages.places.back() + ".content",
                       "has a tool_use, after which a message of the user must have its tool_result");
  }
  options.continue_final_message = true;
}

// Reads the body into `out`, and returns the places of its messages for errors. With `counting` only the
// fields of the prompt matter.
std::vector<std::string> read_messages_body(FieldReader& reader, const OpenAiLimits& limits, bool counting,
                                            AnthropicRequest& out) {
  refuse_unsupported_anthropic(reader);
  ChatInput input;
  input.id_prefix = "msg_";
  std::string accepted;
  reader.choice("service_tier", accepted, {"auto", "standard_only"});
  read_openai_fields(reader, limits, out.common, input.fields);
  out.common.unknown_fields = num_unknown_fields(reader.object(), BodyKind::kMessages);
  need_one_choice(reader, input.fields);
  std::optional<int64_t>& length = input.fields.sampling.max_new_tokens;
  read_answer_length(reader, "max_tokens", length, 1, limits.prompt);
  if (!counting && !reader.has("max_tokens"))
    reader.fail("max_tokens", "is missing; must be the most tokens that the answer may have");
  read_thinking_budget(reader, length, input.options.thinking, out.omit_thinking);
  read_stop_sequences(reader, input.fields.sampling);
  read_output(reader, input.fields.sampling.grammar);
  if (counting) {
    length = 1;
    input.fields.sampling.params.min_new_tokens = 0;
  }
  ChatMessages messages;
  read_anthropic_messages(reader, messages);
  continue_last_turn(reader, messages, input.options);
  read_anthropic_tools(reader, input.tools);
  read_content_special_tokens(reader, limits, input);
  input.messages = std::move(messages.list);
  make_chat(reader, limits, std::move(input), out);
  return std::move(messages.places);
}

std::variant<AnthropicRequest, FieldError> parse_messages_request(std::string_view body,
                                                                  const OpenAiLimits& limits, bool counting) {
  MemoryCharge reading(limits.prompt.memory);
  auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return FieldError{parsed.status(), {}};
  FieldReader reader(parsed.value());
  AnthropicRequest out;
  out.common.memory = MemoryCharge(limits.prompt.memory);
  std::vector<std::string> places = read_messages_body(reader, limits, counting, out);
  if (reader.ok()) return out;
  return renamed({reader.status(), reader.failed_field()},
                 {.places = std::move(places),
                  .words = {{".function.parameters", ".input_schema"}, {".function.", "."}}});
}

}  // namespace

std::variant<AnthropicRequest, FieldError> parse_anthropic_messages(std::string_view body,
                                                                    const OpenAiLimits& limits) {
  return parse_messages_request(body, limits, false);
}

std::variant<int64_t, FieldError> count_anthropic_tokens(std::string_view body, const OpenAiLimits& limits) {
  OpenAiLimits own = limits;
  own.reserve = nullptr;
  own.prompt.allow_auto_truncate = false;  // a cut prompt would give a wrong count
  auto parsed = parse_messages_request(body, own, true);
  if (auto* error = std::get_if<FieldError>(&parsed)) return std::move(*error);
  return static_cast<int64_t>(std::get<AnthropicRequest>(parsed).common.items.at(0).request.input_ids.size());
}

}  // namespace hadal::server
