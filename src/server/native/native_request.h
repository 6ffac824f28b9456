// Parses SGLang's /generate body. It is a function of the body, the tokenizer and the limits, without
// sockets: what it takes beside that (memory, places in the queue) the limits give.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/queue_places.h"
#include "server/admission/prompt_limits.h"
#include "server/admission/request_limits.h"
#include "server/generation/generation.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

class FieldReader;  // server/json/json_fields.h

// Takes places in the engine's queue for all generations of a request, or none of them (Engine::reserve). Any
// thread may call it.
using ReservePlaces = std::function<Result<QueuePlaces>(int64_t count)>;

struct NativeLimits {
  PromptLimits prompt;
  RequestLimits request;
  ReservePlaces reserve;  // for the request's client; null: no places are taken
  int64_t vocab_size = 0;
  const Tokenizer* tokenizer = nullptr;  // null: input_ids only
  bool streams_incrementally = false;    // the events of a stream do not repeat what was sent before
};

inline constexpr size_t kMaxBatch = 16384;  // generations of one HTTP request, counting n
inline constexpr size_t kMaxRidBytes = 256;
inline constexpr int64_t kMaxPriority = 1'000'000'000;  // the limit in both directions

// This says why content_special_tokens is refused where a prompt is one text.
inline constexpr std::string_view kOnlyForMessages =
    "it is for the messages of /v1/chat/completions; here the whole prompt is the client's";

struct NativeItem {
  GenerationRequest request;                   // rid is set, and generated if the client gave none
  std::shared_ptr<const GrammarSpec> grammar;  // null: none
};

struct NativeRequest {
  std::vector<NativeItem> items;  // prompt by prompt; the n choices of a prompt are adjacent
  bool is_list = false;           // the answer is a list, and events have an `index`
  bool stream = false;
  bool text_in_logprobs = false;
  MemoryCharge memory;  // what it holds until its end
  QueuePlaces places;   // one for each item
};

struct FieldError {
  Status status;
  std::string field;  // empty: the body as a whole
};

// Takes the places of `count` generations, unless `reader` has an error or `reserve` is null. What is refused
// is an error of the whole body.
void reserve_places(FieldReader& reader, const ReservePlaces& reserve, int64_t count, QueuePlaces& out);

// Refuses two generations of one request that have the same id: the error names it, and the prompts of both.
// `rid_of(i)` and `prompt_of(i)` tell the id of generation i of `count`, and the index of its prompt.
void check_rids_differ(FieldReader& reader, size_t count,
                       const std::function<const std::string&(size_t)>& rid_of,
                       const std::function<size_t(size_t)>& prompt_of);

// Errors name the field, its value and what is allowed. As in SGLang, unknown fields of the body are ignored,
// and unknown sampling parameters are errors. What the request will hold is counted in limits.prompt.memory,
// and its places come from limits.reserve (both kResourceExhausted), before any of its choices is made.
std::variant<NativeRequest, FieldError> parse_native_request(std::string_view body,
                                                             const NativeLimits& limits);

}  // namespace hadal::server
