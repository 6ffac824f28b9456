#include "server/native/native_admin.h"

#include <chrono>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "base/cancel.h"
#include "base/log.h"
#include "server/admission/memory_costs.h"
#include "server/generation/background_pool.h"
#include "server/generation/generation.h"
#include "server/generation/parse_task.h"
#include "server/generation/request_registry.h"
#include "server/http/http_message.h"
#include "server/json/json_fields.h"
#include "server/json/json_text.h"
#include "server/json/random_id.h"
#include "server/metrics.h"
#include "server/profiler.h"
#include "server/server_status.h"

namespace hadal::server {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;
using ExchangePtr = std::shared_ptr<HttpExchange>;

constexpr std::chrono::seconds kHealthTimeout{20};
constexpr std::chrono::milliseconds kHealthPoll{50};
// For so long a token shows that the engine works. Anybody may ask, so each answer must not cost a step.
constexpr std::chrono::milliseconds kProbeHolds{500};
constexpr std::chrono::milliseconds kProfilePoll{100};
constexpr size_t kAdminBody = size_t{4} << 10;  // it is parsed on the I/O thread

HttpResponse plain_text(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(text);
  return response;
}

HttpResponse shutting_down() {
  return error_response(ErrorStyle::kSglang, 503, "the server is shutting down");
}

// Runs `work`, which may wait for the engine or the disk, on a background thread, and answers on the
// exchange's I/O thread. Work that has not begun when a drain ends is not done; its answer is a 503.
void answer_in_background(ServerContext& context, const ExchangePtr& exchange,
                          std::function<HttpResponse()> work) {
  if (context.admin.stopping()) return exchange->respond(shutting_down());
  IoThread& io = exchange->io();
  const bool posted = context.admin.post([&io, exchange, work = std::move(work)] {
    HttpResponse response;
    try {
      response = is_cancelled() ? shutting_down() : work();
    } catch (const std::exception& error) {
      log_error("request failed path={} error=\"{}\"", exchange->request().path, error.what());
      response = exception_response(ErrorStyle::kSglang, error);
    }
    io.post([exchange, response = std::move(response)]() mutable { exchange->respond(std::move(response)); });
  });
  if (!posted)
    exchange->respond(error_response(ErrorStyle::kSglang, 503, "too many requests are waiting; try again"));
}

// Returns the body as an object; an absent body is an empty object.
Result<json::object> optional_body(const ExchangePtr& exchange) {
  if (exchange->request().body.empty()) return json::object();
  return parse_json_object(exchange->request().body);
}

HttpResponse unhealthy(ServerPhase phase) {
  return error_response(ErrorStyle::kSglang, 503, fmt::format("the server is {}", to_string(phase)));
}

void health(ServerContext& context, const ExchangePtr& exchange) {
  const ServerPhase phase = context.status.phase();
  if (phase != ServerPhase::kReady) return exchange->respond(unhealthy(phase));
  exchange->respond(plain_text(200, ""));
}

// HealthProbe generates one token with the whole pipeline, for one probe at a time. Requests that arrive
// while it runs, or soon after it has succeeded, get its answer, so that any number of them costs no more
// than one. A busy engine may take long to reach the probe; then it is enough if the number of steps grows.
class HealthProbe : public std::enable_shared_from_this<HealthProbe> {
 public:
  explicit HealthProbe(ServerContext& context) : context_(context) {}

  void ask(const ExchangePtr& exchange) {
    const ServerPhase phase = context_.status.phase();
    if (phase != ServerPhase::kReady) return exchange->respond(unhealthy(phase));
    {
      std::unique_lock lock(mutex_);
      if (Clock::now() < answers_until_) {
        lock.unlock();
        return exchange->respond(plain_text(200, ""));
      }
      waiting_.push_back(exchange);
      if (waiting_.size() > 1) return;  // the probe of an earlier request is running
    }
    try {
      start(exchange->io());
    } catch (...) {  // the other requests must not wait for ever
      answer(error_response(ErrorStyle::kSglang, 500, "the probe failed"));
      throw;
    }
  }

 private:
  // Pending is one running probe. Only its generation's callback owns it, so that the timer of a finished
  // probe holds next to nothing until it fires.
  struct Pending {
    explicit Pending(std::shared_ptr<RequestMemory> memory) : charge(std::move(memory)) {}
    std::weak_ptr<Generation> generation;
    MemoryCharge charge;
  };

  void start(IoThread& io) {
    GenerationRequest request;
    request.rid = "HEALTH_CHECK_" + random_id();
    request.input_ids = {context_.tokenizer != nullptr ? context_.tokenizer->bos_id().value_or(0) : 0};
    request.sampling.max_new_tokens = 1;
    request.sampling.temperature = 0.0F;
    request.log_metrics = false;
    const int64_t steps = context_.engine.stats().num_steps;
    // With make_shared the timer's weak pointer would keep the whole block.
    const std::shared_ptr<Pending> pending(new Pending(context_.memory));
    if (!charge_choices(pending->charge, request, 1, 0).ok())  // a full server is not unhealthy
      return watch_steps(io, steps, Clock::now() + kHealthTimeout);
    const auto started = Generation::start(
        context_, io, std::move(request), [self = shared_from_this(), pending](const GenerationDelta& delta) {
          const bool aborted = delta.finish_reason == FinishReason::kAbort;
          self->answer(aborted ? error_response(ErrorStyle::kSglang, 503, delta.matched)
                               : plain_text(200, ""));
        });
    if (!started.ok() && started.status().code == StatusCode::kResourceExhausted)
      return watch_steps(io, steps, Clock::now() + kHealthTimeout);
    if (!started.ok()) return answer(error_response(ErrorStyle::kSglang, started.status()));
    pending->generation = started.value();
    io.post_after(kHealthTimeout,
                  [self = shared_from_this(), running = std::weak_ptr<Pending>(pending), steps] {
                    const auto probe = running.lock();
                    const auto generation = probe == nullptr ? nullptr : probe->generation.lock();
                    if (generation == nullptr) return;  // the probe has been answered
                    generation->cancel();
                    self->answer(self->verdict(steps));
                  });
  }

  HttpResponse verdict(int64_t steps_before) const {
    if (context_.engine.stats().num_steps > steps_before) return plain_text(200, "");
    return error_response(ErrorStyle::kSglang, 503,
                          fmt::format("no token within {} s", kHealthTimeout.count()));
  }

  // A growing number of steps shows that the engine is alive.
  void watch_steps(IoThread& io, int64_t steps, Clock::time_point deadline) {
    if (context_.engine.stats().num_steps > steps) return answer(plain_text(200, ""));
    if (Clock::now() >= deadline) {
      return answer(
          error_response(ErrorStyle::kSglang, 503,
                         fmt::format("the queue is full and no step within {} s", kHealthTimeout.count())));
    }
    io.post_after(kHealthPoll, [self = shared_from_this(), &io, steps, deadline] {
      self->watch_steps(io, steps, deadline);
    });
  }

  void answer(const HttpResponse& response) {
    std::vector<ExchangePtr> waiting;
    {
      const std::lock_guard lock(mutex_);
      waiting.swap(waiting_);
      if (response.status == 200) answers_until_ = Clock::now() + kProbeHolds;
    }
    for (ExchangePtr& exchange : waiting) {
      IoThread& io = exchange->io();
      io.post([exchange = std::move(exchange), response] { exchange->respond(response); });
    }
  }

  ServerContext& context_;
  std::mutex mutex_;
  std::vector<ExchangePtr> waiting_;  // guarded by mutex_; not empty: a probe is running
  Clock::time_point answers_until_;   // guarded by mutex_; until then the last probe's success is the answer
};

void flush_cache(ServerContext& context, const ExchangePtr& exchange) {
  answer_in_background(context, exchange, [&context] {
    const Result<void> flushed = context.engine.flush_cache();
    if (flushed.ok()) log_info("cache flushed");
    return flushed.ok() ? plain_text(200, "Cache flushed.\n")
                        : plain_text(400, fmt::format("Cache not flushed: {}\n", flushed.status().message));
  });
}

void abort_request(ServerContext& context, const ExchangePtr& exchange) {
  const auto body = optional_body(exchange);
  if (!body.ok()) return exchange->respond(error_response(ErrorStyle::kSglang, body.status()));
  FieldReader reader(body.value());
  std::string rid;
  bool abort_all = false;
  reader.text("rid", rid);
  reader.boolean("abort_all", abort_all);
  if (rid.empty() && !abort_all)
    reader.fail("rid", "is empty; give the beginning of a request id, or abort_all");
  if (!reader.ok()) {
    return exchange->respond(error_response(ErrorStyle::kSglang, reader.status(), reader.failed_field()));
  }
  // The router lets clients without a named key through only if they may administer.
  const std::string_view key_name = key_name_of(exchange->request().client);
  if (abort_all && !key_name.empty()) {
    return exchange->respond(error_response(
        ErrorStyle::kSglang, 403,
        "abort_all is true; only the admin key (--admin-api-key) may abort the requests of all keys; a key "
        "of --api-key-file must give the beginning of a rid of its own",
        "abort_all"));
  }
  // As in SGLang, this means every request whose id begins with `rid`.
  const RequestRegistry::Meant meant =
      context.requests.mark_prefix(abort_all ? std::string_view() : rid, key_name);
  if (abort_all) {
    context.engine.abort_all();
  } else {
    for (const RequestId id : meant.started) context.engine.abort(id);
  }
  log_info("abort asked for rid={} all={} requests={}{}{}", for_log(rid), abort_all, meant.count,
           key_name.empty() ? "" : " key=", key_name);
  exchange->respond(json_text({{"success", true}, {"num_requests", meant.count}}));
}

void pause_generation(ServerContext& context, const ExchangePtr& exchange) {
  const auto body = optional_body(exchange);
  if (!body.ok()) return exchange->respond(error_response(ErrorStyle::kSglang, body.status()));
  FieldReader reader(body.value());
  std::string mode = "abort";
  reader.choice("mode", mode, {"abort", "retract", "in_place"});
  if (!reader.ok()) {
    return exchange->respond(error_response(ErrorStyle::kSglang, reader.status(), reader.failed_field()));
  }
  answer_in_background(context, exchange, [&context, mode] {
    if (mode == "abort") context.engine.abort_all();
    context.engine.pause();
    log_info("generation paused mode={}", mode);
    return json_text({{"status", "ok"}, {"message", "Generation paused."}});
  });
}

void continue_generation(ServerContext& context, const ExchangePtr& exchange) {
  answer_in_background(context, exchange, [&context] {
    context.engine.resume();
    log_info("generation continued");
    return json_text({{"status", "ok"}, {"message", "Generation continued."}});
  });
}

HttpResponse profile_written(const Result<std::string>& path) {
  if (!path.ok()) {  // the error of a profile that ends by itself can be reported only here
    log_error("profile not written error=\"{}\"", path.status().message);
    return error_response(ErrorStyle::kSglang, path.status());
  }
  log_info("profile written path={}", *path);
  return plain_text(200, fmt::format("Stop profiling. The trace is in {}\n", *path));
}

// Writes a profile of a given number of steps as soon as it has all of them.
void watch_profile(ServerContext& context, Profiler& profiler, IoThread& io) {
  io.post_after(kProfilePoll, [&context, &profiler, &io] {
    context.admin.post([&context, &profiler, &io] {
      if (profiler.complete()) {
        profile_written(profiler.stop());
      } else if (profiler.running()) {
        io.post([&context, &profiler, &io] { watch_profile(context, profiler, io); });
      }
    });
  });
}

void start_profile(ServerContext& context, Profiler& profiler, const ExchangePtr& exchange) {
  const auto body = optional_body(exchange);
  if (!body.ok()) return exchange->respond(error_response(ErrorStyle::kSglang, body.status()));
  FieldReader reader(body.value());
  std::string output_dir;  // empty: the operator's directory itself
  int64_t num_steps = 0;
  reader.text("output_dir", output_dir);
  reader.integer("num_steps", num_steps, 1, 1'000'000);
  if (!reader.ok()) {
    return exchange->respond(error_response(ErrorStyle::kSglang, reader.status(), reader.failed_field()));
  }
  answer_in_background(context, exchange, [&context, &profiler, output_dir, num_steps, io = &exchange->io()] {
    const Result<void> started = profiler.start(output_dir, num_steps);
    if (!started.ok()) return error_response(ErrorStyle::kSglang, started.status());
    log_info("profile started output_dir={} num_steps={}", for_log(output_dir), num_steps);
    if (num_steps > 0) {
      io->post([&context, &profiler, io] { watch_profile(context, profiler, *io); });
    }
    return plain_text(200, "Start profiling.\n");
  });
}

}  // namespace

void add_native_admin_routes(Router& router, ServerContext& context, Profiler& profiler) {
  using Handler = std::function<void(const ExchangePtr&)>;
  const auto add = [&](std::string_view method, std::string_view path, Access access, Handler handler,
                       size_t max_body_bytes = 0) {
    router.add({.method = method,
                .path = path,
                .access = access,
                .max_body_bytes = max_body_bytes,
                .handler = std::move(handler)});
  };
  const auto with_context = [&context](void (*handler)(ServerContext&, const ExchangePtr&)) {
    return [&context, handler](const ExchangePtr& exchange) { handler(context, exchange); };
  };
  const auto probe = std::make_shared<HealthProbe>(context);
  for (const char* method : {"GET", "POST"}) {
    add(method, "/health", Access::kOpen, with_context(health));
    add(method, "/ping", Access::kOpen, with_context(health));
    add(method, "/health_generate", Access::kOpen,
        [probe](const ExchangePtr& exchange) { probe->ask(exchange); });
    // A link or an image on any page makes a browser send a GET.
    if (std::string_view(method) == "GET" && !context.options.allow_get_admin) continue;
    add(method, "/flush_cache", Access::kAdmin, with_context(flush_cache));
    add(
        method, "/start_profile", Access::kAdmin,
        [&context, &profiler](const ExchangePtr& exchange) { start_profile(context, profiler, exchange); },
        kAdminBody);
    add(method, "/stop_profile", Access::kAdmin, [&context, &profiler](const ExchangePtr& exchange) {
      answer_in_background(context, exchange, [&profiler] { return profile_written(profiler.stop()); });
    });
  }
  add("POST", "/abort_request", Access::kOwn, with_context(abort_request), kAdminBody);
  add("POST", "/pause_generation", Access::kAdmin, with_context(pause_generation), kAdminBody);
  add("POST", "/continue_generation", Access::kAdmin, with_context(continue_generation));
  add("GET", "/metrics", Access::kOpen, [&served = context](const ExchangePtr& exchange) {
    if (!served.metrics.enabled()) {
      return exchange->respond(error_response(
          ErrorStyle::kSglang, 404, "metrics are disabled; start the server with --enable-metrics"));
    }
    HttpResponse response;
    response.content_type = Metrics::kContentType;
    response.body =
        served.metrics.text(served.engine.stats(), served.http(), served.memory.get(), served.grammars);
    exchange->respond(std::move(response));
  });
}

}  // namespace hadal::server
