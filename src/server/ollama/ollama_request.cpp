#include "server/ollama/ollama_request.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/admission/cache_salt.h"
#include "server/generation/chat_input.h"
#include "server/json/known_fields.h"
#include "server/ollama/ollama_messages.h"
#include "server/ollama/ollama_options.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

constexpr std::string_view kPromptField = "prompt";

// Reads format: "json", or a JSON schema.
void read_ollama_format(FieldReader& reader, std::shared_ptr<const GrammarSpec>& grammar) {
  const json::value* value = reader.find("format");
  if (value == nullptr || !reader.ok()) return;
  const json::string* word = value->if_string();
  if (word != nullptr && word->empty()) return;
  GrammarSpec spec{.kind = GrammarKind::kJsonObject, .text = {}, .field = "format"};
  if (value->is_object()) {
    spec.kind = GrammarKind::kJsonSchema;
    spec.text = grammar_text(reader, "format", *value);
  } else if (word == nullptr || *word != "json") {
    return reader.must_be("format", *value, "\"json\" or a JSON schema, which is an object");
  }
  grammar = std::make_shared<const GrammarSpec>(std::move(spec));
}

// Reads think. The models have no levels of thinking, so each level just switches it on. A value that the
// chat format cannot honour is refused.
void read_think(FieldReader& reader, const OpenAiLimits& limits, ChatOptions& options) {
  const json::value* value = reader.find("think");
  if (value == nullptr || !reader.ok()) return;
  constexpr std::string_view kLevels[] = {"low", "medium", "high", "max"};
  const json::string* level = value->if_string();
  const bool is_level =
      level != nullptr && std::find(std::begin(kLevels), std::end(kLevels), *level) != std::end(kLevels);
  if (!value->is_bool() && !is_level)
    return reader.must_be("think", *value, "true, false, low, medium, high or max");
  const bool wanted = is_level || value->get_bool();
  if (!limits.chat_format) return;
  options.thinking = wanted;
  const bool thinks = generation_starts_in_reasoning(*limits.chat_format, options);
  if (thinks == wanted) return;
  reader.must_be(
      "think", *value,
      fmt::format("{}: models with the chat format {} {}", thinks ? "true" : "false",
                  to_string(*limits.chat_format), thinks ? "always think" : "cannot be asked to think"));
}

// keep_alive is how long a model stays loaded. The model of this server stays loaded until the server ends.
// That satisfies every value except 0 with nothing to generate, which asks to unload it at once.
void read_keep_alive(FieldReader& reader, bool loads_only) {
  const json::value* value = reader.find("keep_alive");
  if (value == nullptr || !reader.ok()) return;
  if (!value->is_string() && !value->is_number()) {
    return reader.must_be("keep_alive", *value, "a duration (\"5m\") or a number of seconds");
  }
  const bool is_zero = value->is_string() ? value->get_string() == "0" || value->get_string() == "0s"
                                          : value->to_number<double>() == 0;
  if (loads_only && is_zero) {
    reader.fail(
        "keep_alive",
        "is 0 without anything to generate, which asks to unload the model; it stays loaded as long as "
        "the server runs");
  }
}

// Reads the fields that both endpoints share.
void read_common(FieldReader& reader, const OpenAiLimits& limits, ChatInput& input, OllamaRequest& out) {
  out.common.unknown_fields =
      num_unknown_fields(reader.object(), out.is_chat ? BodyKind::kOllamaChat : BodyKind::kOllamaGenerate);
  reader.unsupported({"_debug_render_only"}, "prompts are not returned");
  out.common.stream = true;
  read_model_name(reader, limits, out.common);
  reader.boolean("stream", out.common.stream);
  input.fields.sampling.params = limits.default_sampling;
  input.fields.sampling.params.min_new_tokens = 0;
  out.common.unknown_fields += read_ollama_options(reader, limits, input.fields.sampling);
  read_ollama_format(reader, input.fields.sampling.grammar);
  read_think(reader, limits, input.options);
  read_chat_logprobs(reader, limits.request, input.logprobs);
  read_cache_salt(reader, "cache_salt", input.fields.cache_salt);
  read_content_special_tokens(reader, limits, input);
  input.length_field = kOllamaLengthField;
  input.id_prefix = "ollama-";
}

void read_chat(FieldReader& reader, const OpenAiLimits& limits, OllamaRequest& out) {
  ChatInput input;
  out.is_chat = true;
  read_common(reader, limits, input, out);
  read_tools(reader, input.tools);
  read_ollama_messages(reader, input.messages);
  out.loads_only = input.messages.empty();
  read_keep_alive(reader, out.loads_only);
  if (!out.loads_only) make_chat(reader, limits, std::move(input), out);
}

// A raw prompt is the whole text for the model, as on /v1/completions.
void make_raw(FieldReader& reader, const OpenAiLimits& limits, std::string_view prompt, ChatInput input,
              OllamaRequest& out) {
  if (!reader.ok()) return;
  if (limits.tokenizer == nullptr) {
    return reader.fail(kPromptField, "the server runs without a tokenizer (--skip-tokenizer-init)");
  }
  auto ids = encode_prompt(*limits.tokenizer, prompt, true, limits.prompt);
  if (!ids.ok()) return reader.fail(kPromptField, ids.status());
  OpenAiItem item;
  item.request.logprobs = input.logprobs;
  item.request.long_logprobs = true;
  out.logprobs = input.logprobs.enabled;
  item.grammar = std::move(input.fields.sampling.grammar);
  const std::vector<int64_t> lengths =
      fit_openai_prompts(reader, limits, input.fields, input.logprobs, std::nullopt, kPromptField,
                         input.length_field, std::span(&ids.value(), 1), out.common.places);
  item.request.input_ids = std::move(ids).value();
  if (reader.ok()) add_openai_prompt(reader, limits, input.fields, std::move(item), lengths[0], out.common);
  make_openai_choices(reader, input.fields, input.id_prefix, out.common);
}

void read_generate(FieldReader& reader, const OpenAiLimits& limits, OllamaRequest& out) {
  ChatInput input;
  out.is_chat = false;
  read_common(reader, limits, input, out);
  refuse_ollama_images(reader, "images");
  reader.unsupported({"width", "height", "steps"}, "the models generate text only");
  std::string prompt;
  std::string system;
  std::string unused;
  bool raw = false;
  reader.text("prompt", prompt);
  reader.text("system", system);
  reader.boolean("raw", raw);
  reader.text("suffix", unused);
  if (!unused.empty()) {
    reader.fail("suffix", "is not supported: the models do not fill in the middle of a text");
  }
  unused.clear();
  reader.text("template", unused);
  if (!unused.empty()) {
    reader.fail(
        "template",
        "is not supported: the chat format is built in; raw leaves it out (--chat-template chooses it)");
  }
  reader.unsupported({"context"}, "send the conversation to /api/chat; its common prefix is cached");
  if (reader.ok() && raw && !system.empty()) {
    reader.fail("system", "excludes raw, because a raw prompt is the whole text for the model");
  }
  if (reader.ok() && raw && input.options.thinking) {
    reader.must_be("think", "false: a raw prompt is the whole text for the model");
  }
  out.loads_only = prompt.empty();
  read_keep_alive(reader, out.loads_only);
  if (out.loads_only) return;
  if (reader.ok() && raw && reader.has("content_special_tokens")) {
    reader.fail("content_special_tokens",
                "is not supported with raw: a raw prompt is the whole text for the model");
  }
  if (raw) return make_raw(reader, limits, prompt, std::move(input), out);
  if (!system.empty()) input.messages.push_back({.role = "system", .content = std::move(system)});
  input.messages.push_back({.role = "user", .content = std::move(prompt)});
  make_chat(reader, limits, std::move(input), out);
}

// The server makes the messages of /api/generate itself, so their errors are reported as errors of the
// prompt.
FieldError in_terms_of_prompt(FieldError error) {
  constexpr std::string_view kMessagesField = "messages";
  if (!error.field.starts_with(kMessagesField)) return error;
  error.field = kPromptField;
  if (error.status.message.starts_with(kMessagesField)) {
    const size_t end = error.status.message.find(": ");
    error.status.message = std::string(kPromptField) +
                           (end == std::string::npos ? error.status.message.substr(kMessagesField.size())
                                                     : error.status.message.substr(end));
  }
  return error;
}

std::variant<OllamaRequest, FieldError> parse_ollama_request(std::string_view body,
                                                             const OpenAiLimits& limits,
                                                             void (*read)(FieldReader&, const OpenAiLimits&,
                                                                          OllamaRequest&)) {
  MemoryCharge reading(limits.prompt.memory);
  auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return FieldError{parsed.status(), {}};
  FieldReader reader(parsed.value());
  OllamaRequest out;
  out.common.memory = MemoryCharge(limits.prompt.memory);
  read(reader, limits, out);
  if (!reader.ok()) return FieldError{reader.status(), reader.failed_field()};
  return out;
}

}  // namespace

std::variant<OllamaRequest, FieldError> parse_ollama_chat(std::string_view body, const OpenAiLimits& limits) {
  return parse_ollama_request(body, limits, read_chat);
}

std::variant<OllamaRequest, FieldError> parse_ollama_generate(std::string_view body,
                                                              const OpenAiLimits& limits) {
  auto parsed = parse_ollama_request(body, limits, read_generate);
  if (FieldError* error = std::get_if<FieldError>(&parsed)) *error = in_terms_of_prompt(std::move(*error));
  return parsed;
}

}  // namespace hadal::server
