// Parses SGLang's /generate body. The result depends on the body, the tokenizer and the limits alone, without
// sockets. The limits also give access to memory and to places in the queue.
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

// Reserves places in the engine's queue for all generations of a request, or for none of them
// (Engine::reserve). Any thread may call it.
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

// Clients get this reason when content_special_tokens is refused because a prompt is one text.
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
  MemoryCharge memory;  // memory that the request holds until its end
  QueuePlaces places;   // one for each item
};

struct FieldError {
  Status status;
  std::string field;  // the field's name; empty: the body as a whole
};

// Reserves the places of `count` generations, unless `reader` has an error or `reserve` is null. A refusal is
// an error of the whole body.
void reserve_places(FieldReader& reader, const ReservePlaces& reserve, int64_t count, QueuePlaces& out);

// Refuses two generations of one request that have the same id. The error names the id and both prompts.
// `rid_of(i)` and `prompt_of(i)` return the id of generation i of `count`, and the index of its prompt.
void check_rids_differ(FieldReader& reader, size_t count,
                       const std::function<const std::string&(size_t)>& rid_of,
                       const std::function<size_t(size_t)>& prompt_of);

// Errors name the field, its value and what is allowed. As in SGLang, unknown fields of the body are ignored,
// and unknown sampling parameters are errors. Before any choice is made, the memory that the request will
// hold is counted in limits.prompt.memory, and its places are reserved by limits.reserve. Both may fail with
// kResourceExhausted.
std::variant<NativeRequest, FieldError> parse_native_request(std::string_view body,
                                                             const NativeLimits& limits);

}  // namespace hadal::server
