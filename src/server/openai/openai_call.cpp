#include "server/openai/openai_call.h"

#include <optional>
#include <utility>

#include "server/generation/choices_call.h"
#include "server/json/api_error.h"
#include "server/json/json_writer.h"
#include "server/metrics.h"
#include "server/native/native_generate.h"
#include "server/request_log.h"

namespace hadal::server {
namespace {

struct CallFailure {
  int status = 0;  // the HTTP status
  std::string message;
};

// Returns the failure if an abort of this kind is an error for the client.
std::optional<CallFailure> failure_of(const GenerationDelta& delta) {
  if (const auto status = abort_status(ErrorStyle::kOpenAi, delta.abort_reason))  // as in every other style
    return CallFailure{*status, delta.matched};
  return std::nullopt;
}

class OpenAiCall final : public ChoicesCall {
 public:
  OpenAiCall(ServerContext& context, std::shared_ptr<HttpExchange> exchange, OpenAiRequest request,
             std::unique_ptr<OpenAiAnswer> answer)
      : ChoicesCall(context,
                    SseStream::create(std::move(exchange), answer->error_style(), answer->event_form())),
        request_(std::move(request)),
        answer_(std::move(answer)),
        num_open_(request_.items.size()) {
    rids_.reserve(num_open_);
    if (log_text_bytes(context_) > 0) texts_.resize(num_open_);
  }

 private:
  size_t num_choices() const override { return request_.items.size(); }
  Choice choice(size_t i) override { return {request_.items[i].request, request_.items[i].grammar}; }
  QueuePlaces& places() override { return request_.places; }
  void before_start(size_t /*i*/, const GenerationRequest& request) override { rids_.push_back(request.rid); }

  void on_delta(size_t i, GenerationDelta delta) override {
    const bool last = delta.finish_reason != FinishReason::kNone;
    if (context_.options.log_requests_level >= 0) log_delta(i, delta, last);
    if (std::optional<CallFailure> failure = failure_of(delta)) {
      if (!stream_->started()) {  // the HTTP status can still report the error
        stream_->cancel_all();
        return stream_->exchange().respond(
            error_response(answer_->error_style(), failure->status, failure->message));
      }
      if (!failure_) failure_ = std::move(failure);
    }
    if (last) --num_open_;
    answer_->add(i, std::move(delta), *stream_);
    if (num_open_ > 0) return;
    if (request_.stream) {
      if (failure_) {
        answer_->fail_stream(failure_->status, failure_->message, *stream_);
      } else {
        answer_->end_stream(*stream_);
      }
      stream_->done();
    } else {
      HttpResponse response;
      response.body = answer_->whole();
      stream_->exchange().respond(std::move(response));
    }
  }

  void log_delta(size_t i, const GenerationDelta& delta, bool last) {
    if (!texts_.empty() && texts_[i].size() < log_text_bytes(context_)) texts_[i] += delta.text;
    if (!last) return;
    std::string text;
    if (!texts_.empty()) {
      append_json_string(text, texts_[i]);
      text = text.substr(1, text.size() - 2);
    }
    log_request_end(context_, rids_[i], delta, text);
  }

  OpenAiRequest request_;
  std::unique_ptr<OpenAiAnswer> answer_;
  std::vector<std::string> rids_;   // of the choices that have been started
  std::vector<std::string> texts_;  // for the log: the beginning of each text
  size_t num_open_;
  std::optional<CallFailure> failure_;  // the first failure after the stream began
};

}  // namespace

void OpenAiAnswer::fail_stream(int status, std::string_view message, SseStream& stream) {
  end_stream(stream);
  stream.event("error", error_event(error_style(), status, message));
}

void run_openai_call(ServerContext& context, std::shared_ptr<HttpExchange> exchange, OpenAiRequest request,
                     std::unique_ptr<OpenAiAnswer> answer) {
  exchange->mutable_request().body = {};
  context.metrics.count_unknown_fields(request.unknown_fields);
  std::make_shared<OpenAiCall>(context, std::move(exchange), std::move(request), std::move(answer))->run();
}

OpenAiLimits openai_limits(const ServerContext& context, const HttpRequest& from) {
  OpenAiLimits limits;
  limits.prompt = prompt_limits(context, from);
  limits.request = context.options.request_limits;
  limits.reserve = place_reserver(context, from);
  limits.vocab_size = context.config.vocab_size;
  limits.tokenizer = context.tokenizer;
  limits.default_sampling = context.options.default_sampling;
  limits.model_name = context.options.served_model_name;
  limits.chat_format = context.chat_format;
  limits.content_as_text = context.options.content_as_text;
  if (!context.chat_format) return limits;
  // The names were resolved at start; "" means none.
  if (const std::string& name = context.options.reasoning_parser; !name.empty()) {
    const auto format = resolve_reasoning_format(name, *context.chat_format);
    if (format.ok()) limits.reasoning = *format;
  }
  if (const std::string& name = context.options.tool_call_parser; !name.empty()) {
    const auto format = resolve_tool_call_format(name, *context.chat_format);
    if (format.ok()) limits.tool_calls = *format;
  }
  return limits;
}

}  // namespace hadal::server
