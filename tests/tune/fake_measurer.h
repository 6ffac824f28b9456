// Tunes without a GPU: measurers compute their times, and a fixture makes whole runs over products.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/presets.h"
#include "tune/tuner.h"

namespace hadal {

inline ModelConfig preset(const char* name) {
  return parse_model_config(preset_config_json(name).value(), name).value();
}

// Takes times from a table, and advances a clock with every measurement.
class FakeMeasurer final : public ChoiceMeasurer {
 public:
  FakeMeasurer(std::function<double(const cuda::Choice&)> time, double& clock, double seconds_a_replay = 0.01)
      : time_(std::move(time)), clock_(clock), seconds_(seconds_a_replay) {}
  Result<double> measure(const cuda::Choice& choice, int replays) override {
    clock_ += seconds_ * replays;
    replays_[to_string(choice)] += replays;
    // Adds noise that more replays average out.
    std::uniform_real_distribution<double> noise(-0.04, 0.04);
    return time_(choice) * (1.0 + noise(random_) / replays);
  }
  int replays_of(const cuda::Choice& choice) const {
    const auto at = replays_.find(to_string(choice));
    return at == replays_.end() ? 0 : at->second;
  }

 private:
  std::function<double(const cuda::Choice&)> time_;
  double& clock_;
  double seconds_;
  std::map<std::string, int> replays_;
  std::mt19937 random_{5};
};

// Returns the time of `c` where `best` is the fastest choice.
inline double landscape(const cuda::Choice& c, const cuda::Choice& best) {
  double time = 10.0;
  time += c.kernel == best.kernel ? 0.0 : 20.0;
  time += 0.5 * std::abs(c.block_m - best.block_m) + 0.2 * std::abs(c.block_n - best.block_n);
  time += 3.0 * std::abs(c.splits - best.splits) + 0.3 * std::abs(c.stages - best.stages);
  return time;
}

// Measures every product with a FakeMeasurer; its members set the fastest choice, the time and a failure.
class FakeSource final : public MeasurerSource {
 public:
  explicit FakeSource(double& clock) : clock_(clock) {}
  std::string device_name() const override { return "NVIDIA H200"; }
  int num_sms() const override { return 132; }
  Result<std::unique_ptr<ChoiceMeasurer>> measurer(const ProductSpec& product, int64_t batch) override {
    ++num_opened;
    if (fail_at == num_opened) return make_status(StatusCode::kResourceExhausted, "no room");
    const std::vector<cuda::Choice> candidates = tune_field(product, batch, 132).candidates;
    const cuda::Choice fastest = best ? best(batch, candidates) : best_of(candidates);
    return std::unique_ptr<ChoiceMeasurer>(std::make_unique<FakeMeasurer>(
        [this, batch, fastest](const cuda::Choice& c) {
          if (on_measure) on_measure(batch, c);
          return landscape(c, fastest);
        },
        clock_, seconds_a_replay));
  }
  std::function<cuda::Choice(int64_t, const std::vector<cuda::Choice>&)> best;
  std::function<void(int64_t, const cuda::Choice&)> on_measure;
  static cuda::Choice best_of(const std::vector<cuda::Choice>& candidates) {
    return candidates[candidates.size() / 2];
  }

  int num_opened = 0;
  int fail_at = -1;
  double seconds_a_replay = 0.001;

 private:
  double& clock_;
};

// Runs over the products of V3 at --tp-size 8 into a temporary directory.
class Tuning : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.output_dir = std::filesystem::temp_directory_path() /
                          ("hadal-tuning-" + std::to_string(::getpid()) + "-" +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(options_.output_dir);
    options_.every = true;
    options_.now = [this] { return clock_; };
    options_.interrupted = [this] { return interrupt_after_ >= 0 && source_.num_opened > interrupt_after_; };
    options_.progress = [this](size_t done, size_t total, const std::string&) {
      EXPECT_LT(done, total);
      ++num_progress_;
    };
  }
  void TearDown() override { std::filesystem::remove_all(options_.output_dir); }

  std::vector<ProductSpec> products_ = [] {
    const ModelConfig v3 = preset("v3");
    std::vector<ProductSpec> products = *dense_products(v3, LoadQuantization::kNone, {.tp = 8});
    const auto experts = *expert_products(v3, LoadQuantization::kNone, {.tp = 8});
    products.insert(products.end(), experts.begin(), experts.end());
    return products;
  }();
  const std::vector<int64_t> batches_ = {1, 16, 256};
  double clock_ = 0.0;
  int interrupt_after_ = -1;
  int num_progress_ = 0;
  FakeSource source_{clock_};
  TuneOptions options_;
};

}  // namespace hadal
