// Loads the bundled model on the GPU once for all tests of a suite.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "engine/backend.h"
#include "tests/source_dir.h"

namespace hadal::testing {

// Returns |got − want| / |want|.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / norm);
}

class TinyModelTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    pool_ = std::make_unique<ThreadPool>(2);
    backend_ = load({});
  }
  // Ranks take turns on one GPU.
  static std::unique_ptr<Backend> load(ModelSplit split, KernelSet kernels = KernelSet::kOptimised,
                                       bool with_nextn = false, DeviceType device = DeviceType::kCuda) {
    const std::filesystem::path dir = std::filesystem::path(source_dir()) / "models/hadal-tiny";
    const std::string config_path = (dir / "config.json").string();
    const std::string text = read_text_file(config_path, size_t{1} << 20).value();
    BackendOptions options;
    options.load.load_nextn = with_nextn;
    options.kernels = kernels;
    options.split = split;
    options.gpus.gpu_id_step = 0;
    return load_backend(device, dir, parse_model_config(text, config_path).value(), options, *pool_).value();
  }
  static void TearDownTestSuite() {
    backend_.reset();
    pool_.reset();
  }

  static inline std::unique_ptr<ThreadPool> pool_;
  static inline std::unique_ptr<Backend> backend_;
};

}  // namespace hadal::testing
