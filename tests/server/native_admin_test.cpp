// Tests the endpoints other than generation: health, information, abort, pause, profile, metrics, models and
// keys.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <boost/json.hpp>

#include "server/admission/api_keys.h"
#include "server/admission/memory_costs.h"
#include "server/admission/request_memory.h"
#include "server/metrics.h"
#include "server/server_status.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

constexpr const char* kLong = R"({"input_ids":[3],"rid":"job-1","sampling_params":{"max_new_tokens":3000}})";

TEST(Health, FollowsThePhase) {
  TestServer server;
  EXPECT_EQ(server.call("GET", "/health").status, 200);
  EXPECT_EQ(server.call("GET", "/ping").status, 200);
  for (const ServerPhase phase : {ServerPhase::kStarting, ServerPhase::kDraining, ServerPhase::kStalled}) {
    server.server().status().set(phase);
    const HttpResponse response = server.call("GET", "/health");
    EXPECT_EQ(response.status, 503);
    EXPECT_NE(response.body.find(to_string(phase)), std::string::npos);
    EXPECT_EQ(server.call("GET", "/health_generate").status, 503);
  }
}

TEST(Health, HealthGenerateGeneratesAToken) {
  TestServer server;
  EXPECT_EQ(server.call("GET", "/health_generate").status, 200);
  EXPECT_EQ(server.engine().stats().generation_tokens, 1);
}

TEST(Health, HealthGenerateIsCountedWhileItRunsOnly) {
  const auto memory = std::make_shared<RequestMemory>(size_t{1} << 30);
  TestServer server({.server = {.memory = memory}});
  server.gate().allow(0);
  const auto probe = server.send("GET", "/health_generate");
  EXPECT_GE(memory->bytes(MemoryKind::kChoice), kChoiceBytes);
  server.gate().open();
  ASSERT_TRUE(server.wait(*probe));
  EXPECT_EQ(probe->response.status, 200);
  EXPECT_EQ(memory->total(), 0U) << "its timer has not fired yet";
}

// A full queue does not make a server unhealthy as long as steps advance.
TEST(Health, HealthGenerateAcceptsAdvancingStepsWhenTheQueueIsFull) {
  TestServer server({.engine = {.max_running_requests = 1, .max_queued_requests = 1}});
  server.gate().allow(2);
  const auto running = server.send("POST", "/generate", kLong);
  ASSERT_TRUE(server.io().run_until([&] { return server.engine().stats().scheduler.num_running == 1; }));
  const auto queued = server.send("POST", "/generate", R"({"input_ids":[4]})");
  const auto health = server.send("GET", "/health_generate");
  EXPECT_FALSE(health->complete);
  server.gate().allow(10);
  ASSERT_TRUE(server.wait(*health));
  EXPECT_EQ(health->response.status, 200) << health->response.body;
  running->disconnect();
  queued->disconnect();
}

TEST(Info, ContainsTheFieldsThatBenchToolsRead) {
  TestServer server;
  for (const char* path : {"/model_info", "/get_model_info"}) {
    const json::value info = parsed(server.call("GET", path));
    EXPECT_EQ(info.at("model_path").as_string(), "models/hadal-tiny");
    EXPECT_EQ(info.at("tokenizer_path").as_string(), "models/hadal-tiny");
    EXPECT_TRUE(info.at("is_generation").as_bool());
    EXPECT_EQ(info.at("vocab_size").to_number<int64_t>(), testing::kVocab);
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const json::value info = parsed(server.call("GET", path));
    EXPECT_EQ(info.at("dp_size").to_number<int>(), 1);
    EXPECT_EQ(info.at("port").to_number<int>(), 30000);  // from the command line
    EXPECT_EQ(info.at("max_total_num_tokens").to_number<int64_t>(), server.engine().max_total_tokens());
    const json::value& state = info.at("internal_states").at(0);
    EXPECT_EQ(state.at("memory_usage").at("token_capacity").to_number<int64_t>(),
              server.engine().max_total_tokens());
    EXPECT_EQ(state.at("effective_max_running_requests_per_dp").to_number<int64_t>(), 64);
    EXPECT_TRUE(state.at("avg_spec_accept_length").is_null());
    EXPECT_TRUE(state.at("last_gen_throughput").is_number());
  }
  const json::value load = parsed(server.call("GET", "/get_load"));
  EXPECT_EQ(load.at(0).at("num_reqs").to_number<int>(), 0);
}

TEST(Models, ListTheServedModel) {
  TestServer server({.server = {.served_model_name = "deepseek-ai/DeepSeek-V3"}});
  const json::value list = parsed(server.call("GET", "/v1/models"));
  EXPECT_EQ(list.at("object").as_string(), "list");
  EXPECT_EQ(list.at("data").at(0).at("id").as_string(), "deepseek-ai/DeepSeek-V3");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len").to_number<int64_t>(), 4096);
  EXPECT_EQ(server.call("GET", "/v1/models/deepseek-ai/DeepSeek-V3").status, 200);
  const HttpResponse missing = server.call("GET", "/v1/models/other");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(parsed(missing).at("error").at("type").as_string(), "invalid_request_error");
}

TEST(Abort, AcceptsTheBeginningOfAnId) {
  TestServer server;
  server.gate().allow(2);  // the engine cannot end before the abort arrives
  const auto first = server.send("POST", "/generate", kLong);
  const auto other = server.send("POST", "/generate",
                                 R"({"input_ids":[3],"rid":"x","sampling_params":{"max_new_tokens":50}})");
  const json::value answer = parsed(server.call("POST", "/abort_request", R"({"rid":"job"})"));
  EXPECT_EQ(answer.at("num_requests").to_number<int>(), 1);
  server.gate().open();
  ASSERT_TRUE(server.wait(*first));
  EXPECT_EQ(parsed(first->response).at("meta_info").at("finish_reason").at("type").as_string(), "abort");
  ASSERT_TRUE(server.wait(*other));
  EXPECT_EQ(parsed(other->response).at("meta_info").at("finish_reason").at("type").as_string(), "length");
}

TEST(Abort, AbortsAllOnlyIfAsked) {
  TestServer server;
  server.gate().allow(2);
  const auto first = server.send("POST", "/generate", kLong);
  EXPECT_EQ(server.call("POST", "/abort_request", "{}").status, 400);
  EXPECT_EQ(server.call("POST", "/abort_request", R"({"rid":""})").status, 400);
  EXPECT_FALSE(first->complete);
  EXPECT_EQ(server.call("POST", "/abort_request", R"({"abort_all":true})").status, 200);
  server.gate().open();
  ASSERT_TRUE(server.wait(*first));
  EXPECT_EQ(server.engine().stats().num_aborted, 1);
}

// Returns the keys of a file with several names, and perhaps the administrator's.
std::shared_ptr<const KeyRing> named_keys(std::string admin_key) {
  return std::make_shared<const KeyRing>(std::vector<ApiKey>{{"alice", "a"}, {"bob", "b"}},
                                         std::move(admin_key));
}

HeaderList bearer(const std::string& key) {
  return {{"authorization", "Bearer " + key}};
}

TEST(Abort, ANamedKeyAbortsItsOwnRequestsOnly) {
  TestServer server({.server = {.keys = named_keys("root")}});
  server.gate().allow(2);  // the engine cannot end before the aborts arrive
  const auto alices = server.send("POST", "/generate", kLong, bearer("a"));
  const auto bobs = server.send("POST", "/generate", kLong, bearer("b"));
  const auto roots = server.send("POST", "/generate", kLong, bearer("root"));
  EXPECT_EQ(server.call("POST", "/generate", kLong, bearer("b")).status, 400) << "bob uses this id already";
  const auto aborted = [&](const std::string& key, const std::string& body) {
    return parsed(server.call("POST", "/abort_request", body, bearer(key)))
        .at("num_requests")
        .to_number<int>();
  };
  EXPECT_EQ(aborted("a", R"({"rid":"jo"})"), 1);
  for (const char* body : {R"({"abort_all":true})", R"({"abort_all":true,"rid":"job"})"}) {
    const HttpResponse all = server.call("POST", "/abort_request", body, bearer("b"));
    EXPECT_EQ(all.status, 403);
    EXPECT_NE(all.body.find("abort_all is true; only the admin key (--admin-api-key)"), std::string::npos);
  }
  server.gate().allow(2);
  ASSERT_TRUE(server.wait(*alices));
  EXPECT_FALSE(bobs->complete);
  EXPECT_EQ(aborted("root", R"({"rid":"job"})"), 2) << "the admin key may abort any request";
  server.gate().open();
  for (const auto& exchange : {alices, bobs, roots}) {
    ASSERT_TRUE(server.wait(*exchange));
    const json::value answer = parsed(exchange->response);
    EXPECT_EQ(answer.at("meta_info").at("finish_reason").at("type").as_string(), "abort");
    EXPECT_EQ(answer.at("meta_info").at("id").as_string(), "job-1") << "the client sees its own id";
  }
}

TEST(Pause, DelaysWorkUntilItIsContinued) {
  TestServer server;
  EXPECT_EQ(server.call("POST", "/pause_generation", R"({"mode":"sideways"})").status, 400);
  EXPECT_EQ(server.call("POST", "/pause_generation", R"({"mode":"in_place"})").status, 200);
  EXPECT_TRUE(server.engine().paused());
  const auto exchange =
      server.send("POST", "/generate", R"({"input_ids":[3],"sampling_params":{"max_new_tokens":2}})");
  EXPECT_EQ(server.call("POST", "/continue_generation").status, 200);
  EXPECT_TRUE(server.wait(*exchange));
  EXPECT_EQ(exchange->response.status, 200);
}

TEST(FlushCache, IsRefusedWhileRequestsExist) {
  TestServer server;
  EXPECT_EQ(server.call("GET", "/flush_cache").status, 405);
  EXPECT_EQ(server.call("POST", "/flush_cache").status, 200);
  server.engine().pause();
  const auto exchange = server.send("POST", "/generate", kLong);
  EXPECT_EQ(server.call("POST", "/flush_cache").status, 400);
  exchange->disconnect();
  server.engine().resume();
}

std::filesystem::path scratch_dir(const char* name) {
  return std::filesystem::temp_directory_path() / fmt::format("hadal-{}-{}", name, ::getpid());
}

TEST(Profile, WritesATraceThatViewersAccept) {
  const auto dir = scratch_dir("profile-test");
  TestServer server({.server = {.profile_dir = dir.string()}});
  EXPECT_EQ(server.call("POST", "/stop_profile").status, 400);
  EXPECT_EQ(server.call("POST", "/start_profile", R"({"output_dir":"a/b"})").status, 200);
  EXPECT_EQ(server.call("POST", "/start_profile").status, 400);
  server.generate(R"({"input_ids":[3],"sampling_params":{"max_new_tokens":5}})");
  const HttpResponse stopped = server.call("POST", "/stop_profile");
  EXPECT_EQ(stopped.status, 200) << stopped.body;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "a/b")) {
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_FALSE(json::parse(text.str()).at("traceEvents").as_array().empty());
    EXPECT_NE(stopped.body.find(entry.path().string()), std::string::npos);
    ++files;
  }
  EXPECT_EQ(files, 1);
  std::filesystem::remove_all(dir);
}

TEST(Profile, StaysInTheOperatorsDirectory) {
  const auto dir = scratch_dir("profile-root");
  std::filesystem::create_directories(dir);
  std::filesystem::create_symlink("/tmp", dir / "link");
  TestServer server({.server = {.profile_dir = dir.string()}});
  for (const char* outside : {"/proc/self", "/tmp/elsewhere", "..", "a/../../b", "a/..", "link/c"}) {
    const HttpResponse refused =
        server.call("POST", "/start_profile", fmt::format(R"({{"output_dir":"{}"}})", outside));
    EXPECT_EQ(refused.status, 400) << outside;
    EXPECT_NE(refused.body.find("profile-dir"), std::string::npos) << refused.body;
  }
  // The same directory, written as an absolute path, is allowed.
  EXPECT_EQ(
      server.call("POST", "/start_profile", fmt::format(R"({{"output_dir":"{}/x"}})", dir.string())).status,
      200);
  EXPECT_EQ(server.call("POST", "/stop_profile").status, 200);
  std::filesystem::remove_all(dir);
}

TEST(Profile, AnUnwritableDirectoryIsRefusedAtOnce) {
  TestServer server({.server = {.profile_dir = "/proc/self"}});
  const HttpResponse refused = server.call("POST", "/start_profile", R"({"num_steps":5})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(server.call("POST", "/stop_profile").status, 400);
}

TEST(Profile, AProfileOfSomeStepsIsWrittenByItself) {
  const auto dir = scratch_dir("profile-steps");
  TestServer server({.server = {.profile_dir = dir.string()}});
  EXPECT_EQ(server.call("POST", "/start_profile", R"({"num_steps":3})").status, 200);
  server.generate(R"({"input_ids":[3],"sampling_params":{"max_new_tokens":20}})");
  EXPECT_TRUE(server.io().run_until([&] { return !std::filesystem::is_empty(dir); }));
  std::filesystem::remove_all(dir);
}

TEST(Admin, RefusesRequestsFromPagesOfOtherSites) {
  TestServer server;
  const auto status = [&](const char* path, const char* origin) {
    return server.call("POST", path, "", {{"host", "localhost:30000"}, {"origin", origin}}).status;
  };
  EXPECT_EQ(status("/flush_cache", "http://evil.example"), 403);
  EXPECT_EQ(status("/flush_cache", "http://localhost:8080"), 403);
  EXPECT_EQ(status("/flush_cache", "null"), 403);
  EXPECT_EQ(status("/flush_cache", "http://LOCALHOST:30000"), 200);
  EXPECT_EQ(status("/health", "http://evil.example"), 200);
}

double metric(const HttpResponse& page, const std::string& name) {
  std::istringstream lines(page.body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("sglang:" + name + "{")) return std::stod(line.substr(line.rfind(' ') + 1));
  }
  ADD_FAILURE() << name << " is missing";
  return -1;
}

TEST(Metrics, HaveSglangsNamesAndCorrectCounts) {
  TestServer off;
  const HttpResponse none = off.call("GET", "/metrics");
  EXPECT_EQ(none.status, 404);
  EXPECT_NE(none.body.find("--enable-metrics"), std::string::npos);
  TestServer server({.server = {.enable_metrics = true}});
  server.generate_step_by_step(
      R"({"input_ids":[3,4,5],"stream":true,"sampling_params":{"max_new_tokens":7}})");
  const HttpResponse response = server.call("GET", "/metrics");
  EXPECT_TRUE(response.content_type.starts_with("text/plain; version=0.0.4"));
  const auto value_of = [&](const std::string& name) { return metric(response, name); };
  for (const char* name :
       {"num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput",
        "cache_hit_rate", "spec_accept_length", "spec_accept_rate", "num_retracted_reqs", "utilization",
        "is_cuda_graph", "num_aborted_requests_total", "evicted_tokens_total", "cached_tokens_total"}) {
    EXPECT_GE(value_of(name), 0) << name;
  }
  EXPECT_EQ(value_of("prompt_tokens_total"), 3);
  EXPECT_EQ(value_of("generation_tokens_total"), 7);
  EXPECT_EQ(value_of("num_requests_total"), 1);
  EXPECT_EQ(value_of("page_size"), 64);
  EXPECT_EQ(value_of("startup_time_seconds"), 1.5);
  EXPECT_EQ(value_of("time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(value_of("inter_token_latency_seconds_count"), 6);
  EXPECT_EQ(value_of("e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(value_of("queue_time_seconds_count"), 1);
  EXPECT_NE(response.body.find("model_name=\"hadal-tiny\""), std::string::npos);
}

// The engine's own test is LifecycleTest.StatsSayWhetherTheLastDecodeStepWasAGraph.
TEST(Metrics, SayWhetherTheLastDecodeStepWasAGraph) {
  const Metrics metrics({.enabled = true, .model_name = "m"});
  EngineStats stats;
  HttpResponse page;
  page.body = metrics.text(stats);
  EXPECT_EQ(metric(page, "is_cuda_graph"), 0);
  stats.decode_graphed = true;
  page.body = metrics.text(stats);
  EXPECT_EQ(metric(page, "is_cuda_graph"), 1);
}

// If an answer comes in one piece, the times of its first and later tokens are those at which the engine made
// them, not that of the piece.
TEST(Metrics, SeparateTheTokenTimesOfAnAnswerSentInOnePiece) {
  TestServer server({.server = {.enable_metrics = true}});
  server.generate(R"({"input_ids":[3,4,5],"sampling_params":{"max_new_tokens":50}})");
  HttpResponse page = server.call("GET", "/metrics");
  EXPECT_EQ(metric(page, "time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(metric(page, "inter_token_latency_seconds_count"), 49);
  const double first = metric(page, "time_to_first_token_seconds_sum");
  const double later = metric(page, "inter_token_latency_seconds_sum");
  EXPECT_GT(first, 0);
  EXPECT_GT(later, 0);
  EXPECT_LE(first + later, metric(page, "e2e_request_latency_seconds_sum") * 1.000001);  // printed rounded
  server.generate(R"({"input_ids":[3,4,5],"sampling_params":{"max_new_tokens":1}})");
  page = server.call("GET", "/metrics");
  EXPECT_EQ(metric(page, "time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(metric(page, "inter_token_latency_seconds_count"), 49);
}

TEST(Metrics, TokensOfOneChunkShareTheTimeSinceTheLast) {
  Metrics metrics({.enabled = true, .model_name = "m"});
  metrics.observe_tokens(2.0, 4);
  HttpResponse page;
  page.body = metrics.text(EngineStats{});
  EXPECT_EQ(metric(page, "inter_token_latency_seconds_count"), 4);
  EXPECT_EQ(metric(page, "inter_token_latency_seconds_sum"), 2.0);
}

TEST(Keys, AreRequiredWhereTheyShouldBe) {
  TestServer server({.server = {.keys = testing::keys_of("user", "admin")}});
  const HeaderList none;
  const HeaderList user = {{"authorization", "Bearer user"}};
  const HeaderList admin = {{"authorization", "bearer admin"}};
  const HeaderList wrong = {{"authorization", "Bearer usar"}};
  const auto status = [&](const char* method, const char* path, const HeaderList& headers) {
    return server.call(method, path, R"({"rid":"nobody"})", headers).status;
  };
  EXPECT_EQ(status("GET", "/health", none), 200);
  EXPECT_EQ(status("GET", "/model_info", none), 401);
  EXPECT_EQ(status("GET", "/model_info", wrong), 401);
  EXPECT_EQ(status("GET", "/model_info", user), 200);
  EXPECT_EQ(status("GET", "/model_info", admin), 200);
  EXPECT_EQ(status("POST", "/abort_request", user), 401);
  const auto says = [&](const char* path, const HeaderList& headers) {
    const json::value answer = parsed(server.call("POST", path, R"({"rid":"nobody"})", headers));
    EXPECT_EQ(answer.at("error").at("message"), answer.at("message"));  // SGLang's clients read either
    return std::string(answer.at("message").as_string());
  };
  EXPECT_TRUE(says("/abort_request", user).starts_with("this path needs the admin key"));
  EXPECT_TRUE(says("/generate", none).starts_with("a key is needed"));
  EXPECT_TRUE(says("/generate", wrong).starts_with("the key is wrong"));
  EXPECT_EQ(status("POST", "/abort_request", admin), 200);
  TestServer one_key({.server = {.keys = testing::keys_of("user")}});
  EXPECT_EQ(one_key.call("POST", "/abort_request", R"({"rid":"nobody"})", user).status, 200);
  EXPECT_EQ(one_key.call("POST", "/abort_request", R"({"rid":"nobody"})").status, 401);
}

TEST(Keys, OfAFileWithoutAnAdminKeyDoNotAdminister) {
  TestServer server({.server = {.keys = named_keys(""), .allow_get_admin = true}});
  for (const auto& [method, path] :
       std::vector<std::pair<std::string, std::string>>{{"POST", "/flush_cache"},
                                                        {"GET", "/flush_cache"},
                                                        {"POST", "/pause_generation"},
                                                        {"POST", "/continue_generation"},
                                                        {"POST", "/start_profile"},
                                                        {"POST", "/stop_profile"}}) {
    const HttpResponse answer = server.call(method, path, "{}", bearer("a"));
    EXPECT_EQ(answer.status, 403) << path;
    const auto message = std::string(parsed(answer).at("message").as_string());
    EXPECT_TRUE(message.starts_with(path + " needs the admin key")) << message;
    EXPECT_NE(message.find("--admin-api-key"), std::string::npos) << message;
    EXPECT_EQ(server.call(method, path, "{}").status, 401) << "a stranger needs a key first";
  }
  EXPECT_EQ(server.call("POST", "/abort_request", R"({"abort_all":true})", bearer("a")).status, 403);
  EXPECT_EQ(server.call("POST", "/abort_request", R"({"rid":"own"})", bearer("a")).status, 200);
  EXPECT_EQ(server.call("GET", "/model_info", "", bearer("a")).status, 200);
  TestServer with_admin({.server = {.keys = named_keys("root")}});
  EXPECT_EQ(with_admin.call("POST", "/flush_cache", "", bearer("a")).status, 401);
  EXPECT_EQ(with_admin.call("POST", "/flush_cache", "", bearer("root")).status, 200);
}

TEST(Routes, UnknownPathsAndMethodsAreErrors) {
  TestServer server;
  EXPECT_EQ(server.call("GET", "/nowhere").status, 404);
  const HttpResponse method = server.call("GET", "/generate");
  EXPECT_EQ(method.status, 405);
  EXPECT_NE(method.body.find("POST"), std::string::npos);
  EXPECT_TRUE(parsed(server.call("GET", "/v1/nowhere")).as_object().contains("error"));
}

}  // namespace
}  // namespace hadal::server
