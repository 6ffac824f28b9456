// Tests the audit log: what its lines contain, and that neither a full disk nor a rename loses more than
// necessary.
#include "server/admission/audit_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "server/admission/api_keys.h"
#include "server/admission/request_tally.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::TestServer;
namespace json = boost::json;

// TemporaryFile is a path in a directory of its own; both are removed with the object.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::string pattern = ::testing::TempDir() + "hadal_audit_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFile() { std::filesystem::remove_all(directory_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path(const std::string& name = "audit.jsonl") const { return directory_ + "/" + name; }

 private:
  std::string directory_;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::shared_ptr<AuditLog> started(const std::string& path) {
  auto log = AuditLog::open(path).value();
  log->start();
  return log;
}

TEST(AuditLog, OnlyItsOwnerReadsANewFile) {
  const TemporaryFile file;
  const auto log = started(file.path());
  log->write("one");
  log->write("two");
  log->flush();
  EXPECT_EQ(lines_of(file.path()), (std::vector<std::string>{"one", "two"}));
  struct stat info {};
  ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST(AuditLog, AppendsAndWritesEverythingBeforeItEnds) {
  const TemporaryFile file;
  std::ofstream(file.path()) << "old\n";
  {
    const auto log = started(file.path());
    for (int i = 0; i < 10'000; ++i) log->write(std::to_string(i));
  }
  const auto lines = lines_of(file.path());
  ASSERT_EQ(lines.size(), 10'001U);
  EXPECT_EQ(lines.front(), "old");
  EXPECT_EQ(lines.back(), "9999");
}

TEST(AuditLog, AFileThatCannotBeOpenedIsAnErrorThatNamesIt) {
  const auto log = AuditLog::open("/nowhere/audit");
  ASSERT_FALSE(log.ok());
  EXPECT_NE(log.status().message.find("audit log '/nowhere/audit'"), std::string::npos)
      << log.status().message;
  const TemporaryFile file;
  ASSERT_EQ(::mkfifo(file.path().c_str(), 0600), 0);
  EXPECT_FALSE(AuditLog::open(file.path()).ok()) << "a FIFO without a reader must not hang";
}

TEST(AuditLog, ReopeningFollowsARename) {
  const TemporaryFile file;
  const auto log = started(file.path());
  log->write("before");
  std::filesystem::rename(file.path(), file.path("old"));
  log->write("still old");
  log->reopen();
  log->flush();
  log->write("after");
  log->flush();
  EXPECT_EQ(lines_of(file.path("old")), (std::vector<std::string>{"before", "still old"}));
  EXPECT_EQ(lines_of(file.path()), (std::vector<std::string>{"after"}));
}

TEST(AuditLog, KeepsTheOldFileWhereTheNewOneCannotBeOpened) {
  const TemporaryFile file;
  const auto log = started(file.path());
  std::filesystem::rename(file.path(), file.path("old"));
  std::filesystem::create_directory(file.path());
  log->reopen();
  log->write("one");
  log->flush();
  EXPECT_EQ(lines_of(file.path("old")), std::vector<std::string>{"one"});
}

TEST(AuditLog, AFullDiskIsReportedOnceAndLosesOnlyLines) {
  const TemporaryFile file;
  std::filesystem::create_symlink("/dev/full", file.path());
  const auto log = started(file.path());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 50; ++i) {
    log->write("lost");
    log->flush();
  }
  EXPECT_EQ(log->num_lost(), 50);
  std::filesystem::remove(file.path());
  log->reopen();
  log->write("kept");
  log->flush();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_of(file.path()), std::vector<std::string>{"kept"});
  const size_t once = said.find("audit log loses lines");
  EXPECT_NE(once, std::string::npos) << said;
  EXPECT_EQ(said.find("audit log loses lines", once + 1), std::string::npos) << said;
  EXPECT_NE(said.find("lost_lines=50"), std::string::npos) << said;
}

TEST(AuditLog, LinesThatWaitForTheDiskAreBounded) {
  const TemporaryFile file;
  const auto log = AuditLog::open(file.path()).value();  // nothing is written yet
  ::testing::internal::CaptureStderr();
  const std::string line(1 << 20, 'x');
  for (int i = 0; i < 20; ++i) log->write(line);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log->num_lost(), 20 - 7) << "8 MiB, line breaks included, hold 7 lines";
  log->start();
  log->flush();
  EXPECT_EQ(lines_of(file.path()).size(), 7U);
}

TEST(AuditEntry, IsALineOfJson) {
  const json::value value = json::parse(
      to_json({.when = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'700'000'000'007)),
               .key = "alice",
               .peer = "[::1]:7",
               .method = "POST",
               .endpoint = "/generate",
               .id = "a\"b",
               .status = 200,
               .prompt_tokens = 5,
               .cached_tokens = 3,
               .completion_tokens = 7,
               .num_finished = {0, 2, 1, 1, 0},
               .seconds = 1.5}));
  EXPECT_EQ(value,
            json::parse(R"({"time":"2023-11-14T22:13:20.007Z","key":"alice","peer":"[::1]:7","method":"POST",
    "endpoint":"/generate","request_id":"a\"b","status":200,"prompt_tokens":5,"cached_tokens":3,
    "completion_tokens":7,"finish_reasons":{"stop":3,"length":1},"seconds":1.5})"));
  EXPECT_TRUE(
      json::parse(to_json({.when = {}, .key = {}, .peer = {}, .method = {}, .endpoint = {}, .id = {}}))
          .at("key")
          .is_null());
}

// ---- requests
// ----------------------------------------------------------------------------------------------

class Audited : public ::testing::Test {
 protected:
  Audited() : log_(started(file_.path())), server_(options()) {}

  testing::TestServerOptions options() {
    testing::TestServerOptions options;
    options.server.keys = std::make_shared<KeyRing>(std::vector<ApiKey>{{"alice", "a"}}, "");
    options.server.audit = log_;
    options.chat_format = ChatFormat::kV31;
    return options;
  }
  HttpResponse call(const std::string& path, const std::string& body, const std::string& key = "a") {
    return server_.call("POST", path, body, {{"authorization", "Bearer " + key}});
  }
  std::vector<json::object> entries() {
    log_->flush();
    std::vector<json::object> out;
    for (const std::string& line : lines_of(file_.path())) out.push_back(json::parse(line).as_object());
    return out;
  }
  static int64_t number(const json::object& entry, const char* name) {
    return entry.at(name).to_number<int64_t>();
  }

  TemporaryFile file_;
  std::shared_ptr<AuditLog> log_;
  TestServer server_;
};

TEST_F(Audited, ALineSaysWhoAskedForHowMuchAndNeverWhat) {
  const std::string secret = "an unusual secret of somebody";
  EXPECT_EQ(call("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + secret +
                                             R"("}],"max_tokens":3,"user":"somebody"})")
                .status,
            200);
  ASSERT_EQ(entries().size(), 1U);
  const json::object entry = entries()[0];
  EXPECT_EQ(entry.at("key").as_string(), "alice");
  EXPECT_EQ(entry.at("endpoint").as_string(), "/v1/chat/completions");
  EXPECT_EQ(number(entry, "status"), 200);
  EXPECT_GT(number(entry, "prompt_tokens"), 5);
  EXPECT_EQ(number(entry, "completion_tokens"), 3);
  EXPECT_EQ(entry.at("finish_reasons"), json::parse(R"({"length":1})"));
  const std::string line = lines_of(file_.path())[0];
  for (const char* word : {"unusual", "secret", "somebody", "one"})
    EXPECT_EQ(line.find(word), std::string::npos) << line;
}

TEST_F(Audited, APromptCountsOnceHoweverManyAnswersItHas) {
  const std::string body =
      R"({"input_ids":[[3,4,5],[6,7]],"sampling_params":{"n":3,"max_new_tokens":4,"ignore_eos":true}})";
  call("/generate", body);
  call("/v1/completions", R"({"prompt":[3,4,5,6],"n":2,"max_tokens":5,"ignore_eos":true})");
  ASSERT_EQ(entries().size(), 2U);
  EXPECT_EQ(number(entries()[0], "prompt_tokens"), 5);
  EXPECT_EQ(number(entries()[0], "completion_tokens"), 6 * 4);
  EXPECT_EQ(entries()[0].at("finish_reasons"), json::parse(R"({"length":6})"));
  EXPECT_EQ(number(entries()[1], "prompt_tokens"), 4);
  EXPECT_EQ(number(entries()[1], "completion_tokens"), 2 * 5);
}

TEST_F(Audited, WhatIsRefusedHasALineToo) {
  EXPECT_EQ(call("/generate", "{}").status, 400);
  EXPECT_EQ(call("/no\n\xff where", "").status, 404);
  server_.call("GET", "/health");
  const auto lines = entries();
  ASSERT_EQ(lines.size(), 2U) << "health checks have none";
  EXPECT_EQ(number(lines[0], "status"), 400);
  EXPECT_EQ(lines[0].at("key").as_string(), "alice");
  EXPECT_EQ(number(lines[1], "status"), 404);
  EXPECT_EQ(lines[1].at("key").as_string(), "alice");
  EXPECT_EQ(lines[1].at("endpoint").as_string(), "/no\\x0a\\xff\\x20where");
}

TEST(AuditLog, NamesTheAdminKeyWhateverItIsUsedFor) {
  const TemporaryFile file;
  const auto log = started(file.path());
  testing::TestServerOptions options;
  options.server.audit = log;
  options.server.keys = std::make_shared<KeyRing>(std::vector<ApiKey>{{"alice", "a"}, {"", "b"}}, "root");
  TestServer server(options);
  const auto call = [&](const char* path, const char* body, const std::string& key) {
    server.call("POST", path, body, {{"authorization", "Bearer " + key}});
  };
  const char* const generation = R"({"input_ids":[3],"sampling_params":{"max_new_tokens":1}})";
  call("/flush_cache", "", "root");
  call("/generate", generation, "root");
  call("/nowhere", "", "root");
  call("/generate", generation, "a");
  call("/generate", generation, "b");
  log->flush();
  std::vector<json::value> keys;
  for (const std::string& line : lines_of(file.path())) keys.push_back(json::parse(line).at("key"));
  EXPECT_EQ(keys, (std::vector<json::value>{"admin", "admin", "admin", "alice", nullptr}));
}

TEST_F(Audited, WithoutAKnownKeyWhatIsRefusedHasNoLine) {
  EXPECT_EQ(call("/generate", "{}", "wrong").status, 401);
  EXPECT_EQ(call("/nowhere", "", "wrong").status, 404);
  EXPECT_EQ(server_.call("POST", "/generate", "{}").status, 401);
  EXPECT_EQ(server_.call("POST", "/flush_cache").status, 401);
  EXPECT_EQ(server_.call("PUT", "/v1/models").status, 405);
  EXPECT_TRUE(entries().empty());
}

TEST(AuditLog, AServerWithoutKeysWritesNoLineForRefusedRequests) {
  const TemporaryFile file;
  const auto log = started(file.path());
  testing::TestServerOptions options;
  options.server.audit = log;
  options.server.rate_limits = {.requests_per_second = 0.001};
  TestServer server(options);
  const std::string body = R"({"input_ids":[3],"sampling_params":{"max_new_tokens":1}})";
  EXPECT_EQ(server.generate(body).status, 200);
  EXPECT_EQ(server.generate(body).status, 429);
  EXPECT_EQ(server.call("POST", "/nowhere").status, 404);
  log->flush();
  ASSERT_EQ(lines_of(file.path()).size(), 1U);
  EXPECT_NE(lines_of(file.path())[0].find("\"status\":200"), std::string::npos);
}

TEST_F(Audited, AClientThatLeavesIsChargedWhatWasMadeForIt) {
  server_.gate().allow(20);
  const auto gone =
      server_.send("POST", "/generate",
                   R"({"input_ids":[3,4],"sampling_params":{"max_new_tokens":4000,"ignore_eos":true}})",
                   {{"authorization", "Bearer a"}});
  ASSERT_TRUE(server_.io().run_until([&] { return server_.engine().stats().generation_tokens >= 15; }));
  gone->disconnect();
  EXPECT_TRUE(entries().empty()) << "its line waits until the engine has stopped";
  server_.gate().open();
  ASSERT_TRUE(server_.io().run_until([&] { return !entries().empty(); }));
  const json::object entry = entries()[0];
  EXPECT_EQ(number(entry, "status"), 499);
  EXPECT_EQ(number(entry, "prompt_tokens"), 2);
  EXPECT_GE(number(entry, "completion_tokens"), 15);
  EXPECT_EQ(entry.at("finish_reasons"), json::parse(R"({"abort":1})"));
}

}  // namespace
}  // namespace hadal::server
