// Reads the part of requests that /v1/completions and /v1/chat/completions share. Parsing is a pure function
// of the body and of these limits, without engine or sockets.
//
// The model's name is not checked, as in SGLang: the server's only model answers to any name, and its answer
// repeats that name. Each field of OpenAI's, SGLang's and DeepSeek's APIs is either supported, or refused if
// it asks for something that is not supported. Fields that no API defines are ignored and counted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampling_params.h"
#include "server/admission/prompt_limits.h"
#include "server/admission/request_limits.h"
#include "server/generation/generation.h"
#include "server/json/json_fields.h"
#include "server/json/sampling_fields.h"
#include "server/native/native_request.h"
#include "text/chat/chat_template.h"
#include "text/chat/reasoning_parser.h"
#include "text/chat/tool_call_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

struct OpenAiLimits {
  PromptLimits prompt;
  RequestLimits request;
  ReservePlaces reserve;  // for the request's client; null: no places are taken
  int64_t vocab_size = 0;
  const Tokenizer* tokenizer = nullptr;                // null: token ids only
  SamplingParams default_sampling;                     // used where the client gives no value
  std::string model_name;                              // in answers to requests without a name
  std::optional<ChatFormat> chat_format;               // none: no chat
  ReasoningFormat reasoning = ReasoningFormat::kNone;  // resolved by the server's --reasoning-parser
  ToolCallFormat tool_calls = ToolCallFormat::kNone;
  bool content_as_text = false;  // the default of content_special_tokens is "text"
};

// OpenAiItem is one choice to be generated.
struct OpenAiItem {
  GenerationRequest request;
  std::shared_ptr<const GrammarSpec> grammar;  // null: none
  size_t prompt = 0;                           // index of its prompt
};

struct OpenAiRequest {
  int64_t unknown_fields = 0;  // fields of the body that no API here defines
  std::string id;              // id of the answer, which /abort_request finds
  std::string model;           // the client's name for it
  bool stream = false;
  bool repeats_answer = false;    // the last event of a stream has the whole answer, which is kept for it
  bool include_usage = false;     // send a last event with the usage
  bool continuous_usage = false;  // send the usage so far in every event
  // Entry i is choice i: prompt by prompt, with the n choices of a prompt adjacent.
  std::vector<OpenAiItem> items;
  MemoryCharge memory;  // memory that the request holds until its end
  QueuePlaces places;   // one for each item
};

// Returns the index of each choice's prompt.
std::vector<size_t> prompts_of(const OpenAiRequest& request);

// OpenAiFields are the fields of a body that both endpoints read in the same way.
struct OpenAiFields {
  SamplingFields sampling;  // max_new_tokens is read by the endpoint
  int64_t priority = 0;
  CacheSalt cache_salt;
  std::vector<std::string> rids;  // none, one, or one per prompt
};

// Reads model, which is any name of at most 256 bytes. The default is the server's name.
void read_model_name(FieldReader& reader, const OpenAiLimits& limits, OpenAiRequest& request);

// Reads model, stream, stream_options, rid, priority, cache_salt, seed, min_tokens, response_format and
// everything of read_common_sampling. It counts unknown fields and refuses fields that the server does not
// support. Errors stay in `reader`.
void read_openai_fields(FieldReader& reader, const OpenAiLimits& limits, OpenAiRequest& request,
                        OpenAiFields& fields);

// Counts the fields that neither chats nor completions define. Refuses `store` and a tier of service, which
// these two APIs do not support although another API may.
void check_openai_fields(FieldReader& reader, OpenAiRequest& request);

// Fits all prompts of a request to the limits, and returns the length of the answers of each prompt: the
// client's or, if it gave none, `fallback` (see fit_prompt). Refuses a request that exceeds the limits of one
// request. Errors name `prompt_field`, `length_field` or n; log-probabilities of prompts are the field
// logprobs. Then it reserves the places of all choices.
std::vector<int64_t> fit_openai_prompts(FieldReader& reader, const OpenAiLimits& limits,
                                        const OpenAiFields& fields, const LogprobOptions& logprobs,
                                        std::optional<int64_t> fallback, std::string_view prompt_field,
                                        std::string_view length_field,
                                        std::span<std::vector<int32_t>> prompts, QueuePlaces& places);

// Adds to request.items, for one prompt, the item that its choices copy, and counts the memory of all of
// them. `prototype` contains logprobs, grammar, grammar_after and the fitted prompt; `length` is the length
// of the prompt's answers.
void add_openai_prompt(FieldReader& reader, const OpenAiLimits& limits, const OpenAiFields& fields,
                       OpenAiItem prototype, int64_t length, OpenAiRequest& request);

// Replaces the item of each prompt by its n choices, which have items of their own. Before that it sets
// request.id and the rid of each item: the client's, or "<prefix><random>". With several items the rids are
// "<id>_0", "<id>_1", …, so that aborting the id aborts all of them.
void make_openai_choices(FieldReader& reader, const OpenAiFields& fields, std::string_view prefix,
                         OpenAiRequest& request);

}  // namespace hadal::server
