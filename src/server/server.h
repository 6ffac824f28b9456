// Server joins the routes, the context that they share and the HTTP transport. `hadal serve` uses it, and so
// do tests, with any engine. Its owner (main) calls its functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "server/http/http_server.h"
#include "server/server_context.h"
#include "server/server_status.h"

namespace hadal::server {

class Server {
 public:
  // All referenced objects must outlive the server.
  struct Parts {
    ServerOptions options;
    const ModelConfig& config;
    Engine& engine;
    const Tokenizer* tokenizer = nullptr;
    std::optional<ChatFormat> chat_format;
    GrammarCompiler* grammars = nullptr;
    int num_background_threads = 2;
  };

  explicit Server(Parts parts, int num_io_threads);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Answers one request. This is the handler of a transport with at most `num_io_threads` I/O threads.
  void handle(std::shared_ptr<HttpExchange> exchange);
  // Decides about a request when its headers are complete. This is the gate of a transport.
  HttpAdmission admit(const HttpRequest& request) const;
  // Listens; requests are answered from now on (http.num_threads is num_io_threads of the constructor).
  // Errors are those of HttpServer::start.
  Result<void> listen(HttpServerOptions http);
  // Takes ownership of a transport whose handler calls handle().
  void attach(std::unique_ptr<HttpServer> http);
  uint16_t port() const;

  ServerContext& context();
  ServerStatus& status();
  // Records that the first token has been generated, so that /health reports ready.
  void set_ready(double startup_seconds);

  // Refuses new work (503), finishes running requests for at most `timeout`, aborts the rest, and waits until
  // the answers are sent. Returns the number of aborted requests.
  int64_t drain(std::chrono::milliseconds timeout);
  // Ends whatever is still running. Repeated calls do nothing; the destructor calls it.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::server
