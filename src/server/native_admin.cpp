#include "server/native_admin.h"

#include <chrono>
#include <utility>

#include <boost/json.hpp>

#include "base/log.h"
#include "server/background_pool.h"
#include "server/generation.h"
#include "server/json_fields.h"
#include "server/metrics.h"
#include "server/profiler.h"
#include "server/random_id.h"
#include "server/request_registry.h"
#include "server/server_status.h"

namespace hadal::server {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;
using Exchange = std::shared_ptr<HttpExchange>;

constexpr std::chrono::seconds kHealthTimeout{20};
constexpr std::chrono::milliseconds kHealthPoll{50};
constexpr std::chrono::milliseconds kProfilePoll{100};

HttpResponse plain_text(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(text);
  return response;
}

HttpResponse json_text(const json::value& value, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = json::serialize(value);
  return response;
}

// Runs work that may wait for the engine or the disk on a background thread, and answers on the exchange's.
void answer_in_background(ServerContext& context, const Exchange& exchange,
                          std::function<HttpResponse()> work) {
  IoThread& io = exchange->io();
  const bool posted = context.admin.post([&io, exchange, work = std::move(work)] {
    HttpResponse response;
    try {
      response = work();
    } catch (const std::exception& error) {
      log_error("request failed path={} error=\"{}\"", exchange->request().path, error.what());
      response = error_response(ErrorStyle::kSglang, 500, "internal error; the server's log has the details");
    }
    io.post([exchange, response = std::move(response)]() mutable { exchange->respond(std::move(response)); });
  });
  if (!posted)
    exchange->respond(error_response(ErrorStyle::kSglang, 503, "too many requests are waiting; try again"));
}

// Returns the body as an object; an absent body is an empty object.
Result<json::object> optional_body(const Exchange& exchange) {
  if (exchange->request().body.empty()) return json::object();
  return parse_json_object(exchange->request().body);
}

HttpResponse unhealthy(ServerPhase phase) {
  return error_response(ErrorStyle::kSglang, 503, fmt::format("the server is {}", to_string(phase)));
}

void health(ServerContext& context, const Exchange& exchange) {
  const ServerPhase phase = context.status.phase();
  if (phase != ServerPhase::kReady) return exchange->respond(unhealthy(phase));
  exchange->respond(plain_text(200, ""));
}

// Advancing steps show that the engine is alive.
void watch_steps(ServerContext& context, const Exchange& exchange, int64_t steps,
                 Clock::time_point deadline) {
  if (exchange->disconnected()) return;
  if (context.engine.stats().num_steps > steps) return exchange->respond(plain_text(200, ""));
  if (Clock::now() >= deadline) {
    return exchange->respond(
        error_response(ErrorStyle::kSglang, 503,
                       fmt::format("the queue is full and no step within {} s", kHealthTimeout.count())));
  }
  exchange->io().post_after(kHealthPoll, [&context, exchange, steps, deadline] {
    watch_steps(context, exchange, steps, deadline);
  });
}

// Generates one token with the whole pipeline. A busy engine may take long to reach it; then advancing steps
// are enough.
void health_generate(ServerContext& context, const Exchange& exchange) {
  const ServerPhase phase = context.status.phase();
  if (phase != ServerPhase::kReady) return exchange->respond(unhealthy(phase));
  GenerationRequest request;
  request.rid = "HEALTH_CHECK_" + random_id();
  request.input_ids = {context.tokenizer != nullptr ? context.tokenizer->bos_id().value_or(0) : 0};
  request.sampling.max_new_tokens = 1;
  request.sampling.temperature = 0.0F;
  request.log_metrics = false;
  const int64_t steps = context.engine.stats().num_steps;
  const auto answered = std::make_shared<bool>(false);
  auto started = Generation::start(
      context, exchange->io(), std::move(request), [exchange, answered](const GenerationDelta& delta) {
        if (std::exchange(*answered, true)) return;
        const bool aborted = delta.finish_reason == FinishReason::kAbort;
        exchange->respond(aborted ? error_response(ErrorStyle::kSglang, 503, delta.matched)
                                  : plain_text(200, ""));
      });
  if (!started.ok() && started.status().code == StatusCode::kResourceExhausted) {  // busy is not unhealthy
    return watch_steps(context, exchange, steps, Clock::now() + kHealthTimeout);
  }
  if (!started.ok()) return exchange->respond(error_response(ErrorStyle::kSglang, started.status()));
  const std::shared_ptr<Generation> generation = std::move(started).value();
  exchange->on_disconnect([generation] { generation->cancel(); });
  exchange->io().post_after(kHealthTimeout, [&context, exchange, generation, answered, steps] {
    if (std::exchange(*answered, true)) return;
    generation->cancel();
    const bool moving = context.engine.stats().num_steps > steps;
    exchange->respond(moving ? plain_text(200, "")
                             : error_response(ErrorStyle::kSglang, 503,
                                              fmt::format("no token within {} s", kHealthTimeout.count())));
  });
}

void flush_cache(ServerContext& context, const Exchange& exchange) {
  answer_in_background(context, exchange, [&context] {
    const Result<void> flushed = context.engine.flush_cache();
    if (flushed.ok()) log_info("cache flushed");
    return flushed.ok() ? plain_text(200, "Cache flushed.\n")
                        : plain_text(400, fmt::format("Cache not flushed: {}\n", flushed.status().message));
  });
}

void abort_request(ServerContext& context, const Exchange& exchange) {
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
  // As in SGLang, this means every request whose id begins with this text.
  const std::vector<RequestId> ids = context.requests.find_prefix(abort_all ? std::string_view() : rid);
  if (abort_all) {
    context.engine.abort_all();
  } else {
    for (const RequestId id : ids) context.engine.abort(id);
  }
  log_info("abort asked for rid=\"{}\" all={} requests={}", rid, abort_all, ids.size());
  exchange->respond(json_text({{"success", true}, {"num_requests", ids.size()}}));
}

void pause_generation(ServerContext& context, const Exchange& exchange) {
  const auto body = optional_body(exchange);
  if (!body.ok()) return exchange->respond(error_response(ErrorStyle::kSglang, body.status()));
  FieldReader reader(body.value());
  std::string mode = "abort";
  reader.text("mode", mode);
  if (mode != "abort" && mode != "retract" && mode != "in_place") {
    reader.fail("mode", fmt::format("is \"{}\"; must be abort, retract or in_place", mode));
  }
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

void continue_generation(ServerContext& context, const Exchange& exchange) {
  answer_in_background(context, exchange, [&context] {
    context.engine.resume();
    log_info("generation continued");
    return json_text({{"status", "ok"}, {"message", "Generation continued."}});
  });
}

HttpResponse profile_written(const Result<std::string>& path) {
  if (!path.ok()) {  // a profile that ends by itself can report only here
    log_error("profile not written error=\"{}\"", path.status().message);
    return error_response(ErrorStyle::kSglang, path.status());
  }
  log_info("profile written path={}", *path);
  return plain_text(200, fmt::format("Stop profiling. The trace is in {}\n", *path));
}

// A profile of a given number of steps is written as soon as it has them.
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

void start_profile(ServerContext& context, Profiler& profiler, const Exchange& exchange) {
  const auto body = optional_body(exchange);
  if (!body.ok()) return exchange->respond(error_response(ErrorStyle::kSglang, body.status()));
  FieldReader reader(body.value());
  std::string output_dir;  // the operator's directory itself
  int64_t num_steps = 0;
  reader.text("output_dir", output_dir);
  reader.integer("num_steps", num_steps, 1, 1'000'000);
  if (!reader.ok()) {
    return exchange->respond(error_response(ErrorStyle::kSglang, reader.status(), reader.failed_field()));
  }
  answer_in_background(context, exchange, [&context, &profiler, output_dir, num_steps, io = &exchange->io()] {
    const Result<void> started = profiler.start(output_dir, num_steps);
    if (!started.ok()) return error_response(ErrorStyle::kSglang, started.status());
    log_info("profile started output_dir={} num_steps={}", output_dir, num_steps);
    if (num_steps > 0) {
      io->post([&context, &profiler, io] { watch_profile(context, profiler, *io); });
    }
    return plain_text(200, "Start profiling.\n");
  });
}

}  // namespace

void add_native_admin_routes(Router& router, ServerContext& context, Profiler& profiler) {
  using Handler = void (*)(ServerContext&, const Exchange&);
  const auto add = [&](std::string_view method, std::string_view path, Access access, Handler handler) {
    router.add(
        {.method = method, .path = path, .access = access, .handler = [&context, handler](Exchange exchange) {
           handler(context, exchange);
         }});
  };
  for (const char* method : {"GET", "POST"}) {
    add(method, "/health", Access::kOpen, health);
    add(method, "/ping", Access::kOpen, health);
    add(method, "/health_generate", Access::kOpen, health_generate);
    add(method, "/flush_cache", Access::kAdmin, flush_cache);
    router.add({.method = method,
                .path = "/start_profile",
                .access = Access::kAdmin,
                .handler = [&context, &profiler](Exchange exchange) {
                  start_profile(context, profiler, exchange);
                }});
    router.add({.method = method,
                .path = "/stop_profile",
                .access = Access::kAdmin,
                .handler = [&context, &profiler](Exchange exchange) {
                  answer_in_background(context, exchange,
                                       [&profiler] { return profile_written(profiler.stop()); });
                }});
  }
  add("POST", "/abort_request", Access::kAdmin, abort_request);
  add("POST", "/pause_generation", Access::kAdmin, pause_generation);
  add("POST", "/continue_generation", Access::kAdmin, continue_generation);
  add("GET", "/metrics", Access::kOpen, [](ServerContext& served, const Exchange& exchange) {
    if (!served.metrics.enabled()) {
      return exchange->respond(error_response(
          ErrorStyle::kSglang, 404, "metrics are disabled; start the server with --enable-metrics"));
    }
    HttpResponse response;
    response.content_type = Metrics::kContentType;
    response.body = served.metrics.text(served.engine.stats());
    exchange->respond(std::move(response));
  });
}

}  // namespace hadal::server
