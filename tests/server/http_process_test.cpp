// Tests servers whose process is killed or whose log cannot be written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"

namespace hadal::server {

namespace {

using testing::start_server;
using testing::TestClient;
using testing::text_response;

TEST(HttpProcess, ThePortIsFreeAtOnceAfterAKill) {
  int to_parent[2];
  ASSERT_EQ(::pipe2(to_parent, O_CLOEXEC), 0);
  const auto handler = [](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->respond(text_response("ok"));
  };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto server = start_server(handler);
    const uint16_t port = server ? server->port() : 0;
    if (::write(to_parent[1], &port, sizeof(port)) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  uint16_t port = 0;
  ASSERT_EQ(::read(to_parent[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  TestClient client(port);
  EXPECT_EQ(client.get("/").status, 200);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  const auto again = start_server(handler, [&](HttpServerOptions& options) { options.port = port; });
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(TestClient(port).get("/").status, 200);
  ::close(to_parent[0]);
  ::close(to_parent[1]);
}

TEST(HttpProcess, AFullOrClosedLogHarmsNoRequest) {
  const int saved = ::dup(STDERR_FILENO);
  for (const char* where : {"/dev/full", "closed", "pipe"}) {
    if (where[0] == 'c') {
      ::close(STDERR_FILENO);
    } else if (where[0] == 'p') {
      int ends[2];
      ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
      ::dup2(ends[1], STDERR_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
    } else {
      const int full = ::open(where, O_WRONLY | O_CLOEXEC);
      ::dup2(full, STDERR_FILENO);
      ::close(full);
    }
    {
      // These descriptors are reserved, so that no socket gets the descriptor of stderr.
      const int filler = where[0] == 'c' ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
      const auto server = start_server(
          [](const std::shared_ptr<HttpExchange>& exchange) { exchange->respond(text_response("ok")); },
          [](HttpServerOptions& options) { options.access_log = true; });
      TestClient client(server->port());
      for (int i = 0; i < 100; ++i) EXPECT_EQ(client.get("/").status, 200) << where;
      if (filler >= 0) ::close(filler);
    }
    ::dup2(saved, STDERR_FILENO);
  }
  ::close(saved);
}

}  // namespace
}  // namespace hadal::server
