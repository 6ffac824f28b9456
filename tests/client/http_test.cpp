// Tests the HTTP client: its parsers, with input cut at every byte, and exchanges with a scripted server on
// loopback.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "client/bench_load.h"
#include "client/http_client.h"
#include "client/http_response_parser.h"
#include "client/sse_parser.h"

namespace hadal::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Holds the result of feeding `bytes` in two pieces.
struct Parsed {
  bool ok = true;
  std::string error;
  std::string body;
  int status = 0;
  bool done = false;
  bool keep_alive = false;
  size_t used = 0;
};

Parsed parse_at(std::string_view bytes, size_t cut, bool then_close = false) {
  Parsed out;
  HttpResponseParser parser([&](std::string_view piece) { out.body += piece; });
  for (const std::string_view piece : {bytes.substr(0, cut), bytes.substr(cut)}) {
    const Result<size_t> taken = parser.feed(piece);
    if (!taken.ok()) return {.ok = false, .error = taken.status().message};
    out.used += *taken;
  }
  if (then_close) {
    const Result<void> finished = parser.finish();
    if (!finished.ok()) return {.ok = false, .error = finished.status().message};
  }
  out.status = parser.status();
  out.done = parser.done();
  out.keep_alive = parser.keep_alive();
  return out;
}

TEST(HttpResponseParser, ReadsEveryFormOfBodyCutAtEveryByte) {
  struct Case {
    std::string bytes;
    std::string body;
    int status;
    bool close;
    bool keep_alive;
  };
  const Case cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, false, true},
      {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3;x=1\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n",
       "hello", 200, false, true},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: "
       "2\r\n\r\nno",
       "no", 404, false, false},
      {"HTTP/1.0 200 OK\r\n\r\nto the end", "to the end", 200, true, false},
      {"HTTP/1.1 204 No Content\r\n\r\n", "", 204, false, true},
      {"HTTP/1.1 500 \r\nContent-Length: 0\r\n\r\n", "", 500, false, true},
  };
  for (const Case& one : cases) {
    for (size_t cut = 0; cut <= one.bytes.size(); ++cut) {
      const Parsed parsed = parse_at(one.bytes, cut, one.close);
      ASSERT_TRUE(parsed.ok) << one.bytes << " cut at " << cut << ": " << parsed.error;
      EXPECT_EQ(parsed.body, one.body) << cut;
      EXPECT_EQ(parsed.status, one.status) << cut;
      EXPECT_TRUE(parsed.done) << one.bytes << cut;
      EXPECT_EQ(parsed.keep_alive, one.keep_alive) << one.bytes;
    }
  }
}

TEST(HttpResponseParser, LeavesWhatFollowsTheAnswer) {
  const std::string bytes = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1";
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(parse_at(bytes, cut).used, bytes.size() - 8) << cut;
  }
}

TEST(HttpResponseParser, RefusesWhatIsNotHttpCutAtEveryByte) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string chunked = ok + "Transfer-Encoding: chunked\r\n\r\n";
  std::string many_headers = ok;
  while (many_headers.size() < 70000) many_headers += "X-Short: y\r\n";
  for (const auto& [bytes, error] :
       {std::pair<std::string, const char*>("SSH-2.0-OpenSSH\r\n", "does not speak HTTP/1.1: it sent 'S"),
        {"HTTP/1.1 2x0 OK\r\n\r\n", "does not speak HTTP"},
        {"HTTP/2.0 200 OK\r\n\r\n", "does not speak HTTP"},
        {ok + "nonsense\r\n\r\n", "bad header"},
        {ok + "Content-Length: -1\r\n\r\n", "bad Content-Length"},
        {chunked + "xyz\r\n", "bad chunk size"},
        {chunked + "1\r\nab\r\n0\r\n\r\n", "longer than its size"},
        {"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "the server sent"},
        {ok + "Content-Length: 0\n\n", "the server sent"},
        {ok + "X: " + std::string(70000, 'x') + "\r\n\r\n", "more than 65536 bytes"},
        {many_headers + "\r\n", "the server sent headers of more than 65536 bytes"}}) {
    for (size_t cut = 1; cut < bytes.size(); cut += std::max<size_t>(bytes.size() / 80, 1)) {
      const Parsed parsed = parse_at(bytes, cut);
      ASSERT_FALSE(parsed.ok) << bytes << " cut at " << cut;
      EXPECT_THAT(parsed.error, HasSubstr(error)) << bytes << " cut at " << cut;
    }
  }
}

// Beast alone would wait for the end of the headers, until a time-out.
TEST(HttpResponseParser, RefusesALineWithoutCarriageReturnAtOnce) {
  HttpResponseParser parser([](std::string_view) {});
  EXPECT_TRUE(parser.feed("HTTP/1.1 200 OK\r\nContent-Len").ok());
  EXPECT_THAT(parser.feed("gth: 5\n").status().message, HasSubstr("does not end in CR LF"));
}

TEST(HttpResponseParser, SaysHowMuchOfAnAnswerCame) {
  const std::string whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
  EXPECT_THAT(parse_at(whole, 0).error, "");
  for (size_t end = 1; end < whole.size(); ++end) {
    EXPECT_THAT(parse_at(whole.substr(0, end), 0, true).error, HasSubstr("middle of an answer")) << end;
  }
  EXPECT_THAT(parse_at("", 0, true).error, HasSubstr("without an answer"));
  EXPECT_THAT(parse_at("HTTP/1.1 100 Continue\r\n\r\n", 0, true).error, HasSubstr("middle of an answer"));
}

TEST(SseParser, GivesTheSameEventsCutAtEveryByte) {
  const std::string bytes =
      ": comment\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\n\ndata\n\nid: 3\n\ndata: "
      "\xe6\xb0\xb4\r\rdata: last\n\n";
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    std::vector<std::string> events;
    SseParser parser([&](std::string_view data) { events.emplace_back(data); });
    parser.feed(std::string_view(bytes).substr(0, cut));
    parser.feed(std::string_view(bytes).substr(cut));
    ASSERT_THAT(events, ElementsAre("one", "two\nlines", "", "\xe6\xb0\xb4", "last")) << cut;
  }
}

TEST(ParseUrl, AcceptsTheUsualSpellings) {
  const auto url = parse_url("https://example.org/api/v1/", "x");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "example.org");
  EXPECT_EQ(url->port, 443);
  EXPECT_EQ(url->prefix, "/api");
  EXPECT_EQ(parse_url("http://127.0.0.1:30000/v1", "x")->prefix, "");
  EXPECT_EQ(parse_url("localhost:8000", "x")->port, 8000);
  EXPECT_EQ(parse_url("http://[::1]:8080", "x")->host, "::1");
  EXPECT_EQ(parse_url("http://[::1]", "x")->port, 80);
  for (const char* bad : {"", "ftp://a", "http://", "http://a:0", "http://a:70000", "http://a b",
                          "http://a:1x", "http://user@a", "http://a/b?c"}) {
    const auto parsed = parse_url(bad, "--base-url");
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_THAT(parsed.status().message, HasSubstr("--base-url")) << bad;
  }
}

// Calls a function with the bytes of each request (headers and body) and sends the pieces that it returns,
// with one write per piece. The piece "close" ends the connection. Each connection has a thread.
class ScriptedServer {
 public:
  using Script = std::function<std::vector<std::string>(const std::string& request, int connection)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 1024), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    for (std::thread& thread : threads_) thread.join();
  }
  HttpUrl url() const { return {.tls = false, .host = "127.0.0.1", .port = port_, .prefix = ""}; }

 private:
  void accept_all() {
    for (int number = 0;; ++number) {
      const int socket = ::accept(listener_, nullptr, nullptr);
      if (socket < 0) return;
      threads_.emplace_back([this, socket, number] {
        serve(socket, number);
        ::close(socket);
      });
    }
  }
  void serve(int socket, int number) {
    std::string pending;
    while (true) {
      size_t end = 0;
      while ((end = request_end(pending)) == 0) {
        char buffer[4096];
        const ssize_t count = ::recv(socket, buffer, sizeof(buffer), 0);
        if (count <= 0) return;
        pending.append(buffer, static_cast<size_t>(count));
      }
      const std::string request = pending.substr(0, end);
      pending.erase(0, end);
      for (const std::string& piece : script_(request, number)) {
        if (piece == "close") return;
        if (::send(socket, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) return;
      }
    }
  }
  static size_t request_end(const std::string& bytes) {
    const size_t headers = bytes.find("\r\n\r\n");
    if (headers == std::string::npos) return 0;
    const size_t at = bytes.find("Content-Length: ");
    const size_t length = at < headers ? std::stoul(bytes.substr(at + 16)) : 0;
    return bytes.size() >= headers + 4 + length ? headers + 4 + length : 0;
  }

  Script script_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> threads_;
};

std::string with_length(int status, const std::string& body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
}

std::unique_ptr<HttpClient> client_of(const ScriptedServer& server, HttpClientOptions options = {}) {
  auto client = HttpClient::create(server.url(), options);
  EXPECT_TRUE(client.ok());
  return std::move(client).value();
}

TEST(HttpClient, KeepsItsConnectionAndSendsWhatWasAsked) {
  const ScriptedServer server([](const std::string& request, int connection) {
    return std::vector{with_length(200, fmt::format("{}|{}", connection, request))};
  });
  const auto client = client_of(server, {.bearer = "secret"});
  EXPECT_THAT(
      client->fetch({.method = "GET", .target = "/v1/models", .body = ""}).body,
      AllOf(HasSubstr("0|GET /v1/models HTTP/1.1\r\n"), HasSubstr("Authorization: Bearer secret\r\n")));
  EXPECT_THAT(
      client->fetch({.target = "/generate", .body = "{}"}).body,
      AllOf(HasSubstr("0|POST /generate"), HasSubstr("Content-Length: 2\r\n"), HasSubstr("\r\n\r\n{}")));
  EXPECT_EQ(client->num_connections_opened(), 1);
}

TEST(HttpClient, TriesAgainWhenAKeptConnectionWasClosed) {
  // The server answers once per connection, says that it keeps the connection, and closes it.
  const ScriptedServer server([](const std::string&, int connection) {
    return std::vector{with_length(200, fmt::format("{}", connection)), std::string("close")};
  });
  const auto client = client_of(server);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client->fetch({.target = "/", .body = "{}"}).body, std::to_string(i));
}

TEST(HttpClient, SaysWhatWentWrong) {
  const ScriptedServer server([](const std::string& request, int) {
    if (request.find("/error") != std::string::npos) {
      return std::vector{with_length(400, R"({"error":{"message":"max_tokens is -1"}})")};
    }
    if (request.find("/cut") != std::string::npos) {
      return std::vector<std::string>{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "close"};
    }
    return std::vector<std::string>{"close"};
  });
  const auto client = client_of(server);
  const HttpReply refused = client->fetch({.target = "/error", .body = "{}"});
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(describe_failure(refused), "status 400: max_tokens is -1");
  EXPECT_THAT(describe_failure(client->fetch({.target = "/cut", .body = "{}"})),
              HasSubstr("middle of an answer"));
  EXPECT_THAT(describe_failure(client->fetch({.target = "/none", .body = "{}"})),
              HasSubstr("without an answer"));
  const auto nobody = HttpClient::create({.tls = false, .host = "127.0.0.1", .port = 1, .prefix = ""}, {});
  EXPECT_THAT(describe_failure((*nobody)->fetch({.target = "/", .body = ""})),
              HasSubstr("cannot connect to"));
}

TEST(HttpClient, GivesUpAfterItsTimeOutAndStopsOnRequest) {
  std::atomic<bool> release = false;
  const ScriptedServer server([&](const std::string&, int) {
    while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return std::vector<std::string>{"close"};
  });
  const auto hasty = client_of(server, {.timeout_s = 0.05});
  EXPECT_THAT(hasty->fetch({.target = "/", .body = "{}"}).error, HasSubstr("within 0.05 s"));

  class Silent : public HttpHandler {
   public:
    void on_event(std::string_view) override {}
    void on_done(HttpReply) override { called = true; }
    bool called = false;
  };
  const auto client = client_of(server);
  const auto handler = std::make_shared<Silent>();
  client->start({.target = "/", .body = "{}"}, handler);
  client->call_after(std::chrono::hours(1), [] {});
  EXPECT_FALSE(client->run([] { return true; }));
  EXPECT_FALSE(handler->called);
  release = true;
}

std::vector<std::string> stream_of(int tokens) {
  std::vector<std::string> pieces = {
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"};
  std::string text;
  for (int i = 1; i <= tokens + 1; ++i) {
    text += " x";
    const std::string event =
        i > tokens
            ? "data: [DONE]\n\n"
            : fmt::format(
                  "data: {}\n\n",
                  fmt::format(R"({{"text":"{}","meta_info":{{"completion_tokens":{},"prompt_tokens":7}}}})",
                              text, i));
    const std::string chunk = fmt::format("{:x}\r\n{}\r\n", event.size(), event);
    pieces.push_back(chunk.substr(0, 11));  // so that events arrive in halves
    pieces.push_back(chunk.substr(11));
  }
  pieces.emplace_back("0\r\n\r\n");
  return pieces;
}

TEST(RunLoad, TimesStreamsUnderTheLimitOfConcurrency) {
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  const ScriptedServer server([&](const std::string&, int) {
    int seen = ++now;
    for (int before = most; seen > before && !most.compare_exchange_weak(before, seen);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --now;
    return stream_of(5);
  });
  const auto client = client_of(server);
  const std::vector<LoadRequest> requests(40,
                                          {.prompt = "p", .ids = {}, .prompt_tokens = 7, .output_tokens = 5});
  LoadOptions options;
  options.max_concurrency = 8;
  size_t last_done = 0;
  const LoadResult result = run_load(
      *client, requests, options, [&](size_t done) { last_done = done; }, nullptr);
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(last_done, 40U);
  EXPECT_LE(most.load(), 8);
  EXPECT_LE(client->num_connections_opened(), 8);
  for (const RequestOutcome& one : result.outcomes) {
    ASSERT_TRUE(one.ok) << one.error;
    EXPECT_EQ(one.output_tokens, 5);
    EXPECT_EQ(one.itl_s.size(), 4U);
    EXPECT_EQ(one.text, " x x x x x");
    EXPECT_GT(one.ttft_s, 0.0);
    EXPECT_GE(one.latency_s, one.ttft_s);
    EXPECT_LE(one.start_s + one.latency_s, result.duration_s + 1e-6);
  }
}

TEST(RunLoad, CountsFailuresAndContinues) {
  std::atomic<int> number = 0;
  const ScriptedServer server([&](const std::string&, int) {
    const int i = number++;
    if (i % 3 == 1) return std::vector{with_length(503, R"({"message":"queue full"})")};
    if (i % 3 == 2) return std::vector<std::string>{"HTTP/1.1 200 OK\r\n", "close"};
    return stream_of(2);
  });
  const auto client = client_of(server);
  const std::vector<LoadRequest> requests(9,
                                          {.prompt = "p", .ids = {}, .prompt_tokens = 1, .output_tokens = 2});
  LoadOptions options;
  options.request_rate = 2000.0;
  const LoadResult result = run_load(*client, requests, options, nullptr, nullptr);
  int ok = 0;
  for (const RequestOutcome& one : result.outcomes) {
    ok += one.ok ? 1 : 0;
    EXPECT_EQ(one.ok, one.error.empty());
  }
  EXPECT_EQ(ok, 3);
}

}  // namespace
}  // namespace hadal::client
