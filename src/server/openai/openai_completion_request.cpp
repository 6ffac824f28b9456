#include "server/openai/openai_completion_request.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/json.hpp>

#include "server/admission/memory_costs.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's default

struct CompletionPrompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::optional<std::string>> texts;  // as the client wrote them; none for prompts given as ids
};

void add_text(FieldReader& reader, const json::string& text, const OpenAiLimits& limits,
              CompletionPrompts& prompts) {
  prompts.texts.emplace_back(std::in_place, text.data(), text.size());
  auto ids = encode_prompt(*limits.tokenizer, *prompts.texts.back(), true, limits.prompt);
  if (!ids.ok()) return reader.fail("prompt", ids.status());
  prompts.ids.push_back(std::move(ids).value());
}

void add_ids(FieldReader& reader, const std::string& name, const json::value& list,
             const OpenAiLimits& limits, CompletionPrompts& prompts) {
  json::object one;  // the list, under the name that errors should show
  one.emplace(name, list);
  FieldReader inner(one);
  prompts.texts.emplace_back();
  inner.integers(name, prompts.ids.emplace_back(), 0, limits.vocab_size - 1);
  if (inner.ok() && prompts.ids.back().empty()) inner.fail(name, "is empty; must be one token id or more");
  reader.adopt(inner);
}

void read_completion_prompts(FieldReader& reader, const OpenAiLimits& limits, CompletionPrompts& prompts) {
  constexpr std::string_view kAllowed =
      "a string, a list of strings, a list of token ids or a list of such lists";
  if (!reader.ok()) return;
  const json::value* value = reader.find("prompt");
  if (value == nullptr) return reader.fail("prompt", fmt::format("is missing; must be {}", kAllowed));
  if (const json::string* text = value->if_string()) return add_text(reader, *text, limits, prompts);
  const json::array* list = value->if_array();
  if (list == nullptr) return reader.must_be("prompt", *value, kAllowed);
  if (list->empty() || list->size() > (list->empty() || list->front().is_number() ? SIZE_MAX : kMaxBatch)) {
    return reader.fail("prompt",
                       fmt::format("has {} entries; 1 to {} prompts are allowed", list->size(), kMaxBatch));
  }
  if (list->front().is_number()) return add_ids(reader, "prompt", *value, limits, prompts);
  for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
    const json::value& entry = (*list)[i];
    const std::string name = fmt::format("prompt[{}]", i);
    if (const json::string* text = entry.if_string()) {
      add_text(reader, *text, limits, prompts);
    } else if (entry.is_array()) {
      add_ids(reader, name, entry, limits, prompts);
    } else {
      reader.must_be(name, entry, "a string or a list of token ids");
    }
  }
}

void read_completion_logprobs(FieldReader& reader, bool echo, const RequestLimits& limits,
                              LogprobOptions& out) {
  if (!reader.has("logprobs")) return;
  read_num_alternatives(reader, "logprobs", kMaxTopLogprobs, limits, out.top_num);
  out.enabled = true;
  if (echo) out.start = 0;
}

void read_completion(FieldReader& reader, const OpenAiLimits& limits, OpenAiCompletionRequest& out) {
  if (limits.tokenizer == nullptr) {
    return reader.fail(
        "prompt",
        "the server runs without a tokenizer (--skip-tokenizer-init); use /generate with input_ids");
  }
  OpenAiFields fields;
  reader.unsupported({"content_special_tokens"}, kOnlyForMessages);
  reader.unsupported({"messages", "tools", "functions", "thinking", "continue_final_message"},
                     "a prompt has no messages; use /v1/chat/completions");
  check_openai_fields(reader, out.common);
  read_openai_fields(reader, limits, out.common, fields);
  if (const json::value* suffix = reader.find("suffix"); suffix != nullptr) {
    if (!suffix->is_string() || !suffix->get_string().empty()) {
      reader.fail("suffix", "is not supported: the models do not fill in the middle of a text");
    }
  }
  read_answer_length(reader, "max_tokens", fields.sampling.max_new_tokens, 0, limits.prompt);
  reader.boolean("echo", out.echo);
  OpenAiItem prototype;
  read_completion_logprobs(reader, out.echo, limits.request, prototype.request.logprobs);
  out.logprobs = prototype.request.logprobs.enabled;
  out.skip_special_tokens = fields.sampling.skip_special_tokens;
  std::optional<int64_t> best_of;
  reader.integer("best_of", best_of, 1, kMaxChoices);
  if (reader.ok() && best_of && *best_of != 1 && *best_of != fields.sampling.n) {
    reader.must_be("best_of", *reader.find("best_of"),
                   fmt::format("1 or n, which is {}: choices are not ranked", fields.sampling.n));
  }
  CompletionPrompts prompts;
  read_completion_prompts(reader, limits, prompts);
  prototype.grammar = std::move(fields.sampling.grammar);
  const std::vector<int64_t> lengths =
      fit_openai_prompts(reader, limits, fields, prototype.request.logprobs, kDefaultMaxTokens, "prompt",
                         "max_tokens", prompts.ids, out.common.places);
  for (size_t i = 0; i < prompts.ids.size() && reader.ok(); ++i) {
    OpenAiItem item = prototype;
    item.prompt = i;
    item.request.input_ids = std::move(prompts.ids[i]);
    if (out.echo) {
      // Each choice begins with the prompt's text. It has three copies: the text, its JSON and the answer's.
      const size_t bytes = std::max(prompts.texts[i] ? prompts.texts[i]->size() : 0,
                                    item.request.input_ids.size() * kIdTextBytes);
      const Result<void> charged = out.common.memory.add(
          MemoryKind::kOutput, static_cast<size_t>(fields.sampling.n) * bytes * kTextBytesPerByte);
      if (!charged.ok()) return reader.refuse({}, charged.status());
      out.echo_texts.push_back(
          prompts.texts[i] ? *std::move(prompts.texts[i])
                           : limits.tokenizer->decode(item.request.input_ids, out.skip_special_tokens));
    }
    add_openai_prompt(reader, limits, fields, std::move(item), lengths[i], out.common);
  }
  make_openai_choices(reader, fields, "cmpl-", out.common);
}

}  // namespace

std::variant<OpenAiCompletionRequest, FieldError> parse_openai_completion(std::string_view body,
                                                                          const OpenAiLimits& limits) {
  MemoryCharge reading(limits.prompt.memory);
  auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return FieldError{parsed.status(), {}};
  FieldReader reader(parsed.value());
  OpenAiCompletionRequest out;
  out.common.memory = MemoryCharge(limits.prompt.memory);
  read_completion(reader, limits, out);
  if (!reader.ok()) return FieldError{reader.status(), reader.failed_field()};
  return out;
}

}  // namespace hadal::server
