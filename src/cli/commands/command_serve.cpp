// `hadal serve` runs the HTTP server. The socket listens before the weights are read, so that a port in use
// is an error at once, and clients get status 503 instead of a refused connection while the model is being
// loaded.
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/seconds.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "cli/server_options.h"
#include "cli/session.h"
#include "cli/signal_watcher.h"
#include "server/admission/audit_log.h"
#include "server/json/api_error.h"
#include "server/server.h"
#include "text/grammar/grammar.h"

namespace hadal::cli {
namespace {

using Clock = std::chrono::steady_clock;

// /health reports "stalled" or "failed" for this long before the process ends; SGLang's watchdog also leaves
// some time for inspection.
constexpr std::chrono::seconds kFaultGrace{5};
// After --drain-timeout, requests are aborted, the last answers are sent and all threads end within this
// time. A thread that still runs after it has hung.
constexpr std::chrono::seconds kDrainGrace{20};

// Reports faults of the engine's threads to the server's status and to the main thread, even before the
// server exists and after its destruction. Soon afterwards the process ends, whatever its threads are doing.
class FaultReporter {
 public:
  explicit FaultReporter(SignalWatcher& signals) : signals_(signals) {}

  void report(server::ServerPhase phase) {
    {
      const std::lock_guard lock(mutex_);
      phase_ = phase;
      if (status_ != nullptr) status_->set(phase);
    }
    signals_.exit_at(Clock::now() + kFaultGrace, fmt::format("the engine has {}", to_string(phase)));
  }
  bool any() {
    const std::lock_guard lock(mutex_);
    return phase_.has_value();
  }
  void attach(server::ServerStatus* status) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    if (status_ != nullptr && phase_) status_->set(*phase_);
  }

 private:
  SignalWatcher& signals_;
  std::mutex mutex_;
  server::ServerStatus* status_ = nullptr;
  std::optional<server::ServerPhase> phase_;
};

// Keeps a server status attached as long as this object exists.
class FaultAttachment {
 public:
  FaultAttachment(FaultReporter& faults, server::ServerStatus& status) : faults_(faults) {
    faults_.attach(&status);
  }
  ~FaultAttachment() { faults_.attach(nullptr); }
  FaultAttachment(const FaultAttachment&) = delete;
  FaultAttachment& operator=(const FaultAttachment&) = delete;

 private:
  FaultReporter& faults_;
};

// ServerSlot holds the server that receives the requests; it is null while the model is being loaded. The
// transport shares the slot and outlives the server.
using ServerSlot = std::atomic<server::Server*>;

Result<std::unique_ptr<server::HttpServer>> start_transport(server::HttpServerOptions options,
                                                            const std::shared_ptr<ServerSlot>& slot) {
  const auto starting = [] {
    return server::error_response(server::ErrorStyle::kSglang, 503,
                                  "the server is starting and still loads the model");
  };
  options.gate = [slot, starting](const server::HttpRequest& request) {
    if (const server::Server* server = slot->load()) return server->admit(request);
    server::HttpAdmission refused;
    refused.reason = server::Refusal::kStarting;
    refused.refusal = starting();
    return refused;
  };
  return server::HttpServer::start(std::move(options),
                                   [slot, starting](std::shared_ptr<server::HttpExchange> exchange) {
                                     if (server::Server* server = slot->load())
                                       return server->handle(std::move(exchange));
                                     exchange->respond(starting());
                                   });
}

// Returns the chat format. If there is none, it logs a line, and completions still work.
std::optional<ChatFormat> find_chat_format(const ParsedFlags& flags, const Session& session) {
  if (session.tokenizer() == nullptr) return std::nullopt;
  const auto format = session.chat_format(flags);
  if (format.ok()) return *format;
  log_warning("no chat format reason=\"{}\"", format.status().message);
  return std::nullopt;
}

Result<std::unique_ptr<GrammarCompiler>> make_grammars(const ParsedFlags& flags, const Session& session) {
  if (session.tokenizer() == nullptr || flags.text_or("grammar-backend", "xgrammar") == "none" ||
      !grammar_available()) {
    return std::unique_ptr<GrammarCompiler>();
  }
  GrammarCompilerOptions options;
  options.vocab_size = session.config().vocab_size;
  for (const int64_t id : session.config().eos_token_ids) options.end_ids.push_back(static_cast<int32_t>(id));
  // Several compilations at once must fit into the memory of requests, beside other requests.
  options.memory.compile_bytes =
      std::min(options.memory.compile_bytes, static_cast<int64_t>(max_request_memory(flags) / 8));
  options.json_spaces.is_compact = flags.has("constrained-json-disable-any-whitespace");
  options.json_spaces.pattern = flags.text_or("constrained-json-whitespace-pattern", "");
  return GrammarCompiler::create(*session.tokenizer(), options);
}

// Generates one token before the first client's request, so that the whole engine has run once.
Result<void> warm_up_engine(Engine& engine, const Tokenizer* tokenizer) {
  GenerateRequest request;
  request.input_ids = {tokenizer != nullptr ? tokenizer->bos_id().value_or(0) : 0};
  request.sampling.max_new_tokens = 1;
  request.sampling.temperature = 0.0F;
  HADAL_ASSIGN_OR_RETURN(const RequestId id, engine.submit(std::move(request)));
  while (const auto chunk = engine.stream(id)) {
    if (chunk->finish_reason != FinishReason::kAbort) continue;
    return make_status(StatusCode::kInternal, "the first token could not be generated: {}",
                       chunk->abort_text);
  }
  return {};
}

// Returns the function that SIGHUP runs: it reads the key file and opens the audit log again. The function is
// empty without these files.
std::function<void()> reloader(const ParsedFlags& flags, const std::shared_ptr<server::KeyRing>& keys,
                               const std::shared_ptr<server::AuditLog>& audit) {
  if (!flags.has("api-key-file") && !audit) return {};
  return [keys, audit, path = flags.text_or("api-key-file", "")] {
    if (audit) audit->reopen();
    if (path.empty()) return;
    auto loaded = server::load_key_file(path);
    if (!loaded.ok()) return log_error("keys not changed error=\"{}\"", loaded.status().message);
    log_info("keys read again count={}", loaded->size());
    keys->replace(std::move(loaded).value());
  };
}

std::string url_of(const server::HttpServerOptions& http, uint16_t port) {
  const std::string host = http.host.find(':') == std::string::npos ? http.host : "[" + http.host + "]";
  return fmt::format("{}://{}:{}", http.tls_certfile.empty() ? "http" : "https", host, port);
}

}  // namespace

Result<int> run_serve(const ParsedFlags& flags, const Environment& environment) {
  const Clock::time_point begin = Clock::now();
  const MemoryReserve reserve;
  HADAL_ASSIGN_OR_RETURN(server::HttpServerOptions http, resolve_http_options(flags));
  http.memory = std::make_shared<server::RequestMemory>(max_request_memory(flags));
  HADAL_ASSIGN_OR_RETURN(const std::shared_ptr<server::KeyRing> keys, resolve_keys(flags, environment));
  std::shared_ptr<server::AuditLog> audit;
  if (flags.has("audit-log")) {
    HADAL_ASSIGN_OR_RETURN(audit, server::AuditLog::open(flags.text_or("audit-log", "")));
  }
  SignalWatcher signals(reloader(flags, keys, audit));
  const AsyncLogging async_logging;  // so that a blocked reader of stderr cannot block the server
  if (audit) audit->start();
  const TokenizerUse use = flags.has("skip-tokenizer-init") ? TokenizerUse::kNone : TokenizerUse::kRequired;
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::open(flags, environment, use));
  const std::optional<ChatFormat> chat_format = find_chat_format(flags, *session);
  HADAL_ASSIGN_OR_RETURN(server::ServerOptions options,
                         resolve_server_options(flags, environment, *session, chat_format));
  options.keys = keys;
  options.audit = audit;
  options.memory = http.memory;

  const auto slot = std::make_shared<ServerSlot>(nullptr);
  auto transport = start_transport(http, slot);
  if (!transport.ok()) return transport.status();
  log_info("listening url={} io_threads={}", url_of(http, (*transport)->port()), http.num_threads);

  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<GrammarCompiler> grammars, make_grammars(flags, *session));
  FaultReporter faults(signals);
  EngineOptions engine_options = resolve_engine_options(flags, session->options());
  engine_options.watchdog_timeout_s = flags.number("watchdog-timeout").value_or(300.0);
  engine_options.on_stall = [&faults](const std::string&) { faults.report(server::ServerPhase::kStalled); };
  engine_options.on_failure = [&faults](const std::string&) { faults.report(server::ServerPhase::kFailed); };
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, session->make_engine(engine_options));
  options.max_running_requests = engine->max_running_requests();
  options.load_weights_s = session->load_s();
  options.tp_size = session->options().split.tp;
  options.ep_size = session->options().split.ep;

  server::Server server({.options = std::move(options),
                         .config = session->config(),
                         .engine = *engine,
                         .tokenizer = session->tokenizer(),
                         .chat_format = chat_format,
                         .grammars = grammars.get()},
                        http.num_threads);
  server.attach(std::move(transport).value());
  const FaultAttachment attachment(faults, server.status());
  slot->store(&server);
  if (!flags.has("skip-server-warmup")) HADAL_RETURN_IF_ERROR(warm_up_engine(*engine, session->tokenizer()));
  signals.arm();
  server.set_ready(seconds_since(begin));
  log_info("server ready url={} model={} seconds={:.2f}", url_of(http, server.port()),
           server.context().options.served_model_name, seconds_since(begin));

  const std::string why = signals.wait();
  const double timeout_s = flags.number("drain-timeout").value_or(60.0);
  log_info("server drains signal={} timeout_s={:g}", why, timeout_s);
  const std::chrono::milliseconds timeout(static_cast<int64_t>(timeout_s * 1000));
  signals.exit_at(Clock::now() + timeout + kDrainGrace, "draining did not end");
  const int64_t aborted = server.drain(timeout);
  server.stop();
  log_info("server ended aborted={}", aborted);
  return faults.any() ? kExitFailure : kExitOk;
}

}  // namespace hadal::cli
