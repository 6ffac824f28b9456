#include "model/hub.h"

#include <gmock/gmock.h>

#include "tests/model/checkpoint_files.h"

namespace hadal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Hub, TheCacheIsFoundAsTheHubLibraryFindsIt) {
  EXPECT_EQ(hub_cache_dir({.hf_hub_cache = "/c", .hf_home = "/h", .home = "/u"}), "/c");
  EXPECT_EQ(hub_cache_dir({.hf_home = "/h", .home = "/u"}), "/h/hub");
  EXPECT_EQ(hub_cache_dir({.home = "/u"}), "/u/.cache/huggingface/hub");
  EXPECT_EQ(hub_cache_dir({}), "");
}

TEST(Hub, IdsHaveOneSlashAndNoPathSyntax) {
  EXPECT_TRUE(is_hub_id("deepseek-ai/DeepSeek-V2.5"));
  for (const char* text :
       {"", "model", "/a/b", "a/b/c", "../b", "a/..", "./b", "a/", "/b", "~/b", "a b/c", "a/.b"}) {
    EXPECT_FALSE(is_hub_id(text)) << text;
  }
}

TEST(Hub, ADirectoryIsReturnedUnchanged) {
  const testing::TempDir dir;
  EXPECT_EQ(*find_model_dir(dir.path().string(), {}), dir.path());
}

TEST(Hub, RefsMainChoosesTheSnapshot) {
  const testing::TempDir cache;
  const auto repository = cache.path() / "models--org--name";
  testing::write_file(repository / "snapshots" / "aaa" / "config.json", "{}");
  testing::write_file(repository / "snapshots" / "bbb" / "config.json", "{}");
  testing::write_file(repository / "refs" / "main", "aaa\n");
  const HubEnvironment environment{.hf_hub_cache = cache.path().string()};
  EXPECT_EQ(*find_model_dir("org/name", environment), repository / "snapshots" / "aaa");
  testing::write_file(repository / "refs" / "main", "bbb");
  EXPECT_EQ(*find_model_dir("org/name", environment), repository / "snapshots" / "bbb");
  testing::write_file(repository / "refs" / "main", "../../..");  // must not leave the cache
  const auto fallback = find_model_dir("org/name", environment);
  ASSERT_TRUE(fallback.ok());
  EXPECT_EQ(fallback->parent_path(), repository / "snapshots");
}

TEST(Hub, WithoutRefsTheNewestSnapshotIsUsed) {
  const testing::TempDir cache;
  const auto snapshots = cache.path() / "models--org--name" / "snapshots";
  testing::write_file(snapshots / "old" / "config.json", "{}");
  testing::write_file(snapshots / "new" / "config.json", "{}");
  std::filesystem::last_write_time(snapshots / "old",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(*find_model_dir("org/name", {.hf_hub_cache = cache.path().string()}), snapshots / "new");
}

TEST(Hub, AnAbsentModelIsAnErrorThatTellsHowToFetchIt) {
  const testing::TempDir cache;
  const HubEnvironment environment{.hf_hub_cache = cache.path().string()};
  const auto message = [&](const std::string& path, const HubEnvironment& where) {
    const auto dir = find_model_dir(path, where);
    EXPECT_EQ(dir.status().code, StatusCode::kNotFound);
    return dir.status().message;
  };
  EXPECT_THAT(message("org/name", environment),
              AllOf(HasSubstr(cache.path().string()), HasSubstr("hf download org/name"),
                    HasSubstr("huggingface-cli download org/name")));
  EXPECT_THAT(message("org/name", {}), HasSubstr("HF_HUB_CACHE, HF_HOME and HOME are unset"));
  EXPECT_THAT(message("/no/such/dir", environment), HasSubstr("no such directory, nor a hub id"));
  testing::write_file(cache.path() / "models--org--half" / "snapshots" / "a" / "tokenizer.json", "{}");
  EXPECT_THAT(message("org/half", environment), HasSubstr("has no config.json"));
  testing::write_file(cache.path() / "file", "");
  EXPECT_THAT(message((cache.path() / "file").string(), environment), HasSubstr("not a directory"));
}

}  // namespace
}  // namespace hadal
