#include "server/native/native_generate.h"

#include <utility>
#include <vector>

#include "server/admission/prompt_limits.h"
#include "server/generation/choices_call.h"
#include "server/generation/parse_task.h"
#include "server/native/native_output.h"
#include "server/native/native_request.h"
#include "server/request_log.h"

namespace hadal::server {
namespace {

class GenerateCall final : public ChoicesCall {
 public:
  GenerateCall(ServerContext& context, std::shared_ptr<HttpExchange> exchange, NativeRequest request)
      : ChoicesCall(context, SseStream::create(std::move(exchange), ErrorStyle::kSglang)),
        request_(std::move(request)),
        num_open_(request_.items.size()) {
    outputs_.reserve(num_open_);
    // With incremental events an output keeps only the text of the last one.
    if (request_.stream && context.options.stream_output_incremental && log_text_bytes(context) > 0)
      logged_.resize(num_open_);
  }

 private:
  size_t num_choices() const override { return request_.items.size(); }
  Choice choice(size_t i) override { return {request_.items[i].request, request_.items[i].grammar}; }
  QueuePlaces& places() override { return request_.places; }

  void before_start(size_t i, const GenerationRequest& request) override {
    NativeOutput::Options options{
        .tokenizer = context_.tokenizer,
        .form = !request_.stream                             ? NativeOutput::Form::kWhole
                : context_.options.stream_output_incremental ? NativeOutput::Form::kIncremental
                                                             : NativeOutput::Form::kCumulative,
        .text_in_logprobs = request_.text_in_logprobs,
        .logprobs = request.logprobs,
    };
    if (request_.stream && request_.is_list) options.index = static_cast<int64_t>(i);
    outputs_.emplace_back(request.rid, request.input_ids, options);
  }

  void on_delta(size_t i, GenerationDelta delta) override {
    const auto abort = abort_status(ErrorStyle::kSglang, delta.abort_reason);
    if (abort && !stream_->started()) {
      stream_->cancel_all();
      return stream_->exchange().respond(error_response(ErrorStyle::kSglang, *abort, delta.matched));
    }
    NativeOutput& output = outputs_[i];
    const bool has_more = delta.has_more;
    output.add(std::move(delta));
    if (has_more) return;
    if (!logged_.empty() && logged_[i].size() < log_text_bytes(context_)) logged_[i] += output.text_json();
    if (output.finished()) {
      --num_open_;
      log_request_end(context_, output.rid(), output.last(),
                      logged_.empty() ? output.text_json() : logged_[i]);
    }
    if (request_.stream) {
      if (!output.is_due()) return;
      json_.clear();
      output.append_json(json_);
      stream_->event(json_);
      if (num_open_ == 0) stream_->done();
    } else if (num_open_ == 0) {
      respond();
    }
  }

  void respond() {
    HttpResponse response;
    size_t bytes = 2;
    for (const NativeOutput& output : outputs_) bytes += output.json_bytes();
    response.body.reserve(bytes);
    if (request_.is_list) response.body += '[';
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (i > 0) response.body += ',';
      outputs_[i].append_json(response.body);
    }
    if (request_.is_list) response.body += ']';
    stream_->exchange().respond(std::move(response));
  }

  NativeRequest request_;
  std::vector<NativeOutput> outputs_;  // of the choices that have been started
  std::vector<std::string> logged_;  // the beginnings of incremental texts, or empty: outputs_ have the texts
  size_t num_open_;
  std::string json_;
};

void generate(ServerContext& context, std::shared_ptr<HttpExchange> exchange) {
  NativeLimits limits{.prompt = prompt_limits(context, exchange->request()),
                      .request = context.options.request_limits,
                      .reserve = place_reserver(context, exchange->request()),
                      .vocab_size = context.config.vocab_size,
                      .tokenizer = context.tokenizer,
                      .streams_incrementally = context.options.stream_output_incremental};
  parse_body(
      context, std::move(exchange), ErrorStyle::kSglang,
      [limits](std::string_view body) { return parse_native_request(body, limits); },
      [&context](std::shared_ptr<HttpExchange> answer, std::variant<NativeRequest, FieldError> parsed) {
        if (const FieldError* error = std::get_if<FieldError>(&parsed)) {
          return answer->respond(error_response(ErrorStyle::kSglang, error->status, error->field));
        }
        std::make_shared<GenerateCall>(context, std::move(answer), std::get<NativeRequest>(std::move(parsed)))
            ->run();
      });
}

}  // namespace

ReservePlaces place_reserver(const ServerContext& context, const HttpRequest& from) {
  return [&engine = context.engine, client = engine_client(from)](int64_t count) {
    return engine.reserve(count, client);
  };
}

PromptLimits prompt_limits(const ServerContext& context, const HttpRequest& from) {
  return {.context_length = context.engine.context_length(),
          .max_total_tokens = context.engine.max_total_tokens(),
          .allow_auto_truncate = context.options.allow_auto_truncate,
          .memory = ledger_for(context, from)};
}

void add_native_generate_routes(Router& router, ServerContext& context) {
  for (const char* method : {"POST", "PUT"}) {
    router.add({.method = method,
                .path = "/generate",
                .handler = [&context](std::shared_ptr<HttpExchange> exchange) {
                  generate(context, std::move(exchange));
                }});
  }
}

}  // namespace hadal::server
