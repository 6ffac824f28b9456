// Tests files of measured kernel choices: their names and contents, SGLang's own among them, and what is
// loaded.
#include "tune/kernel_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace hadal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDevice[] = "NVIDIA H200";
constexpr char kDense[] = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json";
constexpr char kExperts[] = "E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json";

KernelConfigName dense(int64_t n, int64_t k, WeightType type = WeightType::kFp8Block) {
  return {.n = n, .k = k, .type = type, .device = kDevice};
}

class KernelConfigs : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("hadal-kernel-configs-" + std::to_string(::getpid()) + "-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(dir_ / name) << text; }
  std::string read(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(dir_ / name).rdbuf();
    return text.str();
  }
  Result<cuda::ProductChoices> load() {
    return load_kernel_configs(std::vector<std::filesystem::path>{dir_}, kDevice, 132);
  }

  std::filesystem::path dir_;
};

TEST(KernelConfigName, EqualsSglangs) {
  EXPECT_EQ(file_name(dense(512, 7168)), kDense);
  EXPECT_EQ(file_name({.num_experts = 257, .n = 256, .type = WeightType::kFp8Block, .device = kDevice}),
            kExperts);
  EXPECT_EQ(
      file_name({.num_experts = 66, .n = 1408, .down = true, .type = WeightType::kBF16, .device = kDevice}),
      "E=66,N=1408,device_name=NVIDIA_H200_down.json");
  EXPECT_EQ(
      file_name({.num_experts = 64, .n = 1408, .type = WeightType::kInt8Channel, .device = "NVIDIA L40S"}),
      "E=64,N=1408,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json");
}

TEST(KernelConfigName, IsParsedBackForTheDevice) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kFp8Block,
                                WeightType::kInt8Block, WeightType::kFp8Channel, WeightType::kInt8Channel}) {
    for (KernelConfigName name :
         {dense(2112, 7168, type), KernelConfigName{257, 256, 0, false, type, kDevice},
          KernelConfigName{257, 256, 0, true, type, kDevice}}) {
      EXPECT_EQ(parse_file_name(file_name(name), kDevice), name) << file_name(name);
      EXPECT_EQ(parse_file_name(file_name(name), "NVIDIA H20"), std::nullopt);
    }
  }
  for (const char* other :
       {"", "N=512.json", "N=512,K=,device_name=NVIDIA_H200.json", "README.md",
        "N=0,K=128,device_name=NVIDIA_H200.json", "N=512,K=7168,device_name=NVIDIA_H200.txt",
        "N=512,K=7168,device_name=NVIDIA_H200_down.json",
        "N=99999999999999999999,K=1,device_name=NVIDIA_H200.json",
        "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp4.json",
        "N=9000000000000000000,K=128,device_name=NVIDIA_H200.json"}) {
    EXPECT_EQ(parse_file_name(other, kDevice), std::nullopt) << other;
  }
}

TEST(KernelConfigText, IsParsedBackAsWritten) {
  const std::vector<KernelConfigEntry> entries = {
      {.batch = 1, .choice = cuda::parse_choice("thin 8x16").value(), .time_us = 3.25},
      {.batch = 64, .choice = cuda::parse_choice("skinny 64x128 splits 4 stages 7").value(), .time_us = 8.5},
      {.batch = 4096, .choice = cuda::choice_of(cuda::LinearTile::k128x192), .time_us = 89.125}};
  const std::string text = kernel_config_json(entries, WeightType::kFp8Block, false);
  const auto file = parse_kernel_config(text, "x.json", false);
  ASSERT_TRUE(file.ok()) << file.status().message;
  EXPECT_EQ(file->entries, entries);
  EXPECT_EQ(file->num_foreign, 0);
  // Tools for SGLang's files look for these fields.
  for (const char* field :
       {"\"64\": {", "\"BLOCK_SIZE_M\": 64,", "\"BLOCK_SIZE_N\": 128,", "\"BLOCK_SIZE_K\": 128,",
        "\"GROUP_SIZE_M\": 1,", "\"num_warps\": 9,", "\"num_stages\": 7,", "\"kernel\": \"skinny\"",
        "\"splits\": 4", "\"time_us\": 8.5\n"}) {
    EXPECT_THAT(text, HasSubstr(field));
  }
  const std::vector<KernelConfigEntry> experts = {{.batch = 8,
                                                   .choice = cuda::grouped_tile(cuda::GroupedTile::k256x128),
                                                   .time_us = 1.5,
                                                   .hidden_size = 7168,
                                                   .rows = 72}};
  EXPECT_EQ(
      parse_kernel_config(kernel_config_json(experts, WeightType::kFp8Block, true), "x.json", true)->entries,
      experts);
  EXPECT_EQ(kernel_config_json({}, WeightType::kBF16, false), "{\n}\n");
}

// The entries are as Triton's tuners write them, with the extra data of newer versions.
TEST(KernelConfigText, EntriesOfOtherKernelsAreCounted) {
  const auto file = parse_kernel_config(
      R"({"triton_version": "3.5.1", "1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128,
          "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}, "16": {"BLOCK_SIZE_M": 16, "USE_TMA": true}})",
      "x.json", false);
  ASSERT_TRUE(file.ok()) << file.status().message;
  EXPECT_EQ(file->num_foreign, 2);
  EXPECT_THAT(file->entries, IsEmpty());
}

TEST(KernelConfigText, DataOfLaterVersionsIsIgnored) {
  const auto file = parse_kernel_config(
      R"({"2": {"kernel": "woven", "BLOCK_SIZE_M": 8}, "4": {"kernel": "library", "colour": [1, {"deep": null}]}})",
      "x.json", false);
  ASSERT_TRUE(file.ok()) << file.status().message;
  ASSERT_EQ(file->unknown.size(), 1);
  EXPECT_THAT(file->unknown[0], HasSubstr("\"2\": kernel \"woven\""));
  ASSERT_EQ(file->entries.size(), 1);
  EXPECT_EQ(file->entries[0].batch, 4);
}

TEST(KernelConfigText, ErrorsNameFileKeyFieldValueAndWhatIsAllowed) {
  const auto message = [](const char* text, bool experts = false) {
    const auto file = parse_kernel_config(text, "x.json", experts);
    return file.ok() ? "parsed" : file.status().message;
  };
  EXPECT_THAT(message("{"), HasSubstr("x.json: not JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("x.json: is a list; must be an object with batch sizes as keys"));
  EXPECT_THAT(message(R"({"one": {}})"),
              HasSubstr("x.json: \"one\" is not a batch size; must be a whole number from 1 on"));
  EXPECT_THAT(message(R"({"0": {}})"), HasSubstr("\"0\" is not a batch size"));
  EXPECT_THAT(message(R"({"08": {}})"), HasSubstr("\"08\" is not a batch size"));
  EXPECT_THAT(message(R"({"8": 3})"), HasSubstr("x.json: \"8\" is 3; must be an object"));
  EXPECT_THAT(message(R"({"8": {"kernel": 3}})"), HasSubstr("x.json: \"8\": kernel is 3; must be a string"));
  EXPECT_THAT(message(R"({"8": {"kernel": "skinny", "BLOCK_SIZE_M": "8"}})"),
              HasSubstr("\"8\": BLOCK_SIZE_M is \"8\"; must be a whole number in [0, 1048576]"));
  EXPECT_THAT(message(R"({"8": {"kernel": "skinny", "splits": 0}})"),
              HasSubstr("splits is 0; must be a whole number in [1,"));
  EXPECT_THAT(message(R"({"8": {"kernel": "skinny", "time_us": -1}})"),
              HasSubstr("time_us is -1; must be a number in [0, 1e+12]"));
  EXPECT_THAT(message(R"({"8": {"kernel": "skinny", "rows": 8}})", true),
              HasSubstr("hidden_size is missing"));
  EXPECT_THAT(message(R"({"8": {"kernel": "skinny", "hidden_size": 8}})", true),
              HasSubstr("rows is missing"));
  EXPECT_THAT(message(std::string(5000, '[').c_str()), HasSubstr("not JSON"));
}

TEST_F(KernelConfigs, AreWrittenWholeAndReadBack) {
  const KernelConfigName name = dense(512, 7168);
  EXPECT_THAT(read_kernel_config(dir_, name)->entries, IsEmpty()) << "no file";
  const std::vector<KernelConfigEntry> entries = {
      {.batch = 16, .choice = cuda::parse_choice("skinny 16x64 stages 4").value(), .time_us = 2.0}};
  ASSERT_TRUE(write_kernel_config(dir_, name, entries).ok());
  EXPECT_EQ(read_kernel_config(dir_, name)->entries, entries);
  const std::string text = read(kDense);
  ASSERT_TRUE(write_kernel_config(dir_, name, {}).ok());
  EXPECT_EQ(read(kDense), text) << "the old file is kept";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1) << "no partial file is left";
  EXPECT_THAT(write_kernel_config(dir_ / "absent", name, entries).status().message,
              HasSubstr("cannot be written"));
}

// Entries and data of other tools, entries of later versions and our own for other batch sizes stay. The
// remaining entries of ours are replaced.
TEST_F(KernelConfigs, WritingKeepsWhatIsNotReplaced) {
  write(kDense, R"({"triton_version": "3.5.1", "2048": {"BLOCK_SIZE_M": 64, "USE_TMA": true},
                    "8": {"kernel": "library", "colour": 3}, "4": {"kernel": "woven", "knots": [1, {"a": "b"}]},
                    "2": {"kernel": "thin", "BLOCK_SIZE_M": 8, "BLOCK_SIZE_N": 16, "time_us": 1.25e-7},
                    "3": {"note": "\"quoted\"", "wide": 2.0}, "by": "another"})");
  const auto entry = [](int64_t batch) {
    return KernelConfigEntry{
        .batch = batch, .choice = cuda::parse_choice("skinny 16x64 stages 4").value(), .time_us = 2.0};
  };
  const KernelConfigName name = dense(512, 7168);
  ASSERT_TRUE(write_kernel_config(dir_, name, std::vector{entry(8), entry(3)}).ok());
  const std::string ours =
      R"("BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 1,
        "num_warps": 5,
        "num_stages": 4,
        "kernel": "skinny",
        "splits": 1,
        "cluster": 1,
        "time_us": 2.0
    },
)";
  EXPECT_EQ(read(kDense), R"({
    "triton_version": "3.5.1",
    "by": "another",
    "2": {
        "kernel": "thin",
        "BLOCK_SIZE_M": 8,
        "BLOCK_SIZE_N": 16,
        "time_us": 1.25e-07
    },
    "3": {
        "note": "\"quoted\"",
        "wide": 2.0,
        )" + ours + R"(    "4": {
        "kernel": "woven",
        "knots": [1,{"a":"b"}]
    },
    "8": {
        )" + ours + R"(    "2048": {
        "BLOCK_SIZE_M": 64,
        "USE_TMA": true
    }
}
)");
  EXPECT_THAT(write_kernel_config(dir_, name, std::vector{entry(2048)}).status().message,
              AllOf(HasSubstr(kDense), HasSubstr("\"2048\" was written by another tool")));
  write(kDense, "[]");
  EXPECT_THAT(write_kernel_config(dir_, name, std::vector{entry(8)}).status().message,
              HasSubstr("is a list"));
  EXPECT_EQ(read(kDense), "[]");
}

TEST_F(KernelConfigs, AreLoadedForTheirDeviceOnly) {
  const std::vector<KernelConfigEntry> entries = {
      {.batch = 16, .choice = cuda::parse_choice("skinny 32x128 splits 2 stages 4").value()}};
  ASSERT_TRUE(write_kernel_config(dir_, dense(512, 7168), entries).ok());
  KernelConfigName other = dense(576, 7168);
  other.device = "NVIDIA H20";
  ASSERT_TRUE(write_kernel_config(dir_, other, entries).ok());
  const KernelConfigName experts{
      .num_experts = 257, .n = 256, .type = WeightType::kFp8Block, .device = kDevice};
  KernelConfigName down = experts;
  down.down = true;
  const std::vector<KernelConfigEntry> sorted = {{.batch = 8,
                                                  .choice = cuda::grouped_tile(cuda::GroupedTile::k128x128),
                                                  .hidden_size = 7168,
                                                  .rows = 72}};
  ASSERT_TRUE(write_kernel_config(dir_, experts, sorted).ok());
  ASSERT_TRUE(write_kernel_config(dir_, down, sorted).ok());
  write("notes.txt", "not JSON");

  const auto choices = load();
  ASSERT_TRUE(choices.ok()) << choices.status().message;
  EXPECT_EQ(choices->linear.num_shapes(), 1);
  EXPECT_EQ(choices->grouped.num_shapes(), 2);
  const cuda::LinearShape shape = linear_shape_of(dense(512, 7168), 20, 132);
  EXPECT_EQ(cuda::choose(shape, &choices->linear), entries[0].choice);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 7168}, {7168, 256}}) {
    EXPECT_EQ(choices->grouped.find(
                  {.type = WeightType::kFp8Block, .num_rows = 80, .num_experts = 257, .n = n, .k = k}),
              sorted[0].choice);
  }
}

TEST_F(KernelConfigs, EntriesThatDoNotFitAreLeftToTheHeuristic) {
  // The entries are a tile of 8 rows for 16, one that is not compiled, the library for FP8, the plain kernel,
  // and an entry of Triton's.
  write(kDense, R"({"16": {"kernel": "skinny", "BLOCK_SIZE_M": 8, "BLOCK_SIZE_N": 64, "num_stages": 4},
                    "32": {"kernel": "skinny", "BLOCK_SIZE_M": 48, "BLOCK_SIZE_N": 64, "num_stages": 4},
                    "64": {"kernel": "library"}, "96": {"kernel": "reference"},
                    "128": {"BLOCK_SIZE_M": 64}})");
  ::testing::internal::CaptureStderr();
  const auto choices = load();
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(choices.ok()) << choices.status().message;
  EXPECT_TRUE(choices->empty());
  EXPECT_THAT(log, HasSubstr("\"16\": skinny 8x64 stages 4 is not compiled or does not support it"));
  EXPECT_THAT(log, HasSubstr("skinny 48x64"));
  EXPECT_THAT(log, HasSubstr("\"64\": library"));
  EXPECT_THAT(log, HasSubstr("\"96\": reference is not compiled or does not support it"));
  EXPECT_THAT(log, HasSubstr("entries=1")) << "Triton's entry, in one line";
}

// A file of an older version, whose kernels no longer exist, causes one log line, and the heuristic decides.
TEST_F(KernelConfigs, AStaleFileLogsOneLine) {
  std::string text;
  for (const char* batch : {"1", "2", "4", "8", "16", "32"}) {
    text += (text.empty() ? "{" : ",") +
            fmt::format(
                R"("{}": {{"kernel": "skinny", "BLOCK_SIZE_M": 48, "BLOCK_SIZE_N": 64, "num_stages": 4}})",
                batch);
  }
  write(kDense, text + R"(, "64": {"kernel": "woven"}})");
  ::testing::internal::CaptureStderr();
  const auto choices = load();
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(choices.ok()) << choices.status().message;
  const cuda::LinearShape shape = linear_shape_of(dense(512, 7168), 16, 132);
  EXPECT_EQ(cuda::choose(shape, &choices->linear), cuda::heuristic(shape));
  EXPECT_THAT(log, HasSubstr("kernel config entries not used"));
  EXPECT_THAT(
      log,
      HasSubstr("entries=7: \"64\": kernel \"woven\" does not exist in this version; \"1\": skinny 48x64"));
  EXPECT_THAT(log, HasSubstr("; ..."));
  const std::string event = "kernel config entries not used";
  EXPECT_EQ(log.find(event, log.find(event) + 1), std::string::npos) << log;
}

// A directory without effect is worth a warning if the user named it, but not if it came with the program.
TEST_F(KernelConfigs, ANamedDirectoryWithoutEffectIsWarnedAbout) {
  const auto log_of = [&](const std::optional<std::filesystem::path>& named) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(load_kernel_configs(std::vector{dir_}, kDevice, 132, named).ok());
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warning =
      "kernel configs without effect dir=\"" + dir_.string() + "\" device=\"NVIDIA H200\"";
  EXPECT_THAT(log_of(dir_), HasSubstr(warning));
  EXPECT_THAT(log_of(std::nullopt), Not(HasSubstr(warning)));
  write(kDense, R"({"16": {"BLOCK_SIZE_M": 64}})");
  EXPECT_THAT(log_of(dir_), HasSubstr(warning)) << "a file of another tool";
  write(kDense, R"({"16": {"kernel": "skinny", "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "num_stages": 4}})");
  EXPECT_THAT(log_of(dir_), Not(HasSubstr(warning)));
}

TEST_F(KernelConfigs, TheLastDirectoryTakesPrecedence) {
  const KernelConfigName name = dense(512, 7168);
  const std::filesystem::path first = dir_ / "first", second = dir_ / "second";
  std::filesystem::create_directories(first);
  std::filesystem::create_directories(second);
  const auto entry = [](const char* choice, int64_t batch) {
    return KernelConfigEntry{.batch = batch, .choice = cuda::parse_choice(choice).value()};
  };
  ASSERT_TRUE(
      write_kernel_config(first, name,
                          std::vector{entry("skinny 8x64 stages 4", 1), entry("skinny 64x64 stages 3", 64)})
          .ok());
  ASSERT_TRUE(write_kernel_config(second, name, std::vector{entry("skinny 8x64 splits 2 stages 4", 1)}).ok());
  const auto choices = load_kernel_configs(std::vector{first, second}, kDevice, 132);
  ASSERT_TRUE(choices.ok());
  EXPECT_EQ(to_string(choices->linear.find(linear_shape_of(name, 1, 132)).value()),
            "skinny 8x64 splits 2 stages 4");
  EXPECT_EQ(choices->linear.find(linear_shape_of(name, 64, 132)), std::nullopt) << "files are not mixed";
}

TEST_F(KernelConfigs, TheFolderOfTheCardTakesPrecedenceOverTheDirectory) {
  const KernelConfigName name = dense(512, 7168);
  const auto write_choice = [&](const std::filesystem::path& folder, const char* choice) {
    std::filesystem::create_directories(folder);
    const KernelConfigEntry entry{.batch = 1, .choice = cuda::parse_choice(choice).value()};
    ASSERT_TRUE(write_kernel_config(folder, name, std::vector{entry}).ok());
  };
  const auto loaded = [&] {
    const auto choices = load_kernel_configs(std::vector{dir_}, kDevice, 132);
    return to_string(choices.value().linear.find(linear_shape_of(name, 1, 132)).value());
  };
  write_choice(dir_, "skinny 8x64 stages 4");
  write_choice(dir_ / "NVIDIA_H100", "skinny 8x64 splits 4 stages 4");
  EXPECT_EQ(loaded(), "skinny 8x64 stages 4") << "another card's folder is not read";
  write_choice(dir_ / "NVIDIA_H200", "skinny 8x64 splits 2 stages 4");
  EXPECT_EQ(loaded(), "skinny 8x64 splits 2 stages 4");
}

TEST_F(KernelConfigs, ErrorsNameTheFile) {
  EXPECT_THAT(load_kernel_configs(std::vector{dir_ / "absent"}, kDevice, 132).status().message,
              HasSubstr("absent is not a directory"));
  // No file system accepts this name, so the file is neither readable nor absent.
  KernelConfigName longest = dense(512, 7168);
  longest.device = std::string(5000, 'd');
  EXPECT_THAT(read_kernel_config(dir_, longest).status().message, HasSubstr(".json cannot be read: "));
  write(kExperts, R"({"8": {"kernel": "tiled"}})");
  const auto broken = load();
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.status().code, StatusCode::kDataLoss);
  EXPECT_THAT(broken.status().message, HasSubstr(std::string(kExperts) + ": \"8\": hidden_size is missing"));
}

}  // namespace
}  // namespace hadal
