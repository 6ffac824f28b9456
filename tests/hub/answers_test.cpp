// Tests what the hub answers: the list of files, which of them are fetched, and which failures are retried.
#include <gmock/gmock.h>

#include <chrono>

#include "hub/http_client.h"
#include "hub/needed_files.h"
#include "hub/repository_info.h"
#include "hub/retry.h"
#include "hub/transfer_rate.h"
#include "model/weight_index.h"

namespace hadal::hub {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kCommit(40, 'a');
const std::string kSha1(40, 'b');
const std::string kSha256(64, 'c');

RepositoryInfo repository(const std::vector<std::string>& names) {
  RepositoryInfo info{.commit = kCommit};
  for (const std::string& name : names) info.files.push_back({.name = name, .size = 1, .checksum = kSha1});
  return info;
}

std::vector<std::string> names_of(const Result<std::vector<RemoteFile>>& files) {
  std::vector<std::string> names;
  if (!files.ok()) return {files.status().message};
  for (const RemoteFile& file : *files) names.push_back(file.name);
  return names;
}

TEST(RepositoryInfo, AFileInLargeStorageHasItsSha256AndAnyOtherGitsSha1) {
  const auto info = parse_repository_info(fmt::format(R"({{"sha": "{}", "siblings": [
        {{"rfilename": "config.json", "size": 12, "blobId": "{}"}},
        {{"rfilename": "model.safetensors", "size": 7, "blobId": "{}",
          "lfs": {{"sha256": "{}", "size": 9000000000, "pointerSize": 135}}}}]}})",
                                                      kCommit, kSha1, kSha1, kSha256),
                                          "source");
  ASSERT_TRUE(info.ok()) << info.status().message;
  EXPECT_EQ(info->commit, kCommit);
  ASSERT_EQ(info->files.size(), 2U);
  EXPECT_EQ(info->files[0].size, 12);
  EXPECT_EQ(info->files[0].checksum, kSha1);
  EXPECT_EQ(info->files[1].size, 9000000000);
  EXPECT_EQ(info->files[1].checksum, kSha256);
}

TEST(RepositoryInfo, ASizeOrChecksumThatIsNoneMakesAFileUncheckable) {
  for (const char* fields :
       {R"("size": -1, "blobId": "B")", R"("size": 1.5, "blobId": "B")",
        R"("size": 18446744073709551615, "blobId": "B")", R"("size": "1", "blobId": "B")",
        R"("size": 1, "blobId": "../../../etc/passwd")", R"("size": 1, "blobId": 7)", R"("size": 1)",
        R"("blobId": "B")", R"("size": 1, "blobId": "B", "lfs": {"sha256": "short", "size": 1})"}) {
    std::string text = fields;
    for (size_t at; (at = text.find("\"B\"")) != text.npos;) text.replace(at, 3, '"' + kSha1 + '"');
    const auto info = parse_repository_info(
        fmt::format(R"({{"sha": "{}", "siblings": [{{"rfilename": "f", {}}}]}})", kCommit, text), "source");
    ASSERT_TRUE(info.ok()) << fields;
    EXPECT_FALSE(info->files[0].is_checkable()) << fields;
  }
}

TEST(RepositoryInfo, AnAnswerOfAnotherFormIsAnErrorThatNamesTheField) {
  const auto message = [](const std::string& text) {
    const auto info = parse_repository_info(text, "source");
    EXPECT_EQ(info.status().code, StatusCode::kDataLoss);
    return info.status().message;
  };
  EXPECT_THAT(message("<html>"), HasSubstr("source: the answer is not a JSON object"));
  EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message(R"({"sha": "../x", "siblings": []})"), HasSubstr("sha is \"../x\""));
  EXPECT_THAT(message(R"({"siblings": []})"), HasSubstr("sha is"));
  EXPECT_THAT(message(R"({"sha": ")" + kCommit + R"("})"), HasSubstr("siblings is missing"));
  EXPECT_THAT(message(R"({"sha": ")" + kCommit + R"(", "siblings": [7]})"), HasSubstr("siblings"));
}

TEST(RepositoryInfo, OfTwoFieldsOfANameTheLastOneCounts) {
  const auto info = parse_repository_info(
      fmt::format(R"({{"siblings": [{{"rfilename": "old"}}], "sha": "x", "sha": "{0}", "siblings": [
        {{"lfs": {{"sha256": "{1}", "size": 3}}, "rfilename": "a", "rfilename": "b", "blobId": "{2}",
          "tags": [{{"rfilename": "c", "sha256": "d"}}]}},
        {{"rfilename": "e", "size": 1, "blobId": "{2}", "lfs": {{"size": 9}}, "lfs": null}}]}})",
                  kCommit, kSha256, kSha1),
      "source");
  ASSERT_TRUE(info.ok()) << info.status().message;
  ASSERT_EQ(info->files.size(), 2U);
  EXPECT_EQ(info->files[0].name, "b");
  EXPECT_EQ(info->files[0].size, 3);
  EXPECT_EQ(info->files[0].checksum, kSha256);
  EXPECT_EQ(info->files[1].name, "e");
  EXPECT_EQ(info->files[1].size, 1);
  EXPECT_EQ(info->files[1].checksum, kSha1);
}

// Work that grew with the square of these numbers would take hours.
TEST(RepositoryInfo, AListOfMillionsOfFilesIsRefusedAndMillionsOfOtherValuesAreSkipped) {
  std::string many = "[{}";
  for (int i = 0; i < 4'000'000; ++i) many += ",{}";
  many += ']';
  const std::string head = R"({"sha": ")" + kCommit + R"(", )";
  const auto refused = parse_repository_info(head + R"("siblings": )" + many + "}", "source");
  EXPECT_EQ(refused.status().code, StatusCode::kDataLoss);
  EXPECT_EQ(refused.status().message, "source: siblings lists too many files; at most 200000 are accepted");
  const auto skipped = parse_repository_info(head + R"("siblings": [], "tags": )" + many + "}", "source");
  ASSERT_TRUE(skipped.ok()) << skipped.status().message;
  EXPECT_TRUE(skipped->files.empty());
  const std::string nested =
      std::string(8'000'000, '[') + std::string(8'000'000, ']');  // a tree of them would take gigabytes
  EXPECT_TRUE(parse_repository_info(head + R"("siblings": [], "x": )" + nested + "}", "source").ok());
}

// This is the longest list that is accepted, and an index names all of it.
TEST(NeededFiles, AreFoundInTheLongestListWithoutReadingItForEachOfThem) {
  constexpr int kFiles = 199'999;
  const std::string prefix(200, 'p');
  std::string list =
      fmt::format(R"({{"sha": "{}", "siblings": [{{"rfilename": "{}"}})", kCommit, kWeightIndexFile);
  std::string index = R"({"weight_map": {)";
  for (int i = 0; i < kFiles; ++i) {
    list += fmt::format(R"(,{{"rfilename": "{}{}"}})", prefix, i);
    index += fmt::format(R"({}"{}": "{}{}")", i == 0 ? "" : ",", i, prefix, i);
  }
  const auto info = parse_repository_info(list + "]}", "source");
  ASSERT_TRUE(info.ok()) << info.status().message;
  const auto files = choose_weight_files(*info, index + "}}");
  ASSERT_TRUE(files.ok()) << files.status().message;
  EXPECT_EQ(files->size(), static_cast<size_t>(kFiles));
}

TEST(NeededFiles, AreTheOnesThatAreReadAndNothingElse) {
  const auto info =
      repository({".gitattributes", "LICENSE", "README.md", "config.json", "model.py", "original/config.json",
                  "tokenizer.json", "tokenizer_config.json", "model.safetensors", "../config.json"});
  EXPECT_THAT(names_of(choose_small_files(info, FetchScope::kWeights)),
              ElementsAre("config.json", "tokenizer.json", "tokenizer_config.json"));
  EXPECT_THAT(names_of(choose_weight_files(info, "")), ElementsAre("model.safetensors"));
}

TEST(NeededFiles, TheIndexNamesTheWeightFiles) {
  const auto info = repository(
      {"config.json", "model.safetensors.index.json", "1.safetensors", "2.safetensors", "3.safetensors"});
  EXPECT_THAT(names_of(choose_small_files(info, FetchScope::kWeights)),
              ElementsAre("config.json", "model.safetensors.index.json"));
  EXPECT_THAT(names_of(choose_small_files(info, FetchScope::kConfig)), ElementsAre("config.json"));
  const auto weights = [&](const char* index) { return names_of(choose_weight_files(info, index)); };
  EXPECT_THAT(
      weights(R"({"weight_map": {"b": "2.safetensors", "a": "1.safetensors", "c": "2.safetensors"}})"),
      ElementsAre("1.safetensors", "2.safetensors"));
  EXPECT_THAT(weights(R"({"weight_map": {"a": "9.safetensors"}})"), ElementsAre(HasSubstr("9.safetensors")));
  EXPECT_THAT(weights(R"({"weight_map": {"a": "../../x"}})"), ElementsAre(HasSubstr("../../x")));
  EXPECT_THAT(weights("{}"), ElementsAre(HasSubstr("weight_map is missing")));
}

TEST(NeededFiles, ARepositoryWithoutThemIsRefusedWithWhatItHas) {
  EXPECT_THAT(names_of(choose_small_files(repository({"tokenizer.json"}), FetchScope::kConfig)),
              ElementsAre("the repository has no config.json"));
  EXPECT_THAT(names_of(choose_small_files(repository({"config.json"}), FetchScope::kTokenizer)),
              ElementsAre("the repository has no tokenizer.json"));
  EXPECT_THAT(names_of(choose_small_files(repository({"config.json", "a.gguf"}), FetchScope::kWeights)),
              ElementsAre(HasSubstr(".gguf")));
}

TEST(HubAddress, NamesCannotChangeTheAddress) {
  EXPECT_EQ(file_url("http://h", "o/n", "c", "a b?#%/é.json"),
            "http://h/o/n/resolve/c/a%20b%3F%23%25%2F%C3%A9.json");
  EXPECT_EQ(info_url("http://h", "o/n", "refs/pr/1"),
            "http://h/api/models/o/n/revision/refs%2Fpr%2F1?blobs=true");
}

TEST(HubAddress, TheOriginIsSchemeHostAndPort) {
  EXPECT_EQ(origin_of("https://Hub.example/a/b?c"), "https://hub.example:443");
  EXPECT_EQ(origin_of("http://hub.example:8080"), "http://hub.example:8080");
  EXPECT_EQ(origin_of("https://hub.example@other.example/"), "https://other.example:443");
  EXPECT_EQ(origin_of("no address"), "");
}

TEST(Retry, PassingStatesOfTheServerAreTriedAgain) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(is_transient_status(status)) << status;
  for (const int status : {200, 301, 400, 401, 403, 404, 416, 501})
    EXPECT_FALSE(is_transient_status(status)) << status;
}

TEST(Retry, TheWaitDoublesUntilItIsGivenUp) {
  const Failure failure{.is_transient = true};
  EXPECT_EQ(retry_delay(failure, 1), 500ms);
  EXPECT_EQ(retry_delay(failure, 2), 1s);
  EXPECT_EQ(retry_delay(failure, 4), 4s);
  EXPECT_EQ(retry_delay(failure, 5), std::nullopt);
  EXPECT_EQ(retry_delay({.is_transient = false}, 1), std::nullopt);
}

TEST(Retry, TheServersWishCountsUnlessItIsTooLong) {
  EXPECT_EQ(retry_delay({.is_transient = true, .retry_after_s = 7}, 1), 7s);
  EXPECT_EQ(retry_delay({.is_transient = true, .retry_after_s = 600}, 1), 600s);
  EXPECT_EQ(retry_delay({.is_transient = true, .retry_after_s = 601}, 1), std::nullopt);
}

TEST(TransferRate, IsTheMeanOfTheLastTenSeconds) {
  TransferRate rate;
  const TransferRate::Time begin{};
  EXPECT_EQ(rate.bytes_per_s(), 0.0);
  rate.note(begin, 1000);  // these were there before
  EXPECT_EQ(rate.bytes_per_s(), 0.0);
  rate.note(begin + 2s, 1200);
  EXPECT_EQ(rate.bytes_per_s(), 100.0);
  for (int second = 3; second <= 40; ++second) rate.note(begin + std::chrono::seconds(second), 1200);
  EXPECT_EQ(rate.bytes_per_s(), 0.0);
}

TEST(TransferRate, IsSaidWithWhatIsThereAndWhatIsWanted) {
  EXPECT_EQ(describe_progress(3'200'000'000, 12'000'000'000, 512e6), "3.2 of 12.0 GB at 512 MB/s");
  EXPECT_EQ(describe_progress(0, 689'000'000'000, 1.26e6), "0.0 of 689.0 GB at 1.3 MB/s");
  EXPECT_EQ(describe_progress(500'000, 2'000'000, 0.0), "0.5 of 2.0 MB");
}

}  // namespace
}  // namespace hadal::hub
