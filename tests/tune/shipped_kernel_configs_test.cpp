// Tests the files of kernel choices that come with the program: this version reads every one, every choice is
// compiled and supports its shape, and all products of the published models are present.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/source_dir.h"
#include "tests/tune/graph_sizes.h"
#include "tune/kernel_config.h"
#include "tune/tuner.h"

namespace hadal {
namespace {

constexpr char kShippedDevice[] = "NVIDIA H200";
constexpr int kShippedMultiprocessors = 132;

std::filesystem::path folder() {
  return std::filesystem::path(source_dir()) / "share/kernel-configs/NVIDIA_H200";
}

TEST(ShippedKernelConfigs, AreReadCompletely) {
  std::error_code error;
  int num_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder(), error)) {
    const std::string text = file.path().filename().string();
    SCOPED_TRACE(text);
    ++num_files;
    const auto name = parse_file_name(text, kShippedDevice);
    ASSERT_TRUE(name.has_value());
    EXPECT_EQ(file_name(*name), text);
    const auto config = read_kernel_config(folder(), *name);
    ASSERT_TRUE(config.ok()) << config.status().message;
    EXPECT_FALSE(config->entries.empty());
    EXPECT_EQ(config->num_foreign, 0);
    EXPECT_TRUE(config->unknown.empty());
    for (const KernelConfigEntry& entry : config->entries) {
      EXPECT_TRUE(may_be_chosen(entry.choice)) << entry.batch;
      EXPECT_GT(entry.time_us, 0.0) << entry.batch;
    }
  }
  EXPECT_FALSE(error) << folder() << ": " << error.message();
  EXPECT_GT(num_files, 0);
}

// Every choice is one of the valid choices for its shape.
TEST(ShippedKernelConfigs, ContainEveryProductOfThePublishedModels) {
  const std::vector<std::string> presets(std::begin(kTunedPresets), std::end(kTunedPresets));
  const auto products = preset_products(presets, kTunedTpSizes);
  ASSERT_TRUE(products.ok()) << products.status().message;
  size_t num_files = 0;
  for (const ProductSpec& product : *products) {
    KernelConfigName name = product.name;
    name.device = kShippedDevice;
    SCOPED_TRACE(product.label + ": " + file_name(name));
    ++num_files;
    const auto config = read_kernel_config(folder(), name);
    ASSERT_TRUE(config.ok()) << config.status().message;
    std::map<int64_t, cuda::Choice> chosen;
    for (const KernelConfigEntry& entry : config->entries) {
      chosen[entry.batch] = entry.choice;
      if (name.num_experts == 0) continue;
      EXPECT_EQ(entry.hidden_size, product.hidden_size) << entry.batch;
      EXPECT_EQ(entry.rows, product.rows(entry.batch)) << entry.batch;
    }
    for (const int64_t batch : kTunedBatches) {
      const TuneField field = tune_field(product, batch, kShippedMultiprocessors);
      const auto at = chosen.find(batch);
      // This size has no choice if there was nothing to choose, as for its neighbours, or if the search ran
      // out of time.
      if (at == chosen.end()) continue;
      const bool is_there =
          std::find(field.candidates.begin(), field.candidates.end(), at->second) != field.candidates.end();
      EXPECT_TRUE(is_there) << batch << ": " << to_string(at->second) << " is not a choice for it";
    }
  }
  const auto begin = std::filesystem::directory_iterator(folder());
  EXPECT_EQ(static_cast<size_t>(std::distance(begin, {})), num_files) << "files of no published model";
}

// The program loads all of them and leaves nothing out.
TEST(ShippedKernelConfigs, AreLoadedWithoutWarnings) {
  ::testing::internal::CaptureStderr();
  const std::vector<std::filesystem::path> dirs = {folder().parent_path()};
  const auto choices = load_kernel_configs(dirs, kShippedDevice, kShippedMultiprocessors, dirs.front());
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(choices.ok()) << choices.status().message;
  EXPECT_FALSE(choices->empty());
  EXPECT_EQ(log.find("not used"), std::string::npos) << log;
  EXPECT_EQ(log.find("without effect"), std::string::npos) << log;
}

// A batch that is padded to a graph has the same kernels as without padding, and therefore the same bits.
TEST(ShippedKernelConfigs, ChooseTheSameForABatchAndItsGraph) {
  const std::vector<std::filesystem::path> dirs = {folder()};
  const auto choices = load_kernel_configs(dirs, kShippedDevice, kShippedMultiprocessors);
  ASSERT_TRUE(choices.ok()) << choices.status().message;
  const std::vector<std::string> presets(std::begin(kTunedPresets), std::end(kTunedPresets));
  const auto products = preset_products(presets, kTunedTpSizes);
  for (const ProductSpec& product : *products) {
    const auto of = [&](int64_t m) {
      if (product.name.num_experts > 0) {
        cuda::GroupedShape shape =
            grouped_shape_of(product.name, product.hidden_size, product.rows(m), kShippedMultiprocessors);
        shape.rows_per_token = static_cast<int>(product.rows(1));
        const cuda::Choice choice = choose(shape, &choices->grouped);
        return std::tuple(choice.kernel, choice.splits, wants_sorted(shape, &choices->grouped));
      }
      cuda::LinearShape shape = linear_shape_of(product.name, m, kShippedMultiprocessors);
      shape.f32_y = product.f32_y;
      const cuda::Choice choice = choose(shape, &choices->linear);
      return std::tuple(choice.kernel, choice.splits, false);
    };
    for (const int64_t largest : {1469, 4096}) {
      const testing::GraphSizes graphs(largest);
      for (int64_t m = 1; m <= largest; ++m)
        EXPECT_EQ(of(m), of(graphs.padded(m))) << product.label << " m " << m;
    }
  }
}

}  // namespace
}  // namespace hadal
