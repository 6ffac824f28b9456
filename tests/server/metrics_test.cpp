// Tests what /metrics reports about lengths, HTTP answers, I/O threads, grammars, the process and the build.
#include "server/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/version.h"
#include "server/http/answer_counts.h"
#include "server/http/http_server.h"
#include "server/process_stats.h"
#include "tests/server/http_test_client.h"
#include "tests/server/test_server.h"
#include "text/grammar/grammar.h"

namespace hadal::server {
namespace {

using testing::TestClient;
using testing::TestServer;

// Returns the value of the sample that begins with `name`; -1 if there is none.
double sample(const std::string& page, const std::string& name) {
  const size_t at = page.find("\n" + name);
  if (at == page.npos) return -1;
  const size_t end = page.find('\n', at + 1);
  const std::string line = page.substr(at + 1, end - at - 1);
  return std::stod(line.substr(line.rfind(' ')));
}

TEST(Metrics, LengthsOfPromptsAndAnswersAreHistograms) {
  TestServer server({.server = {.enable_metrics = true}});
  const auto page = [&] { return server.call("GET", "/metrics").body; };
  EXPECT_EQ(sample(page(), "sglang:prompt_tokens_histogram_count"), 0);
  // The two choices share a prompt.
  server.generate(R"({"input_ids":[3,4,5],"sampling_params":{"max_new_tokens":7,"n":2,"ignore_eos":true}})");
  const std::string text = page();
  EXPECT_EQ(sample(text, "sglang:prompt_tokens_histogram_count"), 1);
  EXPECT_EQ(sample(text, "sglang:prompt_tokens_histogram_sum"), 3);
  EXPECT_EQ(sample(text, "sglang:generation_tokens_histogram_count"), 2);
  EXPECT_EQ(sample(text, "sglang:generation_tokens_histogram_sum"), 14);
}

TEST(Metrics, AnswersAreCountedByRouteAndStatusAndNeverByTheClientsPath) {
  TestServer server({.server = {.enable_metrics = true}});
  ASSERT_TRUE(server.server().listen({.port = 0, .num_threads = 1, .access_log = false}).ok());
  TestClient client(server.server().port());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/health/").status, 200);
  EXPECT_EQ(client.get("/v1/models/other").status, 404);
  EXPECT_EQ(client.post("/v1/embeddings", "").status, 501);
  EXPECT_EQ(TestClient(server.server().port()).get("/a-secret-path").status, 404);
  const std::string page = TestClient(server.server().port()).get("/metrics").body;
  const std::string begin =
      "sglang:http_responses_total{engine_type=\"unified\",model_name=\"hadal-tiny\",endpoint=\"";
  EXPECT_EQ(sample(page, begin + "/health\",method=\"GET\",status_code=\"200\"}"), 2) << page;
  EXPECT_EQ(sample(page, begin + "/v1/models/{model...}\",method=\"GET\",status_code=\"404\"}"), 1);
  EXPECT_EQ(sample(page, begin + "/v1/embeddings\",method=\"POST\",status_code=\"501\"}"), 1);
  EXPECT_EQ(sample(page, begin + "Unknown\",method=\"Unknown\",status_code=\"404\"}"), 1);
  EXPECT_EQ(page.find("secret"), page.npos);
}

TEST(Metrics, AScrapeDoesNotTakeTheLongestTaskAway) {
  TestServer server({.server = {.enable_metrics = true}});
  ASSERT_TRUE(server.server().listen({.port = 0, .num_threads = 1, .access_log = false}).ok());
  static constexpr std::chrono::milliseconds kTask{50};
  server.server().context().http()->io_thread(0).post([] { std::this_thread::sleep_for(kTask); });
  for (int i = 0; i < 2; ++i) {
    const std::string page = TestClient(server.server().port()).get("/metrics").body;
    EXPECT_GE(sample(page, "sglang:http_longest_task_seconds"), std::chrono::duration<double>(kTask).count());
  }
}

TEST(Metrics, TellWhatTheCacheOfGrammarsHolds) {
  if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
  TestServer server({.server = {.enable_metrics = true}, .with_grammars = true});
  double bytes = 0;
  for (int entries = 0; entries < 3; ++entries) {
    const std::string page = server.call("GET", "/metrics").body;
    EXPECT_EQ(sample(page, "sglang:grammar_cache_entries"), entries);
    if (entries > 0) {
      EXPECT_GT(sample(page, "sglang:grammar_cache_bytes"), bytes);
    }
    bytes = sample(page, "sglang:grammar_cache_bytes");
    const HttpResponse answer = server.generate(
        fmt::format(R"({{"input_ids":[3],"sampling_params":{{"max_new_tokens":2,"regex":"[a-z]{{{}}}"}}}})",
                    5 + entries));
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
  EXPECT_EQ(sample(TestServer({.server = {.enable_metrics = true}}).call("GET", "/metrics").body,
                   "sglang:grammar_cache_bytes"),
            -1)
      << "a server without grammars has no cache of them";
}

TEST(Metrics, HavePrometheusNamesForTheProcessAndTheBuild) {
  const Metrics metrics({.enabled = true, .model_name = "m"});
  const std::string page = metrics.text(EngineStats{});
  EXPECT_GT(sample(page, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(sample(page, "process_virtual_memory_bytes"), sample(page, "process_resident_memory_bytes"));
  EXPECT_GT(sample(page, "process_cpu_seconds_total"), 0);
  EXPECT_GT(sample(page, "process_max_fds"), 3);
  EXPECT_EQ(sample(page, "hadal_build_info{version=\"" + std::string(version()) + "\"}"), 1);
  const double age =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
      sample(page, "process_start_time_seconds");
  EXPECT_GT(age, -2);  // the time of the start is known to a second
  EXPECT_LT(age, 86400);
}

TEST(ProcessReader, SeesDescriptorsMemoryAndWork) {
  ProcessReader reader;
  const ProcessStats before = reader.read();
  const int descriptor = ::open("/dev/null", O_RDONLY);
  ASSERT_GE(descriptor, 0);
  std::vector<char> memory(size_t{64} << 20, 'x');
  while (reader.read().cpu_s <= before.cpu_s) memory[0] ^= 1;  // a tick of the clock is 10 ms
  const ProcessStats after = reader.read();
  EXPECT_EQ(after.open_descriptors, before.open_descriptors + 1);
  EXPECT_EQ(after.open_descriptors, reader.list_descriptors());
  EXPECT_GT(after.resident_bytes, before.resident_bytes + (32 << 20));
  EXPECT_EQ(after.start_time_s, before.start_time_s);
  ::close(descriptor);
  EXPECT_EQ(reader.read().open_descriptors, before.open_descriptors);
}

TEST(ProcessReader, ReadsTheSameWhenNoMoreDescriptorsMayBeOpened) {
  ProcessReader reader;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{.rlim_cur = 128, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<int> opened;
  for (int next = 0; next >= 0;) {
    next = ::open("/dev/null", O_RDONLY);
    if (next >= 0) opened.push_back(next);
  }
  EXPECT_EQ(errno, EMFILE);
  const ProcessStats stats = reader.read();
  const int64_t listed = reader.list_descriptors();
  for (const int descriptor : opened) ::close(descriptor);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GE(stats.open_descriptors, 128);
  EXPECT_EQ(stats.open_descriptors, listed);
  EXPECT_EQ(stats.max_descriptors, 128);
  EXPECT_GT(stats.resident_bytes, 0);
  EXPECT_EQ(reader.read().open_descriptors, stats.open_descriptors - std::ssize(opened));
}

TEST(AnswerCounts, AddUp) {
  AnswerCounts counts;
  counts.count(3, 200);
  counts.count(3, 200);
  counts.count(-1, 404);
  EXPECT_EQ(counts.counts(), (std::map<AnswerCounts::Key, int64_t>{{{3, 200}, 2}, {{-1, 404}, 1}}));
}

}  // namespace
}  // namespace hadal::server
