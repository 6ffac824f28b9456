#include "server/native/native_generate.h"

#include <exception>
#include <utility>
#include <vector>

#include "server/admission/prompt_limits.h"
#include "server/generation/choice_starts.h"
#include "server/generation/grammar_task.h"
#include "server/generation/parse_task.h"
#include "server/generation/sse.h"
#include "server/native/native_output.h"
#include "server/native/native_request.h"
#include "server/request_log.h"

namespace hadal::server {
namespace {

// GenerateCall is one HTTP request in progress, kept alive by the callbacks of its generations.
class GenerateCall : public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(ServerContext& context, std::shared_ptr<HttpExchange> exchange, NativeRequest request)
      : context_(context),
        io_(exchange->io()),
        stream_(SseStream::create(std::move(exchange), ErrorStyle::kSglang)),
        request_(std::move(request)),
        grammar_memory_(context.memory) {}

  void run() {
    GrammarSpecs specs;
    std::string field;  // field of the first grammar; a request has one kind of them
    for (NativeItem& item : request_.items) {
      if (field.empty() && item.grammar) field = item.grammar->field;
      specs.push_back(std::move(item.grammar));
    }
    if (const Result<void> charged = charge_grammars(grammar_memory_, specs); !charged.ok())
      return stream_->fail(charged.status(), field);
    compile_grammars(context_, io_, stream_->exchange().request().client, std::move(specs),
                     stream_->cancelled(),
                     [self = shared_from_this(), field](Result<CompiledGrammars> grammars) {
                       self->guarded([&] {
                         if (self->stream_->disconnected()) return;
                         if (!grammars.ok()) {
                           return self->stream_->fail(grammars.status(), field);
                         }
                         const Result<void> charged = charge_grammars(self->grammar_memory_, *grammars);
                         if (!charged.ok()) return self->stream_->fail(charged.status());
                         self->start(std::move(grammars).value());
                       });
                     });
  }

 private:
  template <typename Work>
  void guarded(Work work) {
    try {
      work();
    } catch (const std::exception& error) {
      stream_->fail_internal(error);
    }
  }

  // Starts all choices, each on a place that the request has.
  void start(CompiledGrammars grammars) {
    grammars_ = std::move(grammars);
    num_open_ = request_.items.size();
    outputs_.reserve(num_open_);
    start_choices(io_, num_open_, [self = shared_from_this()](size_t i) {
      bool has_started = false;
      self->guarded([&] { has_started = self->start_choice(i); });
      return has_started;
    });
  }

  // Returns false if nothing more is to be started.
  bool start_choice(size_t i) {
    if (*stream_->cancelled()) return false;
    GenerationRequest& request = request_.items[i].request;
    request.grammar = std::move(grammars_[i]);
    set_origin(request, context_, stream_->exchange().request());
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
    log_request_start(context_, request, log_room_);
    auto started = Generation::start(context_, io_, request_.places, std::move(request),
                                     [self = shared_from_this(), i](GenerationDelta delta) {
                                       self->guarded([&] { self->on_delta(i, std::move(delta)); });
                                     });
    if (!started.ok()) {
      stream_->fail(started.status());
      return false;
    }
    stream_->attach(std::move(started).value());
    return true;
  }

  void on_delta(size_t i, GenerationDelta delta) {
    const auto abort = abort_status(ErrorStyle::kSglang, delta.abort_reason);
    if (abort && !stream_->started()) {
      stream_->cancel_all();
      return stream_->exchange().respond(error_response(ErrorStyle::kSglang, *abort, delta.matched));
    }
    NativeOutput& output = outputs_[i];
    const bool has_more = delta.has_more;
    output.add(std::move(delta));
    if (has_more) return;
    if (output.finished()) {
      --num_open_;
      log_request_end(context_, output.rid(), output.last(), output.text_json());
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

  ServerContext& context_;
  IoThread& io_;
  std::shared_ptr<SseStream> stream_;
  NativeRequest request_;
  MemoryCharge grammar_memory_;
  CompiledGrammars grammars_;  // of the choices that have not been started
  LogRoom log_room_;
  std::vector<NativeOutput> outputs_;  // of those that have been started
  size_t num_open_ = 0;
  std::string json_;
};

void generate(ServerContext& context, std::shared_ptr<HttpExchange> exchange) {
  NativeLimits limits{.prompt = prompt_limits(context),
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

PromptLimits prompt_limits(const ServerContext& context) {
  return {.context_length = context.engine.context_length(),
          .max_total_tokens = context.engine.max_total_tokens(),
          .allow_auto_truncate = context.options.allow_auto_truncate,
          .memory = context.memory};
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
