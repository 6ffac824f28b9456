#include "server/ollama/ollama_answer.h"

#include <chrono>
#include <utility>

#include <boost/json.hpp>

#include "server/json/json_fields.h"
#include "server/json/json_writer.h"
#include "server/json/utc_time.h"
#include "server/openai/openai_json.h"
#include "server/request_log.h"
#include "text/json_error.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

// Appends the beginning of an object, up to its time.
void append_answer_head(std::string& out, std::string_view model) {
  out += "{\"model\":";
  append_json_string(out, model);
  out += ",\"created_at\":\"";
  out += utc_time(std::chrono::system_clock::now());
  out += '"';
}

// Returns the arguments of a call as one line of JSON, or nothing if they are not an object because the end
// of the answer cut them off, or if check_json_members refuses them.
std::optional<std::string> object_of(const std::string& arguments) {
  const Result<json::value> value = parse_json_text(arguments, "arguments", kMaxJsonDepth);
  if (!value.ok() || !value->is_object()) return std::nullopt;
  return json::serialize(*value);
}

void append_nanoseconds(std::string& out, std::string_view name, double seconds) {
  out += ",\"";
  out += name;
  out += "\":";
  append_json_number(out, static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

std::string ollama_loaded(const OllamaRequest& request) {
  std::string out;
  append_answer_head(out, request.common.model);
  out += request.is_chat ? R"(,"message":{"role":"assistant","content":""})" : R"(,"response":"")";
  out += R"(,"done":true,"done_reason":"load"})";
  return out;
}

OllamaAnswer::OllamaAnswer(const OllamaRequest& request, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      is_chat_(request.is_chat),
      stream_mode_(request.common.stream),
      has_logprobs_(request.logprobs),
      model_(request.common.model),
      text_(request.parsing) {}

// Leaves in `piece` only the complete calls, with their arguments as one line of JSON. Arguments that the end
// of the answer cut off are no object, so their text becomes content.
void OllamaAnswer::join_calls(ChatChoiceText::Piece& piece, bool last) {
  std::vector<ToolCallDelta> complete = calls_.append(std::move(piece.calls));
  piece.calls.clear();
  if (last) {
    if (std::optional<ToolCallDelta> call = calls_.finish()) complete.push_back(std::move(*call));
  }
  for (ToolCallDelta& call : complete) {
    if (std::optional<std::string> object = object_of(call.arguments)) {
      call.arguments = std::move(*object);
      piece.calls.push_back(std::move(call));
    } else {
      piece.content += call.arguments;
    }
  }
}

// Appends an object up to "done", with the log-probabilities that wait.
void OllamaAnswer::append_object(const ChatChoiceText::Piece& piece) {
  append_answer_head(json_, model_);
  json_ += is_chat_ ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":";
  append_json_string(json_, piece.content);
  if (!piece.reasoning.empty()) {
    json_ += ",\"thinking\":";
    append_json_string(json_, piece.reasoning);
  }
  if (!piece.calls.empty()) {
    json_ += ",\"tool_calls\":[";
    for (size_t i = 0; i < piece.calls.size(); ++i) {
      const ToolCallDelta& call = piece.calls[i];
      json_ += i == 0 ? "{\"id\":" : ",{\"id\":";
      append_json_string(json_, call.id);
      json_ += ",\"function\":{\"index\":";
      append_json_number(json_, int64_t{call.index});
      json_ += ",\"name\":";
      append_json_string(json_, call.name);
      json_ += ",\"arguments\":";
      json_ += call.arguments;
      json_ += "}}";
    }
    json_ += ']';
  }
  if (is_chat_) json_ += '}';
  if (!logprobs_.empty()) {
    json_ += ",\"logprobs\":[";
    json_ += logprobs_;
    json_ += ']';
    logprobs_.clear();
  }
  json_ += ",\"done\":";
}

// Ends the last object. The time in the queue is reported as load_duration, because Ollama loads a model when
// the request's turn comes.
void OllamaAnswer::append_end(const GenerationDelta& delta) {
  json_ += "true,\"done_reason\":\"";
  json_ += finish_name(delta.finish_reason);
  json_ += '"';
  append_nanoseconds(json_, "total_duration", delta.e2e_s);
  append_nanoseconds(json_, "load_duration", delta.timings.queue_s);
  json_ += ",\"prompt_eval_count\":";
  append_json_number(json_, delta.prompt_tokens);
  append_nanoseconds(json_, "prompt_eval_duration", delta.timings.prefill_s);
  json_ += ",\"eval_count\":";
  append_json_number(json_, delta.completion_tokens);
  append_nanoseconds(json_, "eval_duration", delta.timings.decode_s);
  json_ += '}';
}

void OllamaAnswer::add(size_t /*i*/, GenerationDelta delta, SseStream& stream) {
  if (has_logprobs_) append_chat_logprobs(logprobs_, *tokenizer_, delta.logprobs);
  if (delta.has_more) return;
  const bool last = delta.finish_reason != FinishReason::kNone;
  ChatChoiceText::Piece piece = text_.append(std::move(delta.text), last);
  join_calls(piece, last);
  json_.clear();
  if (!stream_mode_) {  // its only delta is its last
    append_object(piece);
    return append_end(delta);
  }
  if (!piece.content.empty() || !piece.reasoning.empty() || !piece.calls.empty()) {
    append_object(piece);
    json_ += "false}";
    stream.event(json_);
    json_.clear();
  }
  if (!last || abort_status(ErrorStyle::kOllama, delta.abort_reason)) return;  // fail_stream() ends it
  append_object({});
  append_end(delta);
  stream.event(json_);
}

void OllamaAnswer::end_stream(SseStream& /*stream*/) {}  // add() has sent the last object

void OllamaAnswer::fail_stream(int status, std::string_view message, SseStream& stream) {
  stream.event(error_event(ErrorStyle::kOllama, status, message));
}

}  // namespace hadal::server
