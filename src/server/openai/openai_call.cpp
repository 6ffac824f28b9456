#include "server/openai/openai_call.h"

#include <exception>
#include <optional>
#include <utility>

#include "server/generation/choice_starts.h"
#include "server/generation/grammar_task.h"
#include "server/json/api_error.h"
#include "server/json/json_writer.h"
#include "server/metrics.h"
#include "server/native/native_generate.h"
#include "server/request_log.h"

namespace hadal::server {
namespace {

struct Failure {
  int status = 0;  // the HTTP status
  std::string message;
};

// Returns the failure if an abort of this kind is an error for the client.
std::optional<Failure> failure_of(const GenerationDelta& delta) {
  if (const auto status = abort_status(ErrorStyle::kOpenAi, delta.abort_reason))  // as in every other style
    return Failure{*status, delta.matched};
  return std::nullopt;
}

// OpenAiCall is kept alive by the callbacks of its generations.
class OpenAiCall : public std::enable_shared_from_this<OpenAiCall> {
 public:
  OpenAiCall(ServerContext& context, std::shared_ptr<HttpExchange> exchange, OpenAiRequest request,
             std::unique_ptr<OpenAiAnswer> answer)
      : context_(context),
        io_(exchange->io()),
        stream_(SseStream::create(std::move(exchange), answer->error_style(), answer->event_form())),
        request_(std::move(request)),
        grammar_memory_(context.memory),
        answer_(std::move(answer)) {}

  void run() {
    GrammarSpecs specs;
    specs.reserve(request_.items.size());
    for (OpenAiItem& item : request_.items) specs.push_back(item.grammar);
    if (const Result<void> charged = charge_grammars(grammar_memory_, specs); !charged.ok())
      return stream_->fail(charged.status());
    compile_grammars(context_, io_, stream_->exchange().request().client, std::move(specs),
                     stream_->cancelled(), [self = shared_from_this()](Result<CompiledGrammars> grammars) {
                       self->guarded([&] { self->on_grammars(std::move(grammars)); });
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

  void on_grammars(Result<CompiledGrammars> grammars) {
    if (stream_->disconnected()) return;
    if (!grammars.ok()) {
      std::string field;
      for (const OpenAiItem& item : request_.items) {
        if (field.empty() && item.grammar) field = item.grammar->field;
      }
      return stream_->fail(grammars.status(), field);
    }
    if (const Result<void> charged = charge_grammars(grammar_memory_, *grammars); !charged.ok())
      return stream_->fail(charged.status());
    start(std::move(grammars).value());
  }

  // Starts all choices, each on a place that the request has.
  void start(CompiledGrammars grammars) {
    grammars_ = std::move(grammars);
    num_open_ = request_.items.size();
    rids_.reserve(num_open_);
    if (log_text_bytes(context_) > 0) texts_.resize(num_open_);
    start_choices(io_, num_open_, [self = shared_from_this()](size_t i) {
      bool has_started = false;
      self->guarded([&] { has_started = self->start_choice(i); });
      return has_started;
    });
  }

  // Returns false if nothing more is to be started.
  bool start_choice(size_t i) {
    if (*stream_->cancelled()) return false;
    GenerationRequest& generation = request_.items[i].request;
    generation.grammar = std::move(grammars_[i]);
    set_origin(generation, context_, stream_->exchange().request());
    rids_.push_back(generation.rid);
    log_request_start(context_, generation, log_room_);
    auto started = Generation::start(context_, io_, request_.places, std::move(generation),
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
    const bool last = delta.finish_reason != FinishReason::kNone;
    if (context_.options.log_requests_level >= 0) log_delta(i, delta, last);
    if (std::optional<Failure> failure = failure_of(delta)) {
      if (!stream_->started()) {  // the status can still report the error
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

  ServerContext& context_;
  IoThread& io_;
  std::shared_ptr<SseStream> stream_;
  OpenAiRequest request_;
  MemoryCharge grammar_memory_;
  CompiledGrammars grammars_;  // of the choices that have not been started
  LogRoom log_room_;
  std::unique_ptr<OpenAiAnswer> answer_;
  std::vector<std::string> rids_;
  std::vector<std::string> texts_;  // for the log: beginnings
  size_t num_open_ = 0;
  std::optional<Failure> failure_;  // the first failure of a stream that had begun
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
  limits.prompt = prompt_limits(context);
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
