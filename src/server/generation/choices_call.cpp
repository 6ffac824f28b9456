#include "server/generation/choices_call.h"

#include <exception>
#include <utility>
#include <vector>

#include "server/generation/choice_starts.h"

namespace hadal::server {

ChoicesCall::ChoicesCall(ServerContext& context, std::shared_ptr<SseStream> stream)
    : context_(context), stream_(std::move(stream)), io_(stream_->exchange().io()) {}

template <typename Work>
void ChoicesCall::guarded(Work work) {
  try {
    work();
  } catch (const std::exception& error) {
    stream_->fail_internal(error);
  }
}

void ChoicesCall::run() {
  GrammarSpecs specs;
  std::vector<std::string> rids;
  specs.reserve(num_choices());
  rids.reserve(num_choices());
  for (size_t i = 0; i < num_choices(); ++i) {
    const Choice one = choice(i);
    if (grammar_field_.empty() && one.grammar) grammar_field_ = one.grammar->field;
    specs.push_back(std::move(one.grammar));
    rids.push_back(std::move(one.request.rid));
  }
  const HttpRequest& from = stream_->exchange().request();
  waiting_.emplace(context_.requests, std::string(key_name_of(from.client)), std::move(rids));
  stream_->on_cancel(compile_grammars(context_, io_, from, specs,
                                      [self = shared_from_this()](Result<CompiledGrammars> grammars) {
                                        self->guarded([&] { self->on_grammars(std::move(grammars)); });
                                      }));
}

void ChoicesCall::on_grammars(Result<CompiledGrammars> grammars) {
  if (stream_->disconnected()) return;
  if (!grammars.ok()) return stream_->fail(grammars.status(), grammar_field_);
  grammars_ = std::move(grammars).value();
  start_choices(io_, num_choices(), [self = shared_from_this()](size_t i) {
    bool has_started = false;
    self->guarded([&] { has_started = self->start_choice(i); });
    return has_started;
  });
}

// Starts a choice in one of the request's reserved places. Returns false if no further choice is to be
// started.
bool ChoicesCall::start_choice(size_t i) {
  if (stream_->cancelled()) return false;
  GenerationRequest& request = choice(i).request;
  request.rid = waiting_->rid(i);
  request.grammar = std::move(grammars_.of_specs[i]);
  set_origin(request, context_, stream_->exchange().request());
  before_start(i, request);
  log_request_start(context_, request, log_room_);
  auto started = Generation::start(context_, io_, places(), std::move(request),
                                   [self = shared_from_this(), i](GenerationDelta delta) {
                                     self->guarded([&] { self->on_delta(i, std::move(delta)); });
                                   });
  if (!started.ok()) {
    stream_->fail(started.status());
    return false;
  }
  const RequestId id = (*started)->id();
  stream_->attach(std::move(started).value());
  if (waiting_->set_started(i)) context_.engine.abort(id);
  if (i + 1 == num_choices()) waiting_.reset();
  return true;
}

}  // namespace hadal::server
