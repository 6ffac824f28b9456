// Reads sampling parameters from JSON. This is the one place where their names, types and bounds are defined.
// SGLang's `sampling_params` and the OpenAI bodies share most of them. The functions are pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling_params.h"
#include "server/json/json_fields.h"
#include "text/grammar/grammar.h"
#include "text/stop/stop_search.h"

namespace hadal::server {

inline constexpr int64_t kMaxTokenCount = int64_t{1} << 40;  // limit for clients; the engine has the real one
inline constexpr int64_t kMaxChoices = 128;                  // n
inline constexpr size_t kMaxStops = 64;        // strings; the limit of expressions is kMaxStopRegexes
inline constexpr size_t kMaxStopBytes = 4096;  // bytes of one of them

struct SamplingFields {
  SamplingParams params;                  // without max_new_tokens: see below
  std::optional<int64_t> max_new_tokens;  // none: the endpoint's default, lowered to fit the context
  int64_t n = 1;
  // These are shared by all generations of the request, whatever their number.
  std::shared_ptr<const StopPatterns> stops;   // null: none
  std::shared_ptr<const GrammarSpec> grammar;  // null: none
  bool skip_special_tokens = true;
  bool no_stop_trim = false;
};

// Reads the parameters with the same names in both APIs: temperature, top_p, top_k, min_p, frequency_penalty,
// presence_penalty, repetition_penalty, ignore_eos, skip_special_tokens, no_stop_trim, stop, stop_token_ids,
// stop_regex, n, logit_bias, and one of json_schema | regex | ebnf | structural_tag. `fields` contains the
// defaults. The cost of the stop expressions is taken from `stop_regexes`, the request's budget. Errors stay
// in `reader`.
void read_common_sampling(FieldReader& reader, int64_t vocab_size, StopRegexBudget& stop_regexes,
                          SamplingFields& fields);

// Reads SGLang's sampling_params: the fields above, min_new_tokens and sampling_seed. The caller reads
// max_new_tokens. An unknown name is an error, as in SGLang.
void read_native_sampling(FieldReader& reader, int64_t vocab_size, StopRegexBudget& stop_regexes,
                          SamplingFields& fields);

// Refuses a min_new_tokens (field `name`) above `length`, the client's own length of the answer (field
// `length_name`). If the server has chosen or cut the length, min_new_tokens is lowered instead.
void check_least_tokens(FieldReader& reader, std::string_view name, int64_t least, int64_t length,
                        std::string_view length_name);

// Returns a JSON value that is given as text or as the value itself ("json_schema": "{…}" or {…}).
std::string text_or_json(const boost::json::value& value);
// Does the same for a grammar. A text beyond kMaxGrammarBytes is an error of field `name`, and is never
// copied.
std::string grammar_text(FieldReader& reader, std::string_view name, const boost::json::value& value);

}  // namespace hadal::server
