// TestServer is a server without sockets: requests are passed to its routes, and answers are collected. The
// engine is a real one over an executor that generates a script's tokens; the tokenizer is the bundled
// model's. The test's thread is the I/O thread.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "engine/engine.h"
#include "server/admission/api_keys.h"
#include "server/admission/request_tally.h"
#include "server/http/http.h"
#include "server/server.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server::testing {

inline constexpr int64_t kVocab = 4096;

// Lets a number of steps end. When none is left, the engine waits inside a step, so that tests do not depend
// on the machine's speed.
class StepGate {
 public:
  void allow(int64_t steps);
  void open() { allow(std::numeric_limits<int64_t>::max()); }
  void pass();
  // Returns true while a step waits. The chunks of all steps before it have then been posted.
  bool holds_engine() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_engine_ = false;
  int64_t allowed_ = std::numeric_limits<int64_t>::max();
};

// Tasks wait until the test's thread runs them.
class TestIo final : public IoThread {
 public:
  void post(std::function<void()> task) override;
  void post_after(std::chrono::milliseconds delay, std::function<void()> task) override;
  int index() const override { return 0; }
  bool is_empty();
  void drop_tasks();

  // Runs tasks until `done`; false after a minute.
  bool run_until(const std::function<bool()>& done);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::multimap<std::chrono::steady_clock::time_point, std::function<void()>> timers_;
};

class TestExchange final : public HttpExchange {
 public:
  TestExchange(TestIo& io, HttpRequest request) : io_(io), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  HttpRequest& mutable_request() override { return request_; }
  IoThread& io() override { return io_; }

  void respond(HttpResponse answer) override;
  void start_stream(HttpResponse head) override;
  void write(std::string_view data) override;
  bool writable() const override { return is_writable; }
  void set_high_water(size_t /*bytes*/) override {}
  void finish() override;
  void on_writable(std::function<void()> callback) override { on_writable_ = std::move(callback); }
  void on_disconnect(std::function<void()> callback) override { on_disconnect_ = std::move(callback); }
  bool disconnected() const override { return gone; }

  // Makes the client read again.
  void read_again();
  void disconnect();

  HttpResponse response;
  int num_answers = 0;
  int num_writes = 0;
  bool streaming = false;
  bool complete = false;
  bool gone = false;
  bool is_writable = true;

 private:
  void end(int status);

  TestIo& io_;
  HttpRequest request_;
  std::function<void()> on_writable_;
  std::function<void()> on_disconnect_;
};

// Returns the keys of a server with one nameless key, and perhaps one for its administrator.
std::shared_ptr<const KeyRing> keys_of(std::string key, std::string admin_key = {});

struct TestServerOptions {
  ServerOptions server;
  EngineOptions engine;
  std::string script = " one two three four five six seven eight nine ten";
  bool with_tokenizer = true;
  bool with_grammars = false;  // needs grammar_available()
  std::optional<ChatFormat> chat_format;
  std::shared_ptr<RequestMemory> client_memory;  // HttpRequest::memory of all requests
};

class TestServer {
 public:
  using Options = TestServerOptions;

  explicit TestServer(Options options = {});
  ~TestServer();

  std::shared_ptr<TestExchange> send(std::string method, std::string path, std::string body = {},
                                     HeaderList headers = {});
  // Sends a request and waits for the whole answer, which must not be a stream.
  HttpResponse call(std::string method, std::string path, std::string body = {}, HeaderList headers = {});
  HttpResponse generate(std::string body) { return call("POST", "/generate", std::move(body)); }
  // Does the same for a client that always keeps up: the engine makes a step only when everything that it has
  // made before has been delivered.
  HttpResponse generate_step_by_step(std::string body);
  bool wait(TestExchange& exchange);

  // Returns the script's text after a prompt of `prompt_tokens` tokens.
  std::string said(int64_t prompt_tokens, int64_t count) const;
  std::vector<int32_t> said_ids(int64_t prompt_tokens, int64_t count) const;

  TestIo& io() { return io_; }
  StepGate& gate() { return *gate_; }
  Engine& engine() { return *engine_; }
  Server& server() { return *server_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  TestIo io_;
  std::shared_ptr<StepGate> gate_ = std::make_shared<StepGate>();
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> grammars_;
  ModelConfig config_;
  std::vector<int32_t> script_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<RequestMemory> client_memory_;
};

// Returns the objects of a stream's `data:` events; the stream must end in [DONE].
std::vector<boost::json::object> events_of(const std::string& body);

boost::json::value parsed(const HttpResponse& response);

inline std::string str(const boost::json::value& value) {
  return std::string(value.as_string());
}

// Returns true if the response says when to try again.
bool has_retry_after(const HttpResponse& response);

}  // namespace hadal::server::testing
