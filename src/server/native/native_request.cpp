#include "server/native/native_request.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/admission/cache_salt.h"
#include "server/admission/memory_costs.h"
#include "server/json/json_fields.h"
#include "server/json/random_id.h"
#include "server/json/sampling_fields.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

constexpr int64_t kDefaultMaxNewTokens = 128;
// Limits of what is compiled for one request, whatever the number of its prompts.
constexpr size_t kMaxBatchRegexes = 64;
constexpr size_t kMaxBatchGrammars = 64;

std::string text_of(const json::string& text) {
  return {text.data(), text.size()};
}

// NativePrompts holds the prompts as token ids, and whether they were given as a list. Texts are encoded
// here.
struct NativePrompts {
  std::vector<std::vector<int32_t>> ids;
  bool is_list = false;
};

void read_texts(FieldReader& reader, const json::value& value, const NativeLimits& limits,
                NativePrompts& prompts) {
  if (limits.tokenizer == nullptr) {
    return reader.fail("text", "the server runs without a tokenizer (--skip-tokenizer-init); use input_ids");
  }
  const auto add = [&](const json::string& text) {
    auto ids = encode_prompt(*limits.tokenizer, {text.data(), text.size()}, true, limits.prompt);
    if (!ids.ok()) return reader.refuse("text", ids.status());
    prompts.ids.push_back(std::move(ids).value());
  };
  if (const json::string* text = value.if_string()) return add(*text);
  const json::array* list = value.if_array();
  if (list == nullptr) return reader.must_be("text", value, "a string or a list of strings");
  prompts.is_list = true;
  if (list->empty() || list->size() > kMaxBatch) {
    return reader.fail("text", fmt::format("has {} entries; 1 to {} are allowed", list->size(), kMaxBatch));
  }
  for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
    const json::string* text = (*list)[i].if_string();
    if (text == nullptr) return reader.must_be(fmt::format("text[{}]", i), (*list)[i], "a string");
    add(*text);
  }
}

void read_ids(FieldReader& reader, const json::value& value, const NativeLimits& limits,
              NativePrompts& prompts) {
  const json::array* list = value.if_array();
  if (list == nullptr)
    return reader.must_be("input_ids", value, "a list of token ids, or a list of such lists");
  if (list->empty()) return reader.fail("input_ids", "is empty; must be one token id or more");
  prompts.is_list = list->front().is_array();
  if (!prompts.is_list) {
    prompts.ids.emplace_back();
    return reader.integers("input_ids", prompts.ids.back(), 0, limits.vocab_size - 1);
  }
  if (list->size() > kMaxBatch) {
    return reader.fail("input_ids",
                       fmt::format("has {} entries; 1 to {} are allowed", list->size(), kMaxBatch));
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string name = fmt::format("input_ids[{}]", i);
    if (!(*list)[i].is_array()) return reader.must_be(name, (*list)[i], "a list of token ids");
    json::object one;  // the list, under the name that errors should show
    one.emplace(name, (*list)[i]);
    FieldReader inner(one);
    prompts.ids.emplace_back();
    inner.integers(name, prompts.ids.back(), 0, limits.vocab_size - 1);
    reader.adopt(inner);
    if (!reader.ok()) return;
    if (prompts.ids.back().empty()) return reader.fail(name, "is empty; must be one token id or more");
  }
}

NativePrompts read_prompts(FieldReader& reader, const NativeLimits& limits) {
  NativePrompts prompts;
  const json::value* text = reader.find("text");
  const json::value* ids = reader.find("input_ids");
  if ((text == nullptr) == (ids == nullptr)) {
    reader.fail(
        text == nullptr ? "text" : "input_ids",
        fmt::format("{} given; exactly one of text and input_ids must be given",
                    text == nullptr ? "neither text nor input_ids is" : "both text and input_ids are"));
  } else if (text != nullptr) {
    read_texts(reader, *text, limits, prompts);
  } else {
    read_ids(reader, *ids, limits, prompts);
  }
  return prompts;
}

// Returns entry i of a field that may be one value for all prompts or a list with one value per prompt.
const json::value* entry_of(FieldReader& reader, std::string_view name, size_t i, size_t count) {
  const json::value* value = reader.find(name);
  const json::array* list = value == nullptr ? nullptr : value->if_array();
  if (list == nullptr) return value;
  if (list->size() != count) {
    reader.must_be(name, *value,
                   fmt::format("one value for all prompts, or a list of {}, one for each prompt", count));
    return nullptr;
  }
  return &(*list)[i];
}

// Reads entry i of such a field with `read(FieldReader&, name)`.
template <typename Read>
void read_entry(FieldReader& reader, std::string_view name, size_t i, size_t count, Read read) {
  const json::value* value = entry_of(reader, name, i, count);
  if (value == nullptr || !reader.ok()) return;
  json::object one;
  one.emplace(name, *value);
  FieldReader inner(one);
  read(inner, name);
  reader.adopt(inner);
}

void read_entry_logprobs(FieldReader& reader, size_t i, size_t count, const RequestLimits& limits,
                         LogprobOptions& out) {
  read_entry(reader, "return_logprob", i, count,
             [&](FieldReader& one, std::string_view name) { one.boolean(name, out.enabled); });
  read_entry(reader, "logprob_start_len", i, count, [&](FieldReader& one, std::string_view name) {
    one.integer(name, out.start, -1, kMaxTokenCount);
  });
  read_entry(reader, "top_logprobs_num", i, count, [&](FieldReader& one, std::string_view name) {
    read_num_alternatives(one, name, kMaxTopLogprobs, limits, out.top_num);
  });
  if (!out.enabled) out = {};
}

std::string read_rid(FieldReader& reader, size_t i, size_t count, bool numbered) {
  const json::value* value = reader.find("rid");
  if (value == nullptr) return {};
  const json::value* entry = entry_of(reader, "rid", i, count);
  if (entry == nullptr || entry->is_null()) return {};
  const json::string* text = entry->if_string();
  if (text == nullptr || text->empty() || text->size() > kMaxRidBytes) {
    reader.must_be("rid", *entry, fmt::format("a string of 1 to {} bytes, or a list of them", kMaxRidBytes));
    return {};
  }
  // A single name for several prompts is extended to name_0, name_1, …
  return numbered && !value->is_array() ? fmt::format("{}_{}", text_of(*text), i) : text_of(*text);
}

// Reads the sampling parameters of each prompt. Parameters that equal those of the previous prompt are not
// read again: both prompts then share the parameters, the grammar and the stops.
class SamplingReader {
 public:
  explicit SamplingReader(const FieldReader& reader)
      : is_list_(reader.has(kName) && reader.find(kName)->is_array()) {}

  // Returns the name of the parameters of prompt i, as errors write it.
  std::string name(size_t i) const { return is_list_ ? fmt::format("{}[{}]", kName, i) : std::string(kName); }

  // Never returns null. After an error the fields are meaningless.
  std::shared_ptr<const SamplingFields> read(FieldReader& reader, size_t i, size_t count,
                                             const NativeLimits& limits) {
    const json::value* value = entry_of(reader, kName, i, count);
    if (value == nullptr || value->is_null() || !reader.ok()) {
      if (last_ != nullptr || fields_ == nullptr) fields_ = std::make_shared<const SamplingFields>();
      last_ = nullptr;
      return fields_;
    }
    if (last_ != nullptr && (value == last_ || *value == *last_)) return fields_;
    last_ = value;
    const auto fields = std::make_shared<SamplingFields>();
    fields_ = fields;
    const json::object* object = value->if_object();
    if (object == nullptr) {
      reader.must_be(name(i), *value, is_list_ ? "an object" : "an object, or a list of objects");
      return fields_;
    }
    FieldReader inner(*object, name(i) + ".");
    read_native_sampling(inner, limits.vocab_size, stop_regexes_, *fields);
    read_answer_length(inner, "max_new_tokens", fields->max_new_tokens, 0, limits.prompt);
    if (fields->stops != nullptr) num_regexes_ += fields->stops->num_regexes();
    if (num_regexes_ > kMaxBatchRegexes) {
      inner.fail(
          "stop_regex",
          fmt::format("there are {} expressions up to this prompt; at most {} are allowed in one request",
                      num_regexes_, kMaxBatchRegexes));
    }
    if (fields->grammar != nullptr) share_grammar(inner, fields->grammar);
    reader.adopt(inner);
    return fields_;
  }

 private:
  static constexpr std::string_view kName = "sampling_params";

  // Replaces a grammar of the parameters `inner` by an equal one that an earlier prompt has, so that equal
  // grammars exist once. Refuses a grammar that is one too many.
  void share_grammar(FieldReader& inner, std::shared_ptr<const GrammarSpec>& grammar) {
    const auto [same, is_new] =
        grammars_.emplace(std::pair(grammar->kind, std::string_view(grammar->text)), grammar);
    if (!is_new) grammar = same->second;
    if (grammars_.size() <= kMaxBatchGrammars) return;
    inner.fail(std::string_view(grammar->field).substr(inner.prefix().size()),
               fmt::format("there are {} different grammars up to this prompt; at most {} are allowed in one "
                           "request",
                           grammars_.size(), kMaxBatchGrammars));
  }

  const bool is_list_;  // one object for each prompt
  const json::value* last_ = nullptr;
  std::shared_ptr<const SamplingFields> fields_;
  StopRegexBudget stop_regexes_;  // of all prompts together
  size_t num_regexes_ = 0;
  // Each grammar owns the text of its key.
  std::map<std::pair<GrammarKind, std::string_view>, std::shared_ptr<const GrammarSpec>> grammars_;
};

void refuse_unsupported_native(FieldReader& reader) {
  reader.unsupported({"image_data", "video_data", "audio_data", "modalities"}, "the models read text only");
  reader.unsupported({"input_embeds"}, "give text or input_ids");
  reader.unsupported({"lora_path", "lora_id"}, "adapters are not supported; merge them into the checkpoint");
  reader.unsupported({"session_params"}, "there are no sessions; prefixes are reused without them");
  reader.unsupported({"return_hidden_states", "return_routed_experts", "return_indexer_topk"},
                     "internal states are not returned");
  reader.unsupported({"custom_logit_processor"}, "clients' code is not executed");
  reader.unsupported({"content_special_tokens"}, kOnlyForMessages);
  reader.unsupported({"token_ids_logprob"}, "use top_logprobs_num");
  reader.unsupported({"bootstrap_host", "bootstrap_room", "decode_tp_size"},
                     "prefill and decode run in one process");
}

// PromptFields holds the fields of one prompt. It is small, because it exists for every prompt before the
// whole request is accepted.
struct PromptFields {
  std::shared_ptr<const SamplingFields> sampling;
  LogprobOptions logprobs;
  int64_t max_new_tokens = 0;
};

// Reads the fields of each prompt, fits the prompts to their limits, and refuses a request that exceeds the
// limits of one request.
std::vector<PromptFields> read_prompt_fields(FieldReader& reader, const NativeLimits& limits,
                                             NativePrompts& prompts) {
  std::vector<PromptFields> out;
  const size_t count = prompts.ids.size();
  out.reserve(count);
  SamplingReader sampling(reader);
  RequestBudget budget(limits.request);
  size_t num_generations = 0;
  for (size_t i = 0; i < count; ++i) {
    PromptFields& fields = out.emplace_back();
    fields.sampling = sampling.read(reader, i, count, limits);
    read_entry_logprobs(reader, i, count, limits.request, fields.logprobs);
    if (!reader.ok()) return out;
    std::vector<int32_t>& prompt = prompts.ids[i];
    const auto length =
        fit_prompt(prompt, fields.sampling->max_new_tokens, kDefaultMaxNewTokens, limits.prompt);
    if (!length.ok()) {
      reader.refuse(prompt_fits(prompt, limits.prompt) ? sampling.name(i) + ".max_new_tokens"
                    : reader.has("text")               ? "text"
                                                       : "input_ids",
                    length.status());
      return out;
    }
    fields.max_new_tokens = *length;
    if (fields.sampling->max_new_tokens && !limits.prompt.allow_auto_truncate) {
      check_least_tokens(reader, sampling.name(i) + ".min_new_tokens", fields.sampling->params.min_new_tokens,
                         *length, "max_new_tokens");
    }
    const auto prompt_tokens = static_cast<int64_t>(prompt.size());
    if (fields.logprobs.start >= prompt_tokens) {
      reader.fail("logprob_start_len", fmt::format("is {}; must be less than the {} tokens of the prompt",
                                                   fields.logprobs.start, prompt_tokens));
    }
    num_generations += static_cast<size_t>(fields.sampling->n);
    if (num_generations > kMaxBatch) {
      reader.fail(
          "sampling_params.n",
          fmt::format("makes {} generations of the first {} prompts; at most {} are allowed in one request",
                      num_generations, i + 1, kMaxBatch));
    }
    if (!reader.ok()) return out;
    budget.add(prompt_tokens, *length, fields.logprobs, fields.sampling->n);
  }
  if (const auto tokens = budget.check_tokens(); !tokens.ok()) reader.refuse({}, tokens.status());
  if (const auto scores = budget.check_prompt_logprobs(); !scores.ok())
    reader.fail("logprob_start_len", scores.status());
  return out;
}

// Makes the generation that each choice of one prompt copies, and counts the memory of all choices.
NativeItem make_item(FieldReader& reader, const NativeLimits& limits, const PromptFields& fields,
                     std::vector<int32_t> prompt, NativeRequest& out) {
  const SamplingFields& sampling = *fields.sampling;
  NativeItem item{.request = {}, .grammar = sampling.grammar};
  GenerationRequest& request = item.request;
  request.logprobs = fields.logprobs;
  request.sampling = sampling.params;
  if (!sampling.max_new_tokens || limits.prompt.allow_auto_truncate) {
    // The server lowered the length, not the client, so the lower bound follows.
    request.sampling.min_new_tokens = std::min(request.sampling.min_new_tokens, fields.max_new_tokens);
  }
  request.sampling.max_new_tokens = fields.max_new_tokens;
  request.stops = sampling.stops;
  request.skip_special_tokens = sampling.skip_special_tokens;
  request.no_stop_trim = sampling.no_stop_trim;
  request.stream = out.stream;
  request.cumulative = out.stream && !limits.streams_incrementally;
  request.keeps_answer = !out.stream || request.cumulative;
  request.input_ids = std::move(prompt);
  const Result<void> charged =
      charge_choices(out.memory, request, sampling.n, sampling.grammar == nullptr ? 0 : limits.vocab_size);
  if (!charged.ok()) reader.refuse({}, charged.status());
  return item;
}

// Generations holds the generations of a request before any choice is made.
struct Generations {
  std::vector<NativeItem> items;     // [prompts]
  std::vector<int64_t> num_choices;  // [prompts]
  std::vector<std::string> rids;     // [choices], prompt by prompt
  std::vector<size_t> prompt_of;     // [choices]
};

// Gives each choice its id; the ids must differ.
void name_choices(FieldReader& reader, bool is_list, Generations& out) {
  const size_t count = out.num_choices.size();
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    const std::string rid = read_rid(reader, i, count, is_list);
    const int64_t n = out.num_choices[i];
    for (int64_t choice = 0; choice < n; ++choice) {
      out.rids.push_back(rid.empty() ? random_id() : n > 1 ? fmt::format("{}_{}", rid, choice) : rid);
      out.prompt_of.push_back(i);
    }
  }
  if (!reader.has("rid")) return;
  check_rids_differ(
      reader, out.rids.size(), [&](size_t i) -> const std::string& { return out.rids[i]; },
      [&](size_t i) { return out.prompt_of[i]; });
}

// Makes all choices. All errors have been found before.
void make_choices(Generations from, NativeRequest& out) {
  out.items.reserve(from.rids.size());
  for (size_t i = 0, next = 0; i < from.items.size(); ++i) {
    const int64_t n = from.num_choices[i];
    if (n > 1) out.is_list = true;
    for (int64_t choice = 0; choice < n; ++choice) {
      NativeItem item = choice + 1 < n ? from.items[i] : std::move(from.items[i]);
      item.request.further_choice = choice > 0;
      item.request.rid = std::move(from.rids[next++]);
      // Choices with the same seed would all have the same text.
      if (item.request.sampling.seed) *item.request.sampling.seed += static_cast<uint64_t>(choice);
      out.items.push_back(std::move(item));
    }
  }
}

// Every error is found before any choice is made, because a body of a few bytes may ask for thousands of
// choices.
void read_native(FieldReader& reader, const NativeLimits& limits, NativeRequest& out) {
  refuse_unsupported_native(reader);
  reader.boolean("stream", out.stream);
  reader.boolean("return_text_in_logprobs", out.text_in_logprobs);
  int64_t priority = 0;
  reader.integer("priority", priority, -kMaxPriority, kMaxPriority);
  if (!reader.ok()) return;
  NativePrompts prompts = read_prompts(reader, limits);
  if (!reader.ok()) return;
  out.is_list = prompts.is_list;
  const std::vector<PromptFields> fields = read_prompt_fields(reader, limits, prompts);
  if (!reader.ok()) return;
  Generations generations;
  for (const PromptFields& one : fields) generations.num_choices.push_back(one.sampling->n);
  reserve_places(reader, limits.reserve,
                 std::accumulate(generations.num_choices.begin(), generations.num_choices.end(), int64_t{0}),
                 out.places);
  const size_t count = prompts.ids.size();
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    generations.items.push_back(make_item(reader, limits, fields[i], std::move(prompts.ids[i]), out));
    GenerationRequest& request = generations.items.back().request;
    request.priority = static_cast<int32_t>(priority);
    read_entry(reader, "cache_salt", i, count, [&](FieldReader& one, std::string_view name) {
      read_cache_salt(one, name, request.cache_salt);
    });
  }
  if (reader.ok()) name_choices(reader, prompts.is_list, generations);
  if (reader.ok()) make_choices(std::move(generations), out);
}

}  // namespace

void reserve_places(FieldReader& reader, const ReservePlaces& reserve, int64_t count, QueuePlaces& out) {
  if (!reader.ok() || !reserve) return;
  auto places = reserve(count);
  if (!places.ok()) return reader.refuse({}, places.status());
  out = std::move(places).value();
}

void check_rids_differ(FieldReader& reader, size_t count,
                       const std::function<const std::string&(size_t)>& rid_of,
                       const std::function<size_t(size_t)>& prompt_of) {
  if (!reader.ok() || count < 2) return;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int less = rid_of(a).compare(rid_of(b));
    return less != 0 ? less < 0 : a < b;
  });
  const auto twice = std::adjacent_find(order.begin(), order.end(),
                                        [&](size_t a, size_t b) { return rid_of(a) == rid_of(b); });
  if (twice == order.end()) return;
  reader.fail("rid", fmt::format("prompts {} and {} have the id {}; the ids of one request must differ",
                                 prompt_of(twice[0]), prompt_of(twice[1]), shown_text(rid_of(*twice))));
}

std::variant<NativeRequest, FieldError> parse_native_request(std::string_view body,
                                                             const NativeLimits& limits) {
  MemoryCharge reading(limits.prompt.memory);
  auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return FieldError{parsed.status(), {}};
  FieldReader reader(parsed.value());
  NativeRequest out;
  out.memory = MemoryCharge(limits.prompt.memory);
  read_native(reader, limits, out);
  if (!reader.ok()) return FieldError{reader.status(), reader.failed_field()};
  return out;
}

}  // namespace hadal::server
