#include "server/json/sampling_fields.h"

#include <charconv>

#include <boost/json.hpp>

#include "base/printable.h"
#include "text/grammar/grammar_schema.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

constexpr size_t kMaxBiases = 1024;

void read_logit_bias(FieldReader& reader, int64_t vocab_size, SamplingParams& params) {
  const json::value* value = reader.find("logit_bias");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("logit_bias", *value, "an object of token id to bias");
  if (object->size() > kMaxBiases) {
    return reader.fail("logit_bias",
                       fmt::format("has {} entries; at most {} are allowed", object->size(), kMaxBiases));
  }
  params.logit_bias.clear();
  for (const auto& entry : *object) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab_size) {
      return reader.fail("logit_bias", fmt::format("has the key {}; must be a token id in [0, {}]",
                                                   shown_text(key), vocab_size - 1));
    }
    float bias = 0.0F;
    FieldReader one(*object, reader.prefix() + "logit_bias.");
    one.number(key, bias, -100, 100);
    if (entry.value().is_null()) one.must_be(key, entry.value(), "a number in [-100, 100]");
    if (!one.ok()) return reader.adopt(one);
    params.logit_bias.emplace_back(id, bias);
  }
}

void read_stops(FieldReader& reader, StopRegexBudget& budget, std::shared_ptr<const StopPatterns>& out) {
  std::vector<std::string> strings;
  std::vector<std::string> regexes;
  reader.texts("stop", strings, kMaxStops, kMaxStopBytes);
  reader.texts("stop_regex", regexes, kMaxStopRegexes, kMaxStopBytes);
  if (!reader.ok() || (strings.empty() && regexes.empty())) return;
  auto compiled = StopPatterns::compile(strings, regexes, budget);
  if (!compiled.ok()) return reader.fail("stop_regex", compiled.status().message);
  if (!(*compiled)->empty()) out = std::move(compiled).value();
}

void read_grammar(FieldReader& reader, std::shared_ptr<const GrammarSpec>& out) {
  struct Kind {
    std::string_view name;
    GrammarKind kind;
    bool is_json;
  };
  constexpr Kind kKinds[] = {{"json_schema", GrammarKind::kJsonSchema, true},
                             {"regex", GrammarKind::kRegex, false},
                             {"ebnf", GrammarKind::kEbnf, false},
                             {"structural_tag", GrammarKind::kStructuralTag, true}};
  std::string_view first;
  for (const Kind& kind : kKinds) {
    const json::value* value = reader.find(kind.name);
    if (value == nullptr || !reader.ok()) continue;
    if (!first.empty()) {
      return reader.fail(kind.name, fmt::format("excludes {}; only one of them may be given", first));
    }
    first = kind.name;
    if (!value->is_string() && !(kind.is_json && value->is_object())) {
      return reader.must_be(kind.name, *value, kind.is_json ? "a string of JSON or an object" : "a string");
    }
    GrammarSpec spec{.kind = kind.kind,
                     .text = grammar_text(reader, kind.name, *value),
                     .field = reader.prefix() + std::string(kind.name)};
    if (spec.kind == GrammarKind::kJsonSchema && spec.text == "$$ANY$$") {
      // This is SGLang's value for any JSON object.
      spec = {.kind = GrammarKind::kJsonObject, .text = {}, .field = spec.field};
    }
    out = std::make_shared<const GrammarSpec>(std::move(spec));
  }
}

}  // namespace

void check_least_tokens(FieldReader& reader, std::string_view name, int64_t least, int64_t length,
                        std::string_view length_name) {
  if (least <= length) return;
  reader.must_be(name, json::value(least),
                 fmt::format("an integer in [0, {}], because {} is {}", length, length_name, length));
}

std::string text_or_json(const json::value& value) {
  if (const json::string* text = value.if_string()) return {text->data(), text->size()};
  return json::serialize(value);
}

std::string grammar_text(FieldReader& reader, std::string_view name, const json::value& value) {
  const json::string* text = value.if_string();
  std::string out = text == nullptr ? json::serialize(value) : std::string();
  const size_t size = text == nullptr ? out.size() : text->size();
  if (size > kMaxGrammarBytes) {
    reader.fail(name, fmt::format("has {} bytes; at most {} are allowed", size, kMaxGrammarBytes));
    return {};
  }
  if (text != nullptr) out.assign(text->data(), size);
  return out;
}

void read_common_sampling(FieldReader& reader, int64_t vocab_size, StopRegexBudget& stop_regexes,
                          SamplingFields& fields) {
  SamplingParams& params = fields.params;
  reader.number("temperature", params.temperature, 0, kMaxTemperature);
  reader.number("top_p", params.top_p, kMinTopP, 1);
  reader.integer("top_k", params.top_k, -1, kMaxTokenCount);
  if (params.top_k == 0) reader.fail("top_k", "is 0; must be 1 or more, or -1 for all");
  reader.number("min_p", params.min_p, 0, 1);
  reader.number("frequency_penalty", params.frequency_penalty, -2, 2);
  reader.number("presence_penalty", params.presence_penalty, -2, 2);
  reader.number("repetition_penalty", params.repetition_penalty, kMinRepetitionPenalty, 2);
  reader.boolean("ignore_eos", params.ignore_eos);
  reader.boolean("skip_special_tokens", fields.skip_special_tokens);
  reader.boolean("no_stop_trim", fields.no_stop_trim);
  read_stops(reader, stop_regexes, fields.stops);
  reader.integers("stop_token_ids", params.stop_token_ids, 0, vocab_size - 1, kMaxStops * 16);
  reader.integer("n", fields.n, 1, kMaxChoices);
  read_logit_bias(reader, vocab_size, params);
  read_grammar(reader, fields.grammar);
}

void read_native_sampling(FieldReader& reader, int64_t vocab_size, StopRegexBudget& stop_regexes,
                          SamplingFields& fields) {
  reader.only({"max_new_tokens",
               "min_new_tokens",
               "temperature",
               "top_p",
               "top_k",
               "min_p",
               "frequency_penalty",
               "presence_penalty",
               "repetition_penalty",
               "ignore_eos",
               "skip_special_tokens",
               "spaces_between_special_tokens",
               "no_stop_trim",
               "stop",
               "stop_regex",
               "stop_token_ids",
               "n",
               "logit_bias",
               "json_schema",
               "regex",
               "ebnf",
               "structural_tag",
               "sampling_seed",
               "stream_interval",
               "custom_params"});
  reader.unsupported({"custom_params"}, "custom logit processors are not supported");
  read_common_sampling(reader, vocab_size, stop_regexes, fields);
  reader.integer("min_new_tokens", fields.params.min_new_tokens, 0, kMaxTokenCount);
  std::optional<int64_t> seed;
  reader.integer("sampling_seed", seed, 0, std::numeric_limits<int64_t>::max());
  if (seed) fields.params.seed = static_cast<uint64_t>(*seed);
  // The value is checked and otherwise ignored. The server's own interval applies, because chunks may always
  // be larger than requested.
  int64_t stream_interval = 1;
  reader.integer("stream_interval", stream_interval, 1, kMaxTokenCount);
  bool spaces = true;  // byte-level tokens contain their own spaces, so nothing is put between them
  reader.boolean("spaces_between_special_tokens", spaces);
}

}  // namespace hadal::server
