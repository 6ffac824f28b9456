#include "server/server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "server/admission/request_gate.h"
#include "server/anthropic/anthropic_answer.h"
#include "server/generation/background_pool.h"
#include "server/generation/chunk_router.h"
#include "server/generation/request_registry.h"
#include "server/metrics.h"
#include "server/native/native_admin.h"
#include "server/native/native_generate.h"
#include "server/native/native_text.h"
#include "server/ollama/ollama_routes.h"
#include "server/openai/openai_routes.h"
#include "server/page.h"
#include "server/profiler.h"
#include "server/responses/responses_routes.h"
#include "server/router.h"
#include "server/unsupported_routes.h"

namespace hadal::server {
namespace {

constexpr std::chrono::seconds kAnswerGrace{5};  // for the last bytes of answers after a drain

// This many tasks may wait in a pool. A long queue is harmless, because clients take turns and bodies have a
// limit of their own. So a burst of one client, or of all clients behind one proxy, may wait.
constexpr size_t kMaxTasks = 65536;
constexpr size_t kMaxTasksPerClient = 16384;

// One client may occupy all threads but one, so that other clients always find a thread.
BackgroundPool::Options parser_options(int num_io_threads) {
  const int num_threads = std::max(2, num_io_threads);
  return {.num_threads = num_threads,
          .max_queued = kMaxTasks,
          .max_queued_per_client = kMaxTasksPerClient,
          .max_running_per_client = num_threads - 1,
          .low_priority = true};
}

// A grammar may take seconds, so a client's grammars are compiled one after another.
BackgroundPool::Options grammar_options(int num_threads) {
  return {.num_threads = num_threads,
          .max_queued = kMaxTasks,
          .max_queued_per_client = kMaxTasksPerClient,
          .max_running_per_client = 1,
          .low_priority = true};
}

}  // namespace

// The members stand in order of construction. They are destroyed in reverse, so that nothing outlives its
// references.
struct Server::Impl {
  Impl(Parts parts, int num_io_threads)
      : options(std::move(parts.options)),
        metrics(
            {.enabled = options.enable_metrics,
             .prefix = options.metrics_prefix,
             .model_name = options.model_label.empty() ? options.served_model_name : options.model_label}),
        chunks(num_io_threads),
        background(grammar_options(parts.num_background_threads)),
        admin(1),
        parsers(parser_options(num_io_threads)),
        profiler(parts.engine, options.profile_dir),
        context{.options = options,
                .config = parts.config,
                .engine = parts.engine,
                .tokenizer = parts.tokenizer,
                .chat_format = parts.chat_format,
                .grammars = parts.grammars,
                .background = background,
                .admin = admin,
                .parsers = parsers,
                .chunks = chunks,
                .metrics = metrics,
                .requests = requests,
                .status = status,
                .memory = options.memory,
                .http = [this] { return http.get(); }},
        router(options.keys ? options.keys : std::make_shared<const KeyRing>(std::vector<ApiKey>(), ""),
               options.allowed_hosts),
        gate(router, options.rate_limits.any() ? std::make_shared<RateLimiter>(options.rate_limits) : nullptr,
             options.audit) {
    add_native_generate_routes(router, context);
    add_native_admin_routes(router, context, profiler);
    add_native_info_routes(router, context);
    add_native_text_routes(router, context);
    add_openai_routes(router, context);
    add_responses_routes(router, context);
    add_anthropic_routes(router, context);
    add_ollama_routes(router, context);
    add_unsupported_routes(router);
    add_page_routes(router);
    metrics.set_endpoints(router.endpoints());
  }

  const ServerOptions options;
  Metrics metrics;
  RequestRegistry requests;
  ChunkRouter chunks;  // its receivers refer to the requests
  ServerStatus status;
  BackgroundPool background;
  BackgroundPool admin;
  BackgroundPool parsers;
  Profiler profiler;
  ServerContext context;
  Router router;
  RequestGate gate;
  std::unique_ptr<HttpServer> http;
};

Server::Server(Parts parts, int num_io_threads)
    : impl_(std::make_unique<Impl>(std::move(parts), num_io_threads)) {}

Server::~Server() {
  stop();
}

void Server::handle(std::shared_ptr<HttpExchange> exchange) {
  impl_->router.handle(std::move(exchange));
}

HttpAdmission Server::admit(const HttpRequest& request) const {
  return impl_->gate.admit(request, RateLimiter::Clock::now());
}

Result<void> Server::listen(HttpServerOptions http) {
  http.memory = impl_->options.memory;
  http.gate = [this](const HttpRequest& request) { return admit(request); };
  HADAL_ASSIGN_OR_RETURN(impl_->http, HttpServer::start(std::move(http), [this](auto exchange) {
                           handle(std::move(exchange));
                         }));
  return {};
}

void Server::attach(std::unique_ptr<HttpServer> http) {
  impl_->http = std::move(http);
}

uint16_t Server::port() const {
  return impl_->http == nullptr ? 0 : impl_->http->port();
}

ServerContext& Server::context() {
  return impl_->context;
}

ServerStatus& Server::status() {
  return impl_->status;
}

void Server::set_ready(double startup_seconds) {
  impl_->metrics.set_startup_seconds(startup_seconds);
  if (impl_->status.phase() == ServerPhase::kStarting) impl_->status.set(ServerPhase::kReady);
}

int64_t Server::drain(std::chrono::milliseconds timeout) {
  impl_->status.set(ServerPhase::kDraining);
  impl_->background.announce_stop();  // requests that wait for grammars would be refused
  const auto last = std::chrono::steady_clock::now() + timeout;
  const int64_t aborted = impl_->context.engine.drain(timeout);
  if (impl_->http != nullptr) impl_->http->stop_accepting();
  impl_->parsers.wait_idle(last);
  impl_->admin.wait_idle(last);
  impl_->parsers.announce_stop();  // the tasks that are left answer their requests now
  impl_->admin.announce_stop();
  impl_->admin.help();  // because the pool's only thread may be blocked by a slow disk
  if (impl_->http == nullptr) return aborted;
  const auto deadline = std::chrono::steady_clock::now() + kAnswerGrace;
  while (impl_->http->num_connections() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return aborted;
}

void Server::stop() {
  impl_->background.stop();  // first, because tasks of the pools post to I/O threads
  impl_->admin.stop();
  impl_->parsers.stop();
  impl_->chunks.close();  // because the engine posts there too
  if (impl_->http != nullptr) impl_->http->stop();
}

}  // namespace hadal::server
