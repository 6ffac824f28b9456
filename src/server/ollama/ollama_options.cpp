#include "server/ollama/ollama_options.h"

#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "server/json/known_fields.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

// -1 and -2 mean that the answer has no limit of its own.
void read_length(FieldReader& options, const OpenAiLimits& limits, SamplingFields& sampling) {
  std::optional<int64_t> length;
  read_answer_length(options, "num_predict", length, -2, limits.prompt);
  if (!options.ok() || !length || *length < 0) return;
  if (*length == 0) return options.must_be("num_predict", "-2, -1, or 1 or more");
  sampling.max_new_tokens = *length;
}

void read_context(FieldReader& options, const OpenAiLimits& limits) {
  int64_t context = 0;
  options.integer("num_ctx", context, 1, limits.prompt.context_length, "the context is --context-length");
}

void read_stop_strings(FieldReader& options, SamplingFields& sampling) {
  std::vector<std::string> strings;
  options.texts("stop", strings, kMaxStops, kMaxStopBytes);
  if (!options.ok() || strings.empty()) return;
  StopRegexBudget budget;
  auto compiled = StopPatterns::compile(strings, {}, budget);
  if (!compiled.ok()) return options.fail("stop", compiled.status().message);
  if (!(*compiled)->empty()) sampling.stops = std::move(compiled).value();
}

// Refuses `name` unless its value is `off`, which leaves the probabilities unchanged.
void must_be_off(FieldReader& options, std::string_view name, float off) {
  float value = off;
  options.number(name, value, -1e30, 1e30);
  if (!options.ok() || value == off) return;
  options.must_be(name, fmt::format("{}: this way of sampling is not supported", off));
}

void read_penalties(FieldReader& options, SamplingParams& params) {
  options.number("repeat_penalty", params.repetition_penalty, kMinRepetitionPenalty, 2);
  options.number("frequency_penalty", params.frequency_penalty, -2, 2);
  options.number("presence_penalty", params.presence_penalty, -2, 2);
  std::optional<int64_t> window;
  options.integer("repeat_last_n", window, -1, kMaxTokenCount);
  const bool penalises =
      params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
  if (options.ok() && penalises && window && *window != -1) {
    options.must_be("repeat_last_n", "-1: penalties look at the whole text, not at its end");
  }
  bool penalises_newline = true;
  options.boolean("penalize_newline", penalises_newline);
  if (options.ok() && penalises && !penalises_newline)
    options.must_be("penalize_newline", "true: penalties spare no token");
}

}  // namespace

int64_t read_ollama_options(FieldReader& reader, const OpenAiLimits& limits, SamplingFields& sampling) {
  const json::value* value = reader.find("options");
  if (value == nullptr || !reader.ok()) return 0;
  const json::object* object = value->if_object();
  if (object == nullptr) {
    reader.must_be("options", *value, "an object");
    return 0;
  }
  FieldReader options(*object, "options.");
  SamplingParams& params = sampling.params;
  read_length(options, limits, sampling);
  read_context(options, limits);
  options.number("temperature", params.temperature, 0, kMaxTemperature);
  options.integer("top_k", params.top_k, -1, kMaxTokenCount);
  if (params.top_k == 0) params.top_k = -1;  // in Ollama both stand for all tokens
  options.number("top_p", params.top_p, kMinTopP, 1);
  options.number("min_p", params.min_p, 0, 1);
  read_penalties(options, params);
  std::optional<int64_t> seed;
  options.integer("seed", seed, -1, std::numeric_limits<int64_t>::max());
  if (seed && *seed >= 0) params.seed = static_cast<uint64_t>(*seed);  // -1: any
  read_stop_strings(options, sampling);
  must_be_off(options, "typical_p", 1);
  must_be_off(options, "tfs_z", 1);
  must_be_off(options, "mirostat", 0);
  options.unsupported({"embedding_only"}, "this server generates text only");
  reader.adopt(options);
  return num_unknown_fields(*object, BodyKind::kOllamaOptions);
}

}  // namespace hadal::server
