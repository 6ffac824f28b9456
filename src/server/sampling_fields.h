// Sampling parameters out of JSON: the one place where their names, types and bounds are written down.
// SGLang's `sampling_params` and the OpenAI bodies share most of them. Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling_params.h"
#include "server/json_fields.h"
#include "text/grammar.h"
#include "text/stop_search.h"

namespace hadal::server {

inline constexpr int64_t kMaxTokenCount = int64_t{1}
                                          << 40;  // what a client may write; the engine knows better
inline constexpr int64_t kMaxChoices = 128;       // n
inline constexpr size_t kMaxStops = 64;           // strings; of expressions kMaxStopRegexes
inline constexpr size_t kMaxStopBytes = 4096;     // of one of them

struct SamplingFields {
  SamplingParams params;                  // max_new_tokens is not filled in: see below
  std::optional<int64_t> max_new_tokens;  // none: the endpoint's default, lowered to fit the context
  int64_t n = 1;
  // Shared by all generations of the request, however many it has.
  std::shared_ptr<const StopPatterns> stops;   // null: none
  std::shared_ptr<const GrammarSpec> grammar;  // null: none
  bool skip_special_tokens = true;
  bool no_stop_trim = false;
};

// What both APIs call the same: temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty,
// repetition_penalty, ignore_eos, skip_special_tokens, no_stop_trim, stop, stop_token_ids, stop_regex, n,
// logit_bias, and one of json_schema | regex | ebnf | structural_tag. `fields` holds the defaults. Errors
// stay in `reader`.
void read_common_sampling(FieldReader& reader, int64_t vocab_size, SamplingFields& fields);

// SGLang's sampling_params: the above, max_new_tokens, min_new_tokens and sampling_seed. An unknown name is
// an error, as it is there.
void read_native_sampling(FieldReader& reader, int64_t vocab_size, SamplingFields& fields);

// A JSON value given as text or as the value itself ("json_schema": "{…}" or {…}).
std::string text_or_json(const boost::json::value& value);
// The same for a grammar: an error of field `name` beyond kMaxGrammarBytes, before anything is copied.
std::string grammar_text(FieldReader& reader, std::string_view name, const boost::json::value& value);

}  // namespace hadal::server
