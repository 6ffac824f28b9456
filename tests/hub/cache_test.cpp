// Tests the hub's cache: where it is, which snapshot a revision names, and what is written there.
#include <gmock/gmock.h>

#include "base/mapped_file.h"
#include "hub/cached_repository.h"
#include "hub/environment.h"
#include "hub/fetch.h"
#include "tests/model/checkpoint_files.h"

namespace hadal::hub {
namespace {

namespace fs = std::filesystem;
using ::hadal::testing::TempDir;
using ::hadal::testing::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kCachedCommit(40, 'a');

HubEnvironment offline(const fs::path& cache) {
  return {.hf_hub_cache = cache.string(), .offline = true};
}

TEST(HubEnvironment, TheCacheIsFoundAsTheHubLibraryFindsIt) {
  EXPECT_EQ(hub_cache_dir({.hf_hub_cache = "/c", .hf_home = "/h", .home = "/u"}), "/c");
  EXPECT_EQ(hub_cache_dir({.hf_home = "/h", .xdg_cache_home = "/x", .home = "/u"}), "/h/hub");
  EXPECT_EQ(hub_cache_dir({.xdg_cache_home = "/x", .home = "/u"}), "/x/huggingface/hub");
  EXPECT_EQ(hub_cache_dir({.home = "/u"}), "/u/.cache/huggingface/hub");
  EXPECT_EQ(hub_cache_dir({}), "");
}

TEST(HubEnvironment, TheEndpointIsAnAddressWithoutQuery) {
  EXPECT_EQ(*hub_endpoint({}), "https://huggingface.co");
  EXPECT_EQ(*hub_endpoint({.hf_endpoint = "http://127.0.0.1:80/mirror//"}), "http://127.0.0.1:80/mirror");
  for (const char* text : {"huggingface.co", "ftp://host", "https://", "https:///path", "https://user@host",
                           "https://host?x", "https://host#x", "https://ho st", "https://host\\x"}) {
    const auto endpoint = hub_endpoint({.hf_endpoint = text});
    ASSERT_FALSE(endpoint.ok()) << text;
    EXPECT_THAT(endpoint.status().message, HasSubstr("HF_ENDPOINT is"));
  }
}

TEST(HubEnvironment, TheTokenComesFromTheVariableOrElseFromTheFile) {
  const TempDir home;
  EXPECT_EQ(*hub_token({.hf_home = home.path().string()}), "");
  write_file(home.path() / "token", " hf_file\n");
  EXPECT_EQ(*hub_token({.hf_home = home.path().string()}), "hf_file");
  EXPECT_EQ(*hub_token({.hf_home = home.path().string(), .hf_token = "hf_variable "}), "hf_variable");
  write_file(home.path() / "other", "hf_other");
  EXPECT_EQ(*hub_token({.hf_home = home.path().string(), .hf_token_path = (home.path() / "other").string()}),
            "hf_other");
}

TEST(HubEnvironment, ATokenCannotAddAHeader) {
  const auto token = hub_token({.hf_token = "hf_secret\r\nX: 1"});
  ASSERT_FALSE(token.ok());
  EXPECT_THAT(token.status().message, AllOf(HasSubstr("HF_TOKEN"), ::testing::Not(HasSubstr("hf_secret"))));
}

TEST(HubEnvironment, OfflineIsOnForTheWordsOfTheHubLibrary) {
  for (const char* word : {"1", "ON", "yes", "True"}) EXPECT_TRUE(is_on(word)) << word;
  for (const char* word : {"", "0", "off", "no", "false", "2"}) EXPECT_FALSE(is_on(word)) << word;
}

TEST(ModelId, HasOneSlashAndNoPathSyntax) {
  const auto id = parse_model_id("deepseek-ai/DeepSeek-V2.5");
  ASSERT_TRUE(id);
  EXPECT_EQ(id->repository, "deepseek-ai/DeepSeek-V2.5");
  EXPECT_EQ(id->revision, "main");
  EXPECT_EQ(parse_model_id("a/b@refs/pr/1")->revision, "refs/pr/1");
  for (const char* text : {"",           "model",  "/a/b",   "a/b/c",  "../b",    "a/..",    "./b",
                           "a/",         "/b",     "~/b",    "a b/c",  "a/.b",    "a/b@",    "a/b@..",
                           "a/b@x/../y", "a/b@/x", "a/b@x/", "a/b@-x", "a/b@x@y", "a/b@x y", "@main"}) {
    EXPECT_FALSE(parse_model_id(text)) << text;
  }
}

TEST(CachedRepository, ARevisionNamesTheSnapshotThatItsFileSays) {
  const TempDir cache;
  const CachedRepository repository(cache.path(), "org/name");
  const fs::path folder = cache.path() / "models--org--name";
  write_file(folder / "snapshots" / kCachedCommit / "config.json", "{}");
  write_file(folder / "snapshots" / "bbb" / "config.json", "{}");
  write_file(folder / "refs" / "main", kCachedCommit + "\n");
  write_file(folder / "refs" / "refs" / "pr" / "1", "bbb");
  EXPECT_EQ(repository.find_snapshot("main"), folder / "snapshots" / kCachedCommit);
  EXPECT_EQ(repository.find_snapshot("refs/pr/1"), folder / "snapshots" / "bbb");
  EXPECT_EQ(repository.find_snapshot(kCachedCommit), folder / "snapshots" / kCachedCommit);
  EXPECT_EQ(repository.find_snapshot("v1"), "");
  EXPECT_EQ(repository.find_snapshot(std::string(40, 'c')), "");
  write_file(folder / "refs" / "v1", "../../..");  // must not leave the cache
  EXPECT_EQ(repository.find_snapshot("v1"), "");
}

TEST(CachedRepository, ASnapshotWithoutARefIsNotMain) {
  const TempDir cache;
  const fs::path folder = cache.path() / "models--org--name";
  write_file(folder / "snapshots" / kCachedCommit / "config.json", "{}");
  const CachedRepository repository(cache.path(), "org/name");
  EXPECT_EQ(repository.find_snapshot("main"), "") << "it may be half fetched, or another revision";
  ASSERT_TRUE(repository.set_revision("v1", kCachedCommit).ok());
  EXPECT_EQ(repository.find_snapshot("v1"), repository.snapshot(kCachedCommit));
  EXPECT_EQ(repository.find_snapshot("main"), "");
}

TEST(CachedRepository, ALinkReplacesWhatWasThere) {
  const TempDir cache;
  const CachedRepository repository(cache.path(), "org/name");
  const RemoteFile file{.name = "config.json", .size = 2, .checksum = std::string(40, 'd')};
  ASSERT_TRUE(repository.create().ok());
  write_file(repository.blob(file.checksum), "{}");
  write_file(repository.snapshot(kCachedCommit) / "config.json", "an older copy");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(repository.link(kCachedCommit, file).ok());
    EXPECT_EQ(*read_text_file(repository.snapshot(kCachedCommit) / "config.json"), "{}");
  }
  EXPECT_EQ(fs::read_symlink(repository.snapshot(kCachedCommit) / "config.json"),
            "../../blobs/" + file.checksum);
  ASSERT_TRUE(repository.set_revision("main", kCachedCommit).ok());
  EXPECT_EQ(*read_text_file(cache.path() / "models--org--name" / "refs" / "main"), kCachedCommit);
}

TEST(CachedRepository, OnlyWhatIsAbsentCountsAsMissing) {
  const TempDir cache;
  const CachedRepository repository(cache.path(), "org/name");
  const RemoteFile file{.name = "f", .size = 10, .checksum = std::string(64, 'e')};
  EXPECT_EQ(repository.missing_bytes(file), 10);
  write_file(repository.incomplete_blob(file.checksum), "1234");
  EXPECT_EQ(repository.missing_bytes(file), 6);
  write_file(repository.incomplete_blob(file.checksum), "longer than it");
  EXPECT_EQ(repository.missing_bytes(file), 10);
  write_file(repository.blob(file.checksum), "too short");
  EXPECT_EQ(repository.missing_bytes(file), 10);
  write_file(repository.blob(file.checksum), "0123456789");
  EXPECT_EQ(repository.missing_bytes(file), 0);
}

TEST(MissingFiles, FollowFromWhatTheCommandReads) {
  const TempDir dir;
  EXPECT_THAT(missing_files(dir.path(), FetchScope::kTokenizer), ElementsAre("tokenizer.json"));
  EXPECT_THAT(missing_files(dir.path(), FetchScope::kConfig), ElementsAre("config.json"));
  EXPECT_THAT(missing_files(dir.path(), FetchScope::kWeights),
              ElementsAre("config.json", "model.safetensors"));
  write_file(dir.path() / "config.json", "{}");
  write_file(dir.path() / "model.safetensors.index.json",
             R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
  write_file(dir.path() / "2.safetensors", "");
  EXPECT_THAT(missing_files(dir.path(), FetchScope::kConfig), IsEmpty());
  EXPECT_THAT(missing_files(dir.path(), FetchScope::kWeights), ElementsAre("1.safetensors"));
}

TEST(LocateModel, ADirectoryIsReturnedUnchanged) {
  const TempDir dir;
  EXPECT_EQ(*locate_model(dir.path().string(), FetchScope::kWeights, {}, {}), dir.path());
}

TEST(LocateModel, ASnapshotThatIsWholeIsUsedWithoutAskingTheHub) {
  const TempDir cache;
  const fs::path snapshot = cache.path() / "models--org--name" / "snapshots" / kCachedCommit;
  write_file(snapshot / "config.json", "{}");
  write_file(snapshot / "model.safetensors", "");
  write_file(cache.path() / "models--org--name" / "refs" / "main", kCachedCommit);
  // No server listens on port 1, so a request to the hub would be an error.
  const HubEnvironment environment{.hf_hub_cache = cache.path().string(),
                                   .hf_endpoint = "http://127.0.0.1:1"};
  EXPECT_EQ(*locate_model("org/name", FetchScope::kWeights, environment, {}), snapshot);
  EXPECT_EQ(*locate_model("org/name@" + kCachedCommit, FetchScope::kWeights, environment, {}), snapshot);
}

TEST(LocateModel, OfflineTheErrorSaysWhatIsMissingAndHowToFetchIt) {
  const TempDir cache;
  const auto message = [&](const std::string& path, const HubEnvironment& where) {
    const auto dir = locate_model(path, FetchScope::kWeights, where, {});
    EXPECT_EQ(dir.status().code, StatusCode::kNotFound);
    return dir.status().message;
  };
  EXPECT_THAT(message("org/name", offline(cache.path())),
              AllOf(HasSubstr(cache.path().string()), HasSubstr("hadal fetch org/name"),
                    HasSubstr("HF_HUB_OFFLINE")));
  EXPECT_THAT(message("org/name", {}), HasSubstr("HF_HUB_CACHE, HF_HOME and HOME are unset"));
  EXPECT_THAT(message("/no/such/dir", offline(cache.path())),
              HasSubstr("is neither a directory nor a hub id"));
  const fs::path half = cache.path() / "models--org--half";
  write_file(half / "snapshots" / "a" / "tokenizer.json", "{}");
  write_file(half / "refs" / "main", "a");
  EXPECT_THAT(message("org/half", offline(cache.path())), HasSubstr("lacks config.json, model.safetensors"));
  write_file(cache.path() / "file", "");
  EXPECT_THAT(message((cache.path() / "file").string(), {}), HasSubstr("not a directory"));
}

}  // namespace
}  // namespace hadal::hub
