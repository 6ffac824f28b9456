#include "server/responses/responses_request.h"

#include <algorithm>
#include <utility>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/admission/memory_costs.h"
#include "server/generation/chat_input.h"
#include "server/generation/dialect_chat.h"
#include "server/json/json_writer.h"
#include "server/json/known_fields.h"
#include "server/responses/responses_input.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

constexpr size_t kMaxMetadata = 16;  // OpenAI's bounds
constexpr size_t kMaxMetadataKeyBytes = 64;
constexpr size_t kMaxMetadataBytes = 512;
constexpr size_t kMaxIncludes = 64;

void refuse_unsupported_responses(FieldReader& reader) {
  reader.unsupported({"background"}, "a request runs while its client waits for it");
  reader.unsupported({"conversation"}, "use previous_response_id");
  reader.unsupported({"messages"}, "use input");
  reader.unsupported({"max_tokens", "max_completion_tokens"}, "use max_output_tokens");
  reader.unsupported({"reasoning_effort", "thinking"}, "use reasoning");
  reader.unsupported({"prompt"}, "there are no stored prompts; use instructions and input");
  reader.unsupported({"context_management"},
                     "a conversation is not shortened; the client may send a shorter one");
  reader.unsupported({"moderation"}, "nothing here classifies texts");
  reader.unsupported({"rid"}, "the server chooses the id of a response; /abort_request accepts that id");
}

// Checks include, top_logprobs and truncation. Their allowed values have no effect.
void check_options(FieldReader& reader) {
  std::vector<std::string> include;
  reader.texts("include", include, kMaxIncludes);
  for (const std::string& name : include) {
    // This value is accepted because the answer contains the reasoning itself, which can be sent back.
    if (name != "reasoning.encrypted_content")
      reader.fail("include",
                  fmt::format("has {}; must be [\"reasoning.encrypted_content\"]", shown_text(name)));
  }
  int64_t top_logprobs = 0;
  reader.integer("top_logprobs", top_logprobs, 0, 0, "/v1/chat/completions has log-probabilities");
  std::string truncation = "disabled";
  reader.text("truncation", truncation);
  if (reader.ok() && truncation != "disabled")
    reader.must_be("truncation", json::value(truncation), "disabled: a conversation is not shortened");
}

void check_metadata(FieldReader& reader) {
  const json::value* value = reader.find("metadata");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  const auto fits = [](const json::key_value_pair& entry) {
    const json::string* text = entry.value().if_string();
    return text != nullptr && text->size() <= kMaxMetadataBytes && entry.key().size() <= kMaxMetadataKeyBytes;
  };
  if (object != nullptr && object->size() <= kMaxMetadata &&
      std::all_of(object->begin(), object->end(), fits))
    return;
  reader.must_be("metadata", *value,
                 fmt::format("an object of at most {} strings of {} bytes, with names of {}", kMaxMetadata,
                             kMaxMetadataBytes, kMaxMetadataKeyBytes));
}

// Reads reasoning.effort, which says whether the model should think; the models have no levels of effort. No
// summary is made, because the reasoning itself is in the answer.
void read_reasoning(FieldReader& reader, std::string& effort, bool& thinking) {
  const json::value* value = reader.find("reasoning");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("reasoning", *value, "an object with effort");
  FieldReader inner(*object, "reasoning.");
  inner.choice("effort", effort, {"", "none", "minimal", "low", "medium", "high", "xhigh", "max"});
  std::string summary;
  inner.choice("summary", summary, {"auto", "concise", "detailed"});
  inner.choice("generate_summary", summary, {"auto", "concise", "detailed"});
  if (!effort.empty()) thinking = effort != "none";
  reader.adopt(inner);
}

// Reads text.format into a grammar. text.verbosity makes no difference, because the models have no levels of
// it.
void read_text_format(FieldReader& reader, std::shared_ptr<const GrammarSpec>& grammar) {
  const json::value* value = reader.find("text");
  if (value == nullptr || !reader.ok()) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.must_be("text", *value, "an object with format");
  FieldReader text(*object, "text.");
  std::string verbosity;
  text.choice("verbosity", verbosity, {"low", "medium", "high"});
  std::shared_ptr<const GrammarSpec> wanted;
  if (const json::value* found = text.find("format"); found != nullptr && text.ok()) {
    const json::object* fields = found->if_object();
    if (fields == nullptr) {
      text.must_be("format", *found, "an object with a type");
      return reader.adopt(text);
    }
    FieldReader format(*fields, "text.format.");
    std::string type;
    if (!format.has("type")) format.fail("type", "is missing; must be text, json_object or json_schema");
    format.choice("type", type, {"text", "json_object", "json_schema"});
    if (format.ok() && type == "json_object") {
      wanted = std::make_shared<const GrammarSpec>(
          GrammarSpec{.kind = GrammarKind::kJsonObject, .text = {}, .field = "text.format"});
    } else if (format.ok() && type == "json_schema") {
      wanted = read_output_schema(format, "schema", "text.format.schema");
    }
    text.adopt(format);
  }
  reader.adopt(text);
  if (!wanted || !reader.ok()) return;
  if (grammar)
    return reader.fail("text", fmt::format("excludes {}; only one of them may be given", grammar->field));
  grammar = std::move(wanted);
}

// Place says in what context a body is read.
struct Place {
  const ResponseStore& store;
  std::string_view owner;
  MemoryCharge& reading;  // counts the memory of the reading itself
};

// Finds the conversation that the request continues, whose texts are copied into the prompt.
void find_earlier(FieldReader& reader, const Place& place, Conversation& out) {
  std::string id;
  reader.text("previous_response_id", id);
  if (id.empty() || !reader.ok()) return;
  const auto found = place.store.find(id, place.owner);
  if (found == nullptr) {
    return reader.fail(
        "previous_response_id",
        fmt::format(
            "there is no stored response {} of this key; it may have been displaced (--max-response-store)",
            shown_text(id)));
  }
  out = found->conversation;
  size_t bytes = 0;
  for (const auto& turn : out.turns) bytes += message_bytes(turn->messages);
  const Result<void> charged = place.reading.add(MemoryKind::kPrompt, bytes * kTextBytesPerByte);
  if (!charged.ok()) reader.refuse({}, charged.status());
}

// A response repeats these fields of its request. Each event of a stream that has the response repeats them,
// and so does each reading of a stored response, so their size is limited.
struct EchoedField {
  std::string_view name;
  std::string_view otherwise;  // what stands there if the request has no such field
};
constexpr EchoedField kEchoedFields[] = {{"instructions", "null"},
                                         {"max_output_tokens", "null"},
                                         {"max_tool_calls", "null"},
                                         {"previous_response_id", "null"},
                                         {"metadata", "{}"},
                                         {"parallel_tool_calls", "true"},
                                         {"text", "{\"format\":{\"type\":\"text\"}}"},
                                         {"tool_choice", "\"auto\""},
                                         {"tools", "[]"}};
constexpr size_t kMaxEchoBytes = size_t{1} << 20;

struct Echo {
  std::string text;
  std::string_view largest_field;
};

// Writes the members of the response that repeat the request.
Echo echo_of(const FieldReader& reader, const SamplingParams& sampling, std::string_view effort, bool store) {
  std::string out;
  std::string_view largest;
  size_t most = 0;
  for (const auto& [name, otherwise] : kEchoedFields) {
    out += ",\"";
    out += name;
    out += "\":";
    const json::value* value = reader.find(name);
    const size_t begin = out.size();
    out += value == nullptr ? std::string(otherwise) : json::serialize(*value);
    if (out.size() - begin <= most) continue;
    largest = name;
    most = out.size() - begin;
  }
  out += ",\"reasoning\":{\"effort\":";
  if (effort.empty()) {
    out += "null";
  } else {
    append_json_string(out, effort);
  }
  out += ",\"summary\":null},\"temperature\":";
  append_json_number(out, sampling.temperature);
  out += ",\"top_p\":";
  append_json_number(out, sampling.top_p);
  out +=
      ",\"background\":false,\"service_tier\":\"default\",\"top_logprobs\":0,\"truncation\":\"disabled\","
      "\"store\":";
  out += store ? "true" : "false";
  return {.text = std::move(out), .largest_field = largest};
}

// Joins the conversation: instructions, which are not stored, then earlier turns, then the new input.
std::vector<ChatMessage> join_messages(FieldReader& reader, const Conversation& earlier, ChatMessages input,
                                       std::vector<std::string>& places) {
  ChatMessages all;
  std::string instructions;
  reader.text("instructions", instructions);
  if (!instructions.empty()) all.add("system", "instructions").content = std::move(instructions);
  for (const auto& turn : earlier.turns)
    for (const ChatMessage& message : turn->messages) {
      all.places.emplace_back("previous_response_id");
      all.list.push_back(message);
    }
  std::move(input.list.begin(), input.list.end(), std::back_inserter(all.list));
  std::move(input.places.begin(), input.places.end(), std::back_inserter(all.places));
  places = std::move(all.places);
  return std::move(all.list);
}

// Keeps the parts of the request that the answer needs. The members that repeat the request occur in three
// events of a stream.
void keep_for_answer(FieldReader& reader, std::string echo, const std::vector<ChatMessage>& messages,
                     ResponsesRequest& out) {
  constexpr size_t kEchoCopies = 4;
  const size_t bytes = kEchoCopies * echo.size() + (out.store ? message_bytes(messages) : 0);
  const Result<void> charged = out.common.memory.add(MemoryKind::kPrompt, bytes);
  if (!charged.ok()) return reader.refuse({}, charged.status());
  out.echo = std::move(echo);
  if (out.store) out.messages = messages;
}

// Reads the body into `out`, and returns the places of its messages for errors. With `counting` only the
// fields of the prompt matter.
std::vector<std::string> read_responses_body(FieldReader& reader, const OpenAiLimits& limits,
                                             const Place& place, bool counting, ResponsesRequest& out) {
  refuse_unsupported_responses(reader);
  ChatInput input;
  input.id_prefix = "resp_";
  input.length_field = "max_output_tokens";
  std::string accepted;
  reader.choice("service_tier", accepted, {"auto", "default"});
  read_openai_fields(reader, limits, out.common, input.fields);
  out.common.unknown_fields = num_unknown_fields(reader.object(), BodyKind::kResponses);
  out.common.repeats_answer = out.common.stream;
  need_one_choice(reader, input.fields);
  check_options(reader);
  check_metadata(reader);
  SamplingFields& sampling = input.fields.sampling;
  read_answer_length(reader, "max_output_tokens", sampling.max_new_tokens, 1, limits.prompt);
  reader.boolean("store", out.store);
  out.store = out.store && place.store.max_bytes() > 0;
  std::string effort;
  read_reasoning(reader, effort, input.options.thinking);
  read_text_format(reader, sampling.grammar);
  find_earlier(reader, place, out.earlier);
  // A conversation keeps its salt, unless the client gives another one.
  CacheSalt& salt = input.fields.cache_salt;
  if (salt == CacheSalt()) salt = out.earlier.cache_salt;
  out.earlier.cache_salt = salt;
  ChatMessages messages;
  read_responses_input(reader, messages);
  read_responses_tools(reader, input.tools);
  read_content_special_tokens(reader, limits, input);
  if (counting) {
    sampling.max_new_tokens = 1;
    sampling.params.min_new_tokens = 0;
  }
  if (reader.ok() && !counting) {
    Echo echo = echo_of(reader, sampling.params, effort, out.store);
    if (echo.text.size() > kMaxEchoBytes) {
      reader.fail(
          echo.largest_field,
          fmt::format("makes the fields that a response repeats {} bytes long; at most {} are allowed",
                      echo.text.size(), kMaxEchoBytes));
    } else {
      keep_for_answer(reader, std::move(echo.text), messages.list, out);
    }
  }
  std::vector<std::string> places;
  input.messages = join_messages(reader, out.earlier, std::move(messages), places);
  make_chat(reader, limits, std::move(input), out);
  return places;
}

std::variant<ResponsesRequest, FieldError> parse_responses_request(std::string_view body,
                                                                   const OpenAiLimits& limits,
                                                                   const ResponseStore& store,
                                                                   std::string_view owner, bool counting) {
  MemoryCharge reading(limits.prompt.memory);
  auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return FieldError{parsed.status(), {}};
  FieldReader reader(parsed.value());
  ResponsesRequest out;
  out.common.memory = MemoryCharge(limits.prompt.memory);
  std::vector<std::string> places = read_responses_body(
      reader, limits, {.store = store, .owner = owner, .reading = reading}, counting, out);
  if (reader.ok()) return out;
  return renamed({reader.status(), reader.failed_field()},
                 {.messages = "input",
                  .places = std::move(places),
                  .words = {{".function.parameters", ".parameters"}, {".function.", "."}}});
}

}  // namespace

std::variant<ResponsesRequest, FieldError> parse_responses(std::string_view body, const OpenAiLimits& limits,
                                                           const ResponseStore& store,
                                                           std::string_view owner) {
  return parse_responses_request(body, limits, store, owner, false);
}

std::variant<int64_t, FieldError> count_responses_tokens(std::string_view body, const OpenAiLimits& limits,
                                                         const ResponseStore& store, std::string_view owner) {
  OpenAiLimits own = limits;
  own.reserve = nullptr;
  own.prompt.allow_auto_truncate = false;  // a cut prompt would give a wrong count
  auto parsed = parse_responses_request(body, own, store, owner, true);
  if (auto* error = std::get_if<FieldError>(&parsed)) return std::move(*error);
  return static_cast<int64_t>(std::get<ResponsesRequest>(parsed).common.items.at(0).request.input_ids.size());
}

}  // namespace hadal::server
