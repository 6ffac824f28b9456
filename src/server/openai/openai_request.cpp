#include "server/openai/openai_request.h"

#include <algorithm>
#include <utility>

#include <boost/json.hpp>

#include "server/admission/cache_salt.h"
#include "server/admission/memory_costs.h"
#include "server/json/known_fields.h"
#include "server/json/random_id.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

constexpr size_t kMaxModelBytes = 256;

void refuse_unsupported_openai(FieldReader& reader) {
  reader.unsupported({"lora_path"}, "adapters are not supported; merge them into the checkpoint");
  reader.unsupported({"session_params"}, "there are no sessions; prefixes are reused without them");
  reader.unsupported({"return_hidden_states", "return_routed_experts"}, "internal states are not returned");
  reader.unsupported({"custom_logit_processor", "custom_params"}, "clients' code is not executed");
  reader.unsupported({"bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank"},
                     "prefill and decode run in one process");
  reader.unsupported({"extra_key"}, "use the field cache_salt");
  reader.unsupported({"return_cached_tokens_details", "return_meta_info", "return_prompt_token_ids",
                      "return_text_in_logprobs", "return_token_ids"},
                     "use /generate, whose answers have ids and meta_info");
  reader.unsupported({"logits_processors"}, "clients' code is not executed");
  reader.unsupported({"images_config", "max_dynamic_patch", "min_dynamic_patch", "image_max_dynamic_patch",
                      "video_max_dynamic_patch"},
                     "the models read text only");
  reader.unsupported({"prediction"}, "the server makes no use of predicted text");
  for (const std::string_view rank : {"data_parallel_rank", "routed_dp_rank"}) {
    int64_t only_rank = 0;
    reader.integer(rank, only_rank, 0, 0, "there is one replica");
  }
  if (reader.has("web_search_options"))
    reader.fail("web_search_options", "is not supported: the server does not search");
  std::string accepted;
  reader.choice("prompt_cache_retention", accepted, {"in_memory", "in-memory"});
  const json::value* verbosity = reader.find("verbosity");
  if (verbosity != nullptr && *verbosity != "medium")
    reader.must_be("verbosity", *verbosity, "medium, because the models have no degrees of verbosity");
  // These are vLLM's names. If they were ignored, a client that expects JSON would get free text.
  reader.unsupported({"guided_json", "structured_outputs", "guided_decoding_backend"},
                     "use the field response_format, json_schema, regex or ebnf");
  reader.unsupported({"guided_regex", "guided_choice"}, "use the field regex");
  reader.unsupported({"guided_grammar"}, "use the field ebnf");
}

void read_stream_options(FieldReader& reader, OpenAiRequest& request) {
  const json::value* value = reader.find("stream_options");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("stream_options", *value, "an object");
  FieldReader inner(*object, "stream_options.");
  inner.boolean("include_usage", request.include_usage);
  inner.boolean("continuous_usage_stats", request.continuous_usage);
  inner.unsupported({"include_obfuscation"}, "events have no padding");
  reader.adopt(inner);
}

void read_rids(FieldReader& reader, std::vector<std::string>& rids) {
  reader.texts("rid", rids, kMaxBatch);
  for (const std::string& rid : rids) {
    if (!rid.empty() && rid.size() <= kMaxRidBytes) continue;
    reader.fail("rid", fmt::format("has {} bytes; 1 to {} are allowed", rid.size(), kMaxRidBytes));
  }
}

// Makes a grammar from the value of a field "schema".
std::shared_ptr<const GrammarSpec> schema_grammar(FieldReader& reader, const json::value& value) {
  if (!value.is_object() && !value.is_bool() && !value.is_string()) {
    reader.must_be("schema", value, "a JSON schema");
    return nullptr;
  }
  return std::make_shared<const GrammarSpec>(GrammarSpec{.kind = GrammarKind::kJsonSchema,
                                                         .text = grammar_text(reader, "schema", value),
                                                         .field = reader.prefix() + "schema"});
}

void read_json_schema(FieldReader& format, std::shared_ptr<const GrammarSpec>& grammar) {
  const json::value* value = format.find("json_schema");
  constexpr std::string_view kAllowed = "an object with a name and a schema";
  if (value == nullptr) return format.fail("json_schema", fmt::format("is missing; must be {}", kAllowed));
  if (!value->is_object()) return format.must_be("json_schema", *value, kAllowed);
  FieldReader schema(value->get_object(), "response_format.json_schema.");
  std::string name;
  bool strict = false;  // a schema is enforced either way
  schema.text("name", name);
  schema.boolean("strict", strict);
  const json::value* text = schema.find("schema");
  if (text == nullptr) {
    schema.fail("schema", "is missing; must be a JSON schema");
  } else {
    grammar = schema_grammar(schema, *text);
  }
  format.adopt(schema);
}

void read_response_format(FieldReader& reader, std::shared_ptr<const GrammarSpec>& grammar) {
  const json::value* value = reader.find("response_format");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("response_format", *value, "an object with a type");
  FieldReader format(*object, "response_format.");
  std::string type;
  if (!format.has("type")) {
    format.must_be("type", json::value(nullptr), "text, json_object, json_schema or structural_tag");
  }
  format.choice("type", type, {"text", "json_object", "json_schema", "structural_tag"});
  std::shared_ptr<const GrammarSpec> wanted;
  if (!format.ok() || type == "text") {
    // There is nothing to enforce.
  } else if (const json::value* schema = format.find("schema"); type == "json_object" && schema != nullptr) {
    wanted = schema_grammar(format, *schema);
  } else if (type == "json_object") {
    wanted = std::make_shared<const GrammarSpec>(
        GrammarSpec{.kind = GrammarKind::kJsonObject, .text = {}, .field = "response_format"});
  } else if (type == "json_schema") {
    read_json_schema(format, wanted);
  } else {
    wanted = std::make_shared<const GrammarSpec>(
        GrammarSpec{.kind = GrammarKind::kStructuralTag,
                    .text = grammar_text(reader, "response_format", *value),
                    .field = "response_format"});
  }
  reader.adopt(format);
  if (!wanted) return;
  if (grammar) {
    return reader.fail("response_format",
                       fmt::format("excludes {}; only one of them may be given", grammar->field));
  }
  grammar = std::move(wanted);
}

}  // namespace

std::vector<size_t> prompts_of(const OpenAiRequest& request) {
  std::vector<size_t> prompts;
  for (const OpenAiItem& item : request.items) prompts.push_back(item.prompt);
  return prompts;
}

void read_model_name(FieldReader& reader, const OpenAiLimits& limits, OpenAiRequest& request) {
  request.model = limits.model_name;
  reader.text("model", request.model);
  // Every event of a stream repeats the name.
  if (request.model.size() > kMaxModelBytes) {
    reader.fail("model",
                fmt::format("has {} bytes; must have at most {}", request.model.size(), kMaxModelBytes));
  }
}

void check_openai_fields(FieldReader& reader, OpenAiRequest& request) {
  request.unknown_fields = num_unknown_fields(reader.object(), BodyKind::kOpenAi);
  reader.unsupported({"store"}, "answers are not stored");
  std::string accepted;
  reader.choice("service_tier", accepted, {"auto", "default"});
}

void read_openai_fields(FieldReader& reader, const OpenAiLimits& limits, OpenAiRequest& request,
                        OpenAiFields& fields) {
  refuse_unsupported_openai(reader);
  read_model_name(reader, limits, request);
  reader.boolean("stream", request.stream);
  read_stream_options(reader, request);
  if (!request.stream) request.include_usage = request.continuous_usage = false;
  read_rids(reader, fields.rids);
  reader.integer("priority", fields.priority, -kMaxPriority, kMaxPriority);
  read_cache_salt(reader, "cache_salt", fields.cache_salt);
  fields.sampling.params = limits.default_sampling;
  fields.sampling.params.min_new_tokens = 0;
  StopRegexBudget stop_regexes;
  read_common_sampling(reader, limits.vocab_size, stop_regexes, fields.sampling);
  reader.integer("min_tokens", fields.sampling.params.min_new_tokens, 0, kMaxTokenCount);
  std::optional<int64_t> seed;
  reader.integer("seed", seed, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (seed) fields.sampling.params.seed = static_cast<uint64_t>(*seed);
  read_response_format(reader, fields.sampling.grammar);
}

std::vector<int64_t> fit_openai_prompts(FieldReader& reader, const OpenAiLimits& limits,
                                        const OpenAiFields& fields, const LogprobOptions& logprobs,
                                        std::optional<int64_t> fallback, std::string_view prompt_field,
                                        std::string_view length_field,
                                        std::span<std::vector<int32_t>> prompts, QueuePlaces& places) {
  std::vector<int64_t> lengths;
  if (!reader.ok()) return lengths;
  const SamplingFields& sampling = fields.sampling;
  lengths.reserve(prompts.size());
  RequestBudget budget(limits.request);
  for (std::vector<int32_t>& prompt : prompts) {
    const auto length = fit_prompt(prompt, sampling.max_new_tokens, fallback, limits.prompt);
    if (!length.ok()) {
      reader.fail(prompt_fits(prompt, limits.prompt) ? length_field : prompt_field, length.status().message);
      return lengths;
    }
    // The client's lower bound is checked only against a length that the client itself has set.
    const bool is_clients = sampling.max_new_tokens && !limits.prompt.allow_auto_truncate;
    if (is_clients)
      check_least_tokens(reader, "min_tokens", sampling.params.min_new_tokens, *length, length_field);
    if (!reader.ok()) return lengths;
    lengths.push_back(*length);
    budget.add(static_cast<int64_t>(prompt.size()), *length, logprobs, sampling.n);
  }
  if (prompts.size() * static_cast<size_t>(sampling.n) > kMaxBatch) {
    reader.fail(
        "n",
        fmt::format("is {} for {} prompts, which are {} choices; at most {} are allowed in one request",
                    sampling.n, prompts.size(), prompts.size() * static_cast<size_t>(sampling.n), kMaxBatch));
  }
  if (const auto tokens = budget.check_tokens(); !tokens.ok()) reader.refuse({}, tokens.status());
  if (const auto scores = budget.check_prompt_logprobs(); !scores.ok())
    reader.fail("logprobs", scores.status());
  reserve_places(reader, limits.reserve, std::ssize(prompts) * sampling.n, places);
  return lengths;
}

void add_openai_prompt(FieldReader& reader, const OpenAiLimits& limits, const OpenAiFields& fields,
                       OpenAiItem prototype, int64_t length, OpenAiRequest& request) {
  if (!reader.ok()) return;
  const SamplingFields& sampling = fields.sampling;
  GenerationRequest& generation = prototype.request;
  generation.sampling = sampling.params;
  // The server may have lowered the length below the client's min_new_tokens.
  generation.sampling.min_new_tokens = std::min(generation.sampling.min_new_tokens, length);
  generation.sampling.max_new_tokens = length;
  generation.stops = sampling.stops;
  generation.skip_special_tokens = generation.skip_special_tokens && sampling.skip_special_tokens;
  generation.no_stop_trim = sampling.no_stop_trim;
  generation.priority = static_cast<int32_t>(fields.priority);
  generation.cache_salt = fields.cache_salt;
  generation.stream = request.stream;
  generation.keeps_answer = !request.stream || request.repeats_answer;
  const Result<void> charged = charge_choices(request.memory, generation, sampling.n,
                                              prototype.grammar == nullptr ? 0 : limits.vocab_size);
  if (!charged.ok()) return reader.refuse({}, charged.status());
  request.items.push_back(std::move(prototype));
}

void make_openai_choices(FieldReader& reader, const OpenAiFields& fields, std::string_view prefix,
                         OpenAiRequest& request) {
  if (!reader.ok()) return;
  const std::vector<std::string>& given = fields.rids;
  const size_t num_prompts = request.items.size();
  const auto n = static_cast<size_t>(fields.sampling.n);
  const size_t count = num_prompts * n;
  if (given.size() > 1 && given.size() != num_prompts) {
    return reader.must_be(
        "rid", *reader.find("rid"),
        fmt::format("one value for all prompts, or a list of {}, one for each prompt", num_prompts));
  }
  request.id = given.empty() ? std::string(prefix) + random_id() : given.front();
  std::vector<std::string> rids;
  rids.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = given.size() > 1 ? given[i / n] : request.id;
    const bool is_alone = count == (given.size() > 1 ? num_prompts : 1);
    rids.push_back(is_alone ? name : fmt::format("{}_{}", name, i));
  }
  if (given.size() > 1) {
    check_rids_differ(
        reader, count, [&](size_t i) -> const std::string& { return rids[i]; },
        [&](size_t i) { return i / n; });
    if (!reader.ok()) return;
  }
  std::vector<OpenAiItem> choices;
  choices.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t choice = i % n;
    OpenAiItem& first = request.items[i / n];
    OpenAiItem item = choice + 1 < n ? first : std::move(first);
    item.request.rid = std::move(rids[i]);
    item.request.further_choice = choice > 0;
    // Choices with the same seed would all have the same text.
    if (item.request.sampling.seed) *item.request.sampling.seed += choice;
    choices.push_back(std::move(item));
  }
  request.items = std::move(choices);
}

}  // namespace hadal::server
