#include "model/random_checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "base/mapped_file.h"
#include "model/checkpoint.h"
#include "model/checkpoint_directory.h"
#include "tests/model/golden_checkpoint.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;

class RandomCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::make_temporary_directory("hadal_random_checkpoint");
    golden_ = testing::load_golden("v3_fp8");
    text_ = read_text_file(golden_.config_path).value();
    options_.weights = RandomWeightOptions::for_config(golden_.config, 7);
  }
  void TearDown() override { fs::remove_all(dir_); }

  Result<RandomCheckpointSummary> write() {
    return write_random_checkpoint(dir_, text_, golden_.config, options_, pool_);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_)) names.push_back(entry.path().filename().string());
    return names;
  }

  fs::path dir_;
  testing::Golden golden_;
  std::string text_;
  RandomCheckpointOptions options_;
  ThreadPool pool_{2};
};

TEST_F(RandomCheckpoint, ShardsContainTheConfigsTensorsWithTheGeneratorsValues) {
  options_.max_shard_bytes = 1'000'000;
  const auto summary = write();
  ASSERT_TRUE(summary.ok()) << summary.status().message;
  EXPECT_GT(summary->num_shards, 3);
  const auto checkpoint = Checkpoint::open(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
  const std::vector<TensorSpec> specs = expected_tensors(golden_.config);
  const auto match = match_tensors(*checkpoint, specs);
  ASSERT_TRUE(match.ok()) << match.status().message;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto tensor =
        RandomTensor::make(specs[i].name, specs[i].shape, specs[i].dtype, options_.weights).value();
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.num_bytes()));
    tensor.fill(0, tensor.num_elements(), bytes.data());
    ASSERT_NE(match->entries[i], nullptr) << specs[i].name;
    const auto data = match->entries[i]->data;
    ASSERT_EQ(data.size(), bytes.size()) << specs[i].name;
    EXPECT_EQ(std::memcmp(data.data(), bytes.data(), bytes.size()), 0) << specs[i].name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data.data()) % static_cast<uintptr_t>(dtype_bytes(specs[i].dtype)),
              0U)
        << specs[i].name;
  }
}

TEST_F(RandomCheckpoint, ADirectoryWithWeightsIsRefusedAndNotChanged) {
  std::ofstream(dir_ / "model.safetensors") << "precious";
  const auto summary = write();
  ASSERT_FALSE(summary.ok());
  EXPECT_NE(summary.status().message.find("model.safetensors"), std::string::npos);
  EXPECT_EQ(read_text_file(dir_ / "model.safetensors").value(), "precious");
}

TEST_F(RandomCheckpoint, ADirectoryIsRefusedWhileAnotherWriterUsesIt) {
  {
    UnfinishedFiles other;
    ASSERT_TRUE(prepare_directory(dir_, 1, other).ok());
    const auto refused = write();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code, StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message.find("another process"), std::string::npos)
        << refused.status().message;
    EXPECT_TRUE(files().empty());
  }
  EXPECT_TRUE(write().ok());
}

TEST_F(RandomCheckpoint, CancellingLeavesNothingBehind) {
  std::atomic<bool> cancelled{false};
  options_.cancelled = &cancelled;
  options_.max_shard_bytes = 1'000'000;
  options_.progress = [&](int64_t done, int64_t total) { cancelled = done > total / 2; };
  const auto summary = write();
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code, StatusCode::kCancelled);
  EXPECT_TRUE(files().empty());
}

// A limit on file sizes replaces a full disk: both fail in the same system calls.
TEST_F(RandomCheckpoint, AFullDiskIsAClearErrorAndLeavesNothingBehind) {
  rlimit old_limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  auto* old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 100'000, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto summary = write();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code, StatusCode::kResourceExhausted);
  EXPECT_NE(summary.status().message.find("no space left"), std::string::npos) << summary.status().message;
  EXPECT_TRUE(files().empty());
}

class GoldenWeights : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenWeights, HaveTheChecksumOfThePythonGenerator) {
  const testing::Golden golden = testing::load_golden(GetParam());
  ASSERT_GE(golden.cases.size(), 4U);
  const testing::GoldenCheckpoint checkpoint(golden);  // throws on a difference
  const auto opened = Checkpoint::open(checkpoint.dir());
  ASSERT_TRUE(opened.ok()) << opened.status().message;
  const auto match = match_tensors(*opened, expected_tensors(golden.config));
  EXPECT_TRUE(match.ok()) << match.status().message;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenWeights, ::testing::ValuesIn(testing::golden_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace hadal
