// Tuning without a GPU: the shapes of the models, the search over a made-up landscape of times, and a whole
// run over products into files.
#include "engine/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "base/mapped_file.h"
#include "engine/tune_report.h"
#include "model/presets.h"

namespace hadal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig preset(const char* name) {
  return parse_model_config(preset_config_json(name).value(), name).value();
}

std::vector<std::string> texts(const std::vector<ProductSpec>& products) {
  std::vector<std::string> out;
  for (const ProductSpec& p : products) {
    const char* type = p.name.type == WeightType::kFp8Block ? "fp8" : "bf16";
    if (p.name.num_experts == 0) {
      out.push_back(fmt::format("{} {} {}x{}", p.label, type, p.name.n, p.name.k));
      continue;
    }
    const cuda::GroupedShape shape = grouped_shape_of(p.name, p.hidden_size, 1, 132);
    out.push_back(fmt::format("{} {} {} of {}x{}", p.label, type, shape.num_experts, shape.n, shape.k));
  }
  return out;
}

TEST(TuneShapes, OfV3) {
  const ModelConfig v3 = preset("v3");
  EXPECT_THAT(texts(*dense_products(v3, LoadQuantization::kNone, {})),
              ElementsAre("qkv_a fp8 2112x7168", "q_b fp8 24576x1536", "kv_b fp8 32768x512",
                          "o_proj fp8 7168x16384", "gate_up fp8 36864x7168", "down fp8 7168x18432",
                          "router bf16 256x7168", "lm_head bf16 129280x7168"));
  EXPECT_THAT(texts(*dense_products(v3, LoadQuantization::kNone, {.tp = 8})),
              ElementsAre("qkv_a fp8 2112x7168", "q_b fp8 3072x1536", "kv_b fp8 4096x512",
                          "o_proj fp8 7168x2048", "gate_up fp8 4608x7168", "down fp8 7168x2304",
                          "router bf16 256x7168", "lm_head bf16 16160x7168"));
  EXPECT_THAT(texts(*expert_products(v3, LoadQuantization::kNone, {})),
              ElementsAre("experts gate_up fp8 257 of 4096x7168", "experts down fp8 257 of 7168x2048"));
  EXPECT_THAT(texts(*expert_products(v3, LoadQuantization::kNone, {.tp = 8})),
              ElementsAre("experts gate_up fp8 257 of 512x7168", "experts down fp8 257 of 7168x256"));
  EXPECT_THAT(texts(*expert_products(v3, LoadQuantization::kNone, {.tp = 8, .ep = 8})),
              ElementsAre("experts gate_up fp8 33 of 4096x7168", "experts down fp8 33 of 7168x2048"));
  const auto experts = *expert_products(v3, LoadQuantization::kNone, {.tp = 8, .ep = 8});
  EXPECT_EQ(experts[0].rows(16), 32) << "one of its 32 experts and the shared one for each token";
  EXPECT_EQ((*expert_products(v3, LoadQuantization::kNone, {}))[1].rows(4), 36);
  for (const int64_t tp : {2, 4}) EXPECT_TRUE(dense_products(v3, LoadQuantization::kNone, {.tp = tp}).ok());
}

TEST(TuneShapes, OfV2Lite) {
  const ModelConfig lite = preset("v2-lite");
  EXPECT_THAT(texts(*dense_products(lite, LoadQuantization::kNone, {})),
              ElementsAre("qkv_a bf16 3648x2048", "kv_b bf16 4096x512", "o_proj bf16 2048x2048",
                          "gate_up bf16 22016x2048", "down bf16 2048x11008", "router bf16 64x2048",
                          "lm_head bf16 102400x2048"));
  EXPECT_THAT(texts(*dense_products(lite, LoadQuantization::kFp8, {.tp = 2})),
              ElementsAre("qkv_a fp8 2112x2048", "kv_b fp8 2048x512", "o_proj fp8 2048x1024",
                          "gate_up fp8 11008x2048", "down fp8 2048x5504", "router bf16 64x2048",
                          "lm_head bf16 51200x2048"));
  EXPECT_THAT(texts(*expert_products(lite, LoadQuantization::kNone, {})),
              ElementsAre("experts gate_up bf16 66 of 2816x2048", "experts down bf16 66 of 2048x1408"));
  EXPECT_THAT(texts(*expert_products(lite, LoadQuantization::kFp8, {.tp = 8})),
              ElementsAre("experts gate_up fp8 66 of 512x2048", "experts down fp8 66 of 2048x256"))
      << "176 in whole blocks";
}

TEST(TuneShapes, OfSizesAsDevicesHoldThem) {
  EXPECT_THAT(texts(expert_products_of(WeightType::kFp8Block, 64, 1400, 7168, 6)),
              ElementsAre("experts gate_up fp8 64 of 2816x7168", "experts down fp8 64 of 7168x1408"));
  const auto experts = expert_products_of(WeightType::kBF16, 4, 256, 512, 2);
  EXPECT_EQ(experts[0].weight_bytes(), 4 * 512 * 512 * 2.0);
  EXPECT_EQ(experts[1].weight_bytes(), 4 * 512 * 256 * 2.0);
  EXPECT_EQ((*dense_products(preset("v3"), LoadQuantization::kNone, {}))[0].weight_bytes(), 2112.0 * 7168.0);
}

TEST(TuneShapes, SplitsThatDoNotComeOutEven) {
  const ModelConfig lite = preset("v2-lite");
  const auto message = [&](ModelSplit split) {
    return dense_products(lite, LoadQuantization::kNone, split).status().message;
  };
  EXPECT_THAT(message({.tp = 3}), HasSubstr("--tp-size 3: must divide num_attention_heads, which is 16"));
  EXPECT_THAT(message({.tp = 4, .ep = 3}), HasSubstr("--ep-size 3: must divide --tp-size, which is 4"));
}

TEST(TuneShapes, EveryFormatOfLinears) {
  const ModelConfig lite = preset("v2-lite");
  for (const LoadQuantization quantization :
       {LoadQuantization::kFp8, LoadQuantization::kW8A8Fp8, LoadQuantization::kW8A8Int8,
        LoadQuantization::kBlockwiseInt8}) {
    const WeightType type = weight_type_of(quantization);
    const auto dense = dense_products(lite, quantization, {});
    ASSERT_TRUE(dense.ok());
    const auto of_type = [&](const char* label, WeightType expected) {
      for (const ProductSpec& product : *dense) {
        if (product.label != label) continue;
        EXPECT_EQ(product.name.type, expected) << label;
      }
    };
    of_type("qkv_a", type);
    of_type("down", type);
    of_type("kv_b", type == WeightType::kFp8Block ? type : WeightType::kBF16);
    of_type("lm_head", WeightType::kBF16);
    const auto experts = expert_products(lite, quantization, {});
    ASSERT_TRUE(experts.ok());
    for (const ProductSpec& product : *experts) EXPECT_EQ(product.name.type, type);
  }
  EXPECT_EQ((*dense_products(preset("r1-channel-int8"), LoadQuantization::kNone, {}))[0].name.type,
            WeightType::kInt8Channel);
}

// Every dense and expert shape of every model has something to choose from at decode's batches.
TEST(TuneShapes, HaveChoices) {
  for (const char* name : {"v2-lite", "v2", "v3"}) {
    for (const int64_t tp : {1, 8}) {
      const ModelConfig config = preset(name);
      const auto dense = dense_products(config, LoadQuantization::kNone, {.tp = tp});
      for (const ProductSpec& product : *dense) {
        EXPECT_GT(tune_field(product, 16, 132).candidates.size(), 10) << name << " " << product.label;
        EXPECT_FALSE(tune_field(product, 4096, 132).candidates.empty()) << name << " " << product.label;
      }
      const auto experts = expert_products(config, LoadQuantization::kNone, {.tp = tp});
      for (const ProductSpec& product : *experts) {
        EXPECT_GT(tune_field(product, 16, 132).candidates.size(), 5) << name << " " << product.label;
      }
    }
  }
}

// Times from a table and a clock that measurements move.
class FakeMeasurer final : public ChoiceMeasurer {
 public:
  FakeMeasurer(std::function<double(const cuda::Choice&)> time, double& clock, double seconds_a_replay = 0.01)
      : time_(std::move(time)), clock_(clock), seconds_(seconds_a_replay) {}
  Result<double> measure(const cuda::Choice& choice, int replays) override {
    clock_ += seconds_ * replays;
    replays_[to_string(choice)] += replays;
    // Noise that more replays average out.
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

double landscape(const cuda::Choice& c, const cuda::Choice& best) {
  double time = 10.0;
  time += c.kernel == best.kernel ? 0.0 : 20.0;
  time += 0.5 * std::abs(c.block_m - best.block_m) + 0.2 * std::abs(c.block_n - best.block_n);
  time += 3.0 * std::abs(c.splits - best.splits) + 0.3 * std::abs(c.stages - best.stages);
  return time;
}

class TuneSearch : public ::testing::Test {
 protected:
  SearchOptions options(double seconds, bool every = true) {
    return {.seconds = seconds,
            .every = every,
            .now = [this] { return clock_; },
            .interrupted = [this] { return interrupted_; }};
  }
  double clock_ = 100.0;
  bool interrupted_ = false;
  const cuda::LinearShape shape_{.type = WeightType::kFp8Block, .m = 8, .n = 4096, .k = 7168};
  const std::vector<cuda::Choice> candidates_ = cuda::valid_choices(shape_);
};

TEST_F(TuneSearch, FindsTheFastest) {
  ASSERT_GT(candidates_.size(), 40);
  for (size_t i = 0; i < candidates_.size(); i += 7) {
    const cuda::Choice& best = candidates_[i];
    FakeMeasurer measurer([&](const cuda::Choice& c) { return landscape(c, best); }, clock_);
    const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->chosen().choice, best)
        << to_string(best) << " for " << to_string(result->chosen().choice);
    EXPECT_TRUE(result->complete);
    EXPECT_NEAR(result->chosen().us, 10.0, 0.1);
  }
}

TEST_F(TuneSearch, HopelessOnesAreMeasuredOnce) {
  const cuda::Choice best = candidates_[3];
  FakeMeasurer measurer([&](const cuda::Choice& c) { return landscape(c, best); }, clock_);
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
  ASSERT_TRUE(result.ok());
  int once = 0;
  for (const cuda::Choice& c : candidates_) {
    EXPECT_GE(measurer.replays_of(c), 1) << to_string(c);
    if (landscape(c, best) > 14.0 && c != cuda::heuristic(shape_)) {
      EXPECT_EQ(measurer.replays_of(c), 1) << to_string(c);
      ++once;
    }
  }
  EXPECT_GT(once, 20);
  EXPECT_EQ(measurer.replays_of(best), 1 + 3 + 8);
}

// Times that rise from the best choice on, each field by itself, as kernels' do: found with a fraction of the
// measurements, wherever it is.
TEST_F(TuneSearch, ClimbsToTheFastest) {
  int most = 0;
  for (const cuda::Choice& best : candidates_) {
    const auto time = [&](const cuda::Choice& c) {
      const auto steps = [](int a, int b) { return std::abs(std::log2(static_cast<double>(a) / b)); };
      const double kernel = c.kernel == best.kernel ? 0.0 : 6.0;
      if (best.stages == 0 || c.stages == 0) return 10.0 + kernel;
      return 10.0 + kernel + 1.5 * steps(c.block_m, best.block_m) + 2.0 * steps(c.block_n, best.block_n) +
             2.5 * steps(c.splits, best.splits) + 0.8 * steps(c.stages, best.stages);
    };
    FakeMeasurer measurer(time, clock_);
    const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9, false));
    ASSERT_TRUE(result.ok());
    EXPECT_LT(result->chosen().us, 10.0 * 1.05)
        << to_string(best) << ", found " << to_string(result->chosen().choice);
    int distinct = 0;
    for (const cuda::Choice& c : candidates_) distinct += measurer.replays_of(c) > 0 ? 1 : 0;
    most = std::max(most, distinct);
  }
  EXPECT_LT(most, static_cast<int>(candidates_.size()) * 3 / 4);
}

// What a similar shape chose is tried where it stands alone among slow ones.
TEST_F(TuneSearch, TriesWhatIsLikely) {
  const cuda::Choice hidden = candidates_[candidates_.size() - 2];
  const auto time = [&](const cuda::Choice& c) { return c == hidden ? 5.0 : 10.0; };
  FakeMeasurer measurer(time, clock_);
  SearchOptions with = options(1e9, false);
  with.likely = {hidden, cuda::parse_choice("skinny 48x64 stages 4").value()};
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, with);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chosen().choice, hidden);
  EXPECT_EQ(measurer.replays_of(with.likely[1]), 0) << "no candidate";
}

TEST_F(TuneSearch, TheHeuristicStaysWhereNothingIsClearlyFaster) {
  FakeMeasurer measurer([](const cuda::Choice&) { return 10.0; }, clock_);
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chosen().choice, cuda::heuristic(shape_));
}

// Whenever it is cut short: once a round is finished, its clear winner is what was found.
TEST_F(TuneSearch, KeepsToItsTime) {
  const cuda::Choice best = candidates_.back();
  const cuda::Choice heuristic = cuda::heuristic(shape_);
  ASSERT_NE(best, heuristic);
  int unfinished = 0, right_after_the_heuristic = 0, complete = 0;
  const int enough = 2 * static_cast<int>(candidates_.size());
  for (int budget = 0; budget < enough; ++budget) {
    const double seconds = 0.005 + 0.01 * budget;
    clock_ = 0.0;
    FakeMeasurer measurer(
        [&](const cuda::Choice& c) { return c == best        ? 10.0
                                            : c == heuristic ? 12.0
                                                             : 12.5; }, clock_);
    const auto result = find_fastest(candidates_, heuristic, measurer, options(seconds));
    ASSERT_TRUE(result.ok());
    EXPECT_LE(clock_, seconds + 0.12 + 1e-9) << "no measurement begins after the end";
    ASSERT_FALSE(result->ranking.empty()) << "the heuristic's choice at least";
    complete += result->complete ? 1 : 0;
    if (result->num_rounds == 0) {
      ++unfinished;
      continue;
    }
    EXPECT_EQ(result->chosen().choice, best) << seconds;
    EXPECT_NEAR(result->heuristic_us, 12.0, 12.0 * 0.04) << seconds;
    const size_t once =
        candidates_.size() + (std::count(candidates_.begin(), candidates_.end(), heuristic) ? 0 : 1);
    right_after_the_heuristic += static_cast<size_t>(result->num_measurements) == once + 1 ? 1 : 0;
  }
  EXPECT_GT(unfinished, 0);
  EXPECT_GT(right_after_the_heuristic, 0);
  EXPECT_GT(complete, 0);
}

TEST_F(TuneSearch, EndsWhenTheUserDoes) {
  int left = 10;
  FakeMeasurer measurer(
      [&](const cuda::Choice&) {
        interrupted_ = --left == 0;
        return 10.0;
      },
      clock_);
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->num_measurements, 10);
  EXPECT_FALSE(result->complete);
  EXPECT_EQ(result->num_rounds, 0);
}

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

// What an engine without files runs: rows of gate_up are gathered until many an expert are worth sorting.
TEST_F(Tuning, JudgesGateUpByTheGatheringKernelWhereRowsAreFew) {
  for (const ProductSpec& product : products_) {
    if (product.name.num_experts == 0) continue;
    EXPECT_EQ(tune_field(product, 64, 132).heuristic.kernel,
              product.name.down ? cuda::ProductKernel::kTiled : cuda::ProductKernel::kSkinny);
    EXPECT_EQ(tune_field(product, 4096, 132).heuristic.kernel, cuda::ProductKernel::kTiled);
  }
}

TEST_F(Tuning, LinearsThatACheckpointLeavesOutAreBf16) {
  ModelConfig v3 = preset("v3");
  const auto types_of = [&](const char* label) {
    std::vector<WeightType> types;
    std::vector<ProductSpec> all = *dense_products(v3, LoadQuantization::kNone, {});
    const auto experts = *expert_products(v3, LoadQuantization::kNone, {});
    all.insert(all.end(), experts.begin(), experts.end());
    for (const ProductSpec& product : all) {
      if (product.label == label) types.push_back(product.name.type);
    }
    return types;
  };
  using Types = std::vector<WeightType>;
  const Types codes = {WeightType::kFp8Block};
  const Types both = {WeightType::kFp8Block, WeightType::kBF16};
  EXPECT_EQ(types_of("o_proj"), codes);
  EXPECT_EQ(types_of("experts gate_up"), codes);
  v3.quantization->unquantised =
      ModuleList::parse({"model.layers.5.self_attn.o_proj", "shared_experts.up_proj"}).value();
  EXPECT_EQ(types_of("o_proj"), both);
  EXPECT_EQ(types_of("qkv_a"), codes);
  EXPECT_EQ(types_of("experts gate_up"), Types{WeightType::kBF16});
  EXPECT_EQ(types_of("experts down"), codes);
}

TEST_F(Tuning, WritesFilesThatAreLoadedAsFound) {
  const auto report = tune(products_, batches_, source_, options_);
  ASSERT_TRUE(report.ok()) << report.status().message;
  EXPECT_EQ(report->num_kept + report->num_left, 0);
  EXPECT_EQ(report->rows.size() + report->num_single, products_.size() * batches_.size());
  EXPECT_EQ(num_progress_, static_cast<int>(report->rows.size()));
  const auto choices = load_kernel_configs(std::vector{options_.output_dir}, "NVIDIA H200", 132);
  ASSERT_TRUE(choices.ok()) << choices.status().message;
  for (const TuneRow& row : report->rows) {
    const ProductSpec& product = *row.product;
    TuneField field = tune_field(product, row.batch, 132);
    // Measured with them.
    if (std::find(field.candidates.begin(), field.candidates.end(), field.heuristic) ==
        field.candidates.end())
      field.candidates.push_back(field.heuristic);
    const cuda::Choice fastest = FakeSource::best_of(field.candidates);
    const bool changes =
        landscape(fastest, fastest) < landscape(field.heuristic, fastest) * (1.0 - kWorthChanging);
    const cuda::Choice best = changes ? fastest : field.heuristic;
    if (product.name.num_experts > 0) {
      EXPECT_EQ(choices->grouped.find(
                    grouped_shape_of(product.name, product.hidden_size, product.rows(row.batch), 132)),
                best);
    } else {
      cuda::LinearShape shape = linear_shape_of(product.name, row.batch, 132);
      shape.f32_y = product.f32_y;
      EXPECT_EQ(choices->linear.find(shape), best) << product.label << " " << row.batch;
    }
  }
  EXPECT_EQ(choices->linear.num_shapes() + choices->grouped.num_shapes(), report->files.size());
}

// Sizes between others are compared only, and only where what is around them differs.
TEST_F(Tuning, ComparesBetweenWhatDiffers) {
  options_.compare_between = true;
  std::map<int64_t, std::vector<std::string>> measured;
  source_.on_measure = [&](int64_t batch, const cuda::Choice& c) { measured[batch].push_back(to_string(c)); };
  // Tiles of 64 columns up to 4 tokens, of 128 for 8; the heuristic's are others.
  source_.best = [](int64_t batch, const std::vector<cuda::Choice>& candidates) {
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const cuda::Choice& c) {
      return c.kernel == cuda::ProductKernel::kSkinny && c.block_n == (batch <= 4 ? 64 : 128) &&
             c.splits == 4;
    });
    EXPECT_NE(found, candidates.end()) << batch;
    return *found;
  };
  const std::vector<ProductSpec> product(1, products_[3]);  // o_proj
  const std::vector<int64_t> batches = {1, 2, 4, 8, 16, 24, 32, 48, 64};
  const auto report = tune(product, {1, 4, 8}, source_, options_);
  ASSERT_TRUE(report.ok()) << report.status().message;
  KernelConfigName name = product[0].name;
  name.device = source_.device_name();
  const auto stored = read_kernel_config(options_.output_dir, name);
  ASSERT_TRUE(stored.ok());
  std::map<int64_t, std::string> choices;
  for (const KernelConfigEntry& entry : stored->entries) choices[entry.batch] = to_string(entry.choice);
  ASSERT_EQ(choices.size(), 3);
  EXPECT_EQ(choices[4], choices[1]);
  EXPECT_NE(choices[8], choices[1]);
  const std::set<std::string> compared(measured[4].begin(), measured[4].end());
  EXPECT_LE(compared.size(), 3) << "both neighbours' and the heuristic's";
  EXPECT_EQ(tune(product, {1, 4, 8}, source_, options_)->num_kept, 3);

  // All choose the heuristic's: nothing is left to compare.
  std::filesystem::remove_all(options_.output_dir);
  source_.best = [&](int64_t batch, const std::vector<cuda::Choice>&) {
    return tune_field(product[0], batch, 132).heuristic;
  };
  measured.clear();
  const auto equal = tune(product, batches, source_, options_);
  EXPECT_EQ(equal->num_agreeing, 4);
  EXPECT_EQ(equal->rows.size(), 5);
  EXPECT_EQ(measured.count(2) + measured.count(4) + measured.count(24) + measured.count(48), 0);
}

TEST_F(Tuning, SaysHowFarTheHeuristicIs) {
  const auto row = [&](double heuristic_us, double best_us, bool complete = true) {
    TuneRow r{.product = &products_[3], .batch = 16};
    r.result.heuristic = cuda::parse_choice("skinny 16x64 stages 4").value();
    const cuda::Choice best = cuda::parse_choice("thin 16x16").value();
    r.result.ranking = {{best, best_us, 8}, {r.result.heuristic, heuristic_us, 8}};
    r.result.heuristic_us = heuristic_us;
    r.result.complete = complete;
    return r;
  };
  TuneReport report;
  EXPECT_EQ(verdict_text(report), "");
  report.rows = {row(10.4, 10.0), row(10.05, 10.0), row(15.0, 10.0), row(90.0, 10.0, false)};
  EXPECT_EQ(verdict_text(report),
            "heuristic within 5 % of tuned: 2 of 3 rows, worst 50.0 % (o_proj 7168 x 2048 m 16: "
            "skinny 16x64 stages 4, tuned thin 16x16)\n");
  report.rows.push_back(row(99.0, 10.0));
  report.rows.back().between = true;
  EXPECT_THAT(verdict_text(report), HasSubstr("2 of 3 rows, worst 50.0 %")) << "only compared";
  report.num_left = 7;
  EXPECT_THAT(report_text(report), AllOf(HasSubstr("(search cut short)"), HasSubstr("left 7")));
}

TEST_F(Tuning, DryRunsSayHowLong) {
  const auto seconds = [&](bool every, const std::vector<int64_t>& batches) {
    options_.every = every;
    const std::string text = dry_run_text(products_, batches, options_, 132);
    const size_t at = text.find("expected to take ");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + 17));
  };
  const std::vector<int64_t> standard(std::begin(kTunedBatches), std::end(kTunedBatches));
  const double quick = seconds(false, standard);
  EXPECT_GT(quick, 1.0);
  EXPECT_LT(quick, 60.0);
  EXPECT_GT(seconds(true, standard), 1.5 * quick);
  options_.compare_between = true;
  EXPECT_LT(seconds(false, standard), quick);
}

TEST_F(Tuning, DryRunsSayWhatTheDirectoryHas) {
  const auto text = [&] { return dry_run_text(products_, {1, 16}, options_, 132); };
  EXPECT_THAT(text(), AllOf(HasSubstr(" choices for 10 products at 2 batch sizes, on 132"),
                            Not(HasSubstr("a run on"))));
  EXPECT_FALSE(std::filesystem::exists(options_.output_dir));
  ASSERT_TRUE(tune({products_[0]}, {1}, source_, options_).ok());
  EXPECT_THAT(text(), HasSubstr("a run on NVIDIA_H200 would keep the choices of 1 of these 20 lines"));
  options_.again = true;
  EXPECT_THAT(text(), Not(HasSubstr("a run on")));
  KernelConfigName name = products_[1].name;
  name.device = "NVIDIA H100 PCIe";
  std::ofstream(options_.output_dir / file_name(name)) << "{no json";
  EXPECT_THAT(text(), HasSubstr("a run on NVIDIA_H100_PCIe would be refused: "));
  EXPECT_THAT(text(), Not(HasSubstr("a run on NVIDIA_H200")));
  std::filesystem::remove(options_.output_dir / file_name(name));
  std::filesystem::create_directory(options_.output_dir / file_name(name));
  EXPECT_THAT(text(), HasSubstr("a run on NVIDIA_H100_PCIe would be refused: "));
}

// Its file ends with _down.json, which is no part of the card's name.
TEST_F(Tuning, DryRunsKnowTheCardOfExpertsDown) {
  const auto experts = expert_products(preset("v2-lite"), LoadQuantization::kNone, {});
  ASSERT_TRUE(experts.ok()) << experts.status().message;
  const auto down = std::find_if(experts->begin(), experts->end(),
                                 [](const ProductSpec& product) { return product.name.down; });
  ASSERT_NE(down, experts->end());
  ASSERT_TRUE(tune({*down}, {1}, source_, options_).ok());
  const std::string text = dry_run_text({*down}, {1}, options_, 132);
  EXPECT_THAT(text, HasSubstr("a run on NVIDIA_H200 would keep the choices of 1 of these"));
  EXPECT_THAT(text, Not(HasSubstr("NVIDIA_H200_down would")));
}

TEST(TuneFields, AreWithoutFloat32ProductsOfManyOutputs) {
  const auto v2 = dense_products(preset("v2"), LoadQuantization::kNone, {});
  for (const ProductSpec& product : *v2) {
    for (const int64_t batch : {1, 4096}) {
      const TuneField field = tune_field(product, batch, 132);
      const bool tried = std::any_of(field.candidates.begin(), field.candidates.end(),
                                     [](const auto& c) { return c.kernel == cuda::ProductKernel::kRouter; });
      EXPECT_EQ(tried, product.name.n * batch <= 65536) << product.label << " " << batch;
    }
  }
}

TEST_F(Tuning, GoesOnWhereItWasInterrupted) {
  interrupt_after_ = 5;
  const auto first = tune(products_, batches_, source_, options_);
  ASSERT_TRUE(first.ok()) << first.status().message;
  EXPECT_EQ(first->rows.size(), 5);
  EXPECT_GT(first->num_left, 0);
  interrupt_after_ = -1;
  source_.num_opened = 0;
  const auto second = tune(products_, batches_, source_, options_);
  ASSERT_TRUE(second.ok()) << second.status().message;
  EXPECT_EQ(second->num_kept, 5);
  EXPECT_EQ(second->rows.size(), first->num_left);
  source_.num_opened = 0;
  const auto third = tune(products_, batches_, source_, options_);
  EXPECT_THAT(third->rows, IsEmpty());
  EXPECT_EQ(source_.num_opened, 0);
  options_.again = true;
  EXPECT_EQ(tune(products_, batches_, source_, options_)->rows.size(), 5 + second->rows.size());
}

TEST_F(Tuning, StaysWithinItsTime) {
  source_.seconds_a_replay = 0.05;  // far more work than time
  options_.seconds = 60.0;
  const auto report = tune(products_, batches_, source_, options_);
  ASSERT_TRUE(report.ok()) << report.status().message;
  EXPECT_LE(clock_, 60.0 + 1.0);
  EXPECT_GT(report->num_left + report->num_incomplete, 0);
  EXPECT_EQ(report->rows.size() + report->num_left + report->num_single, products_.size() * batches_.size());
  EXPECT_GT(report->rows.size(), 0);
  for (const TuneRow& row : report->rows) EXPECT_GE(row.result.num_rounds, 1);
}

TEST_F(Tuning, WhatWasFoundBeforeAFailureStays) {
  source_.fail_at = 4;
  const auto report = tune(products_, batches_, source_, options_);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().message, "no room");
  const auto choices = load_kernel_configs(std::vector{options_.output_dir}, "NVIDIA H200", 132);
  ASSERT_TRUE(choices.ok());
  EXPECT_FALSE(choices->empty());
}

TEST_F(Tuning, LeavesWhatIsNotItsOwn) {
  std::filesystem::create_directories(options_.output_dir);
  KernelConfigName name = products_[0].name;
  name.device = source_.device_name();
  const std::filesystem::path path = options_.output_dir / file_name(name);
  std::ofstream(path) << R"({"triton_version": "3.5.1", "4096": {"BLOCK_SIZE_M": 64},
                             "32": {"kernel": "woven"}, "16": {"kernel": "woven"}})";
  const auto report = tune(products_, batches_, source_, options_);
  ASSERT_TRUE(report.ok()) << report.status().message;
  EXPECT_EQ(report->num_kept, 1) << "a later version's for one of the batch sizes";
  const std::string text = read_text_file(path, 1 << 20).value();
  for (const char* kept :
       {"\"triton_version\": \"3.5.1\"", "\"4096\": {\n        \"BLOCK_SIZE_M\": 64\n    }",
        "\"32\": {\n        \"kernel\": \"woven\"", "\"16\": {\n        \"kernel\": \"woven\""}) {
    EXPECT_THAT(text, HasSubstr(kept));
  }
  EXPECT_EQ(read_kernel_config(options_.output_dir, name)->entries.size(), 2) << "1 and 256";
  source_.num_opened = 0;
  EXPECT_THAT(tune(products_, {1, 4096}, source_, options_).status().message,
              HasSubstr(file_name(name) + ": \"4096\" is an entry of another tool"));
  EXPECT_EQ(source_.num_opened, 0) << "said before anything is measured";
}

// Experts of equal number and intermediate size have one file, whatever the model's hidden size.
TEST_F(Tuning, ExpertsOfAnotherModelAreNotOverwritten) {
  const auto experts = [](int64_t hidden, int64_t top_k) {
    return expert_products_of(WeightType::kFp8Block, 64, 256, hidden, top_k);
  };
  ASSERT_TRUE(tune(experts(7168, 8), batches_, source_, options_).ok());
  source_.num_opened = 0;
  for (const bool again : {false, true}) {
    options_.again = again;
    EXPECT_THAT(
        tune(experts(5120, 8), batches_, source_, options_).status().message,
        HasSubstr(
            "[128, 128].json: \"1\": hidden_size is 7168, of another model's experts; here it is 5120"));
    EXPECT_THAT(tune(experts(7168, 6), {16}, source_, options_).status().message,
                HasSubstr("\"16\": rows is 128, of another model's experts; here it is 96"));
  }
  EXPECT_EQ(source_.num_opened, 0);
  options_.again = false;
  const auto same = tune(experts(7168, 8), batches_, source_, options_);
  ASSERT_TRUE(same.ok()) << same.status().message;
  EXPECT_EQ(same->num_kept, 6);
  EXPECT_TRUE(tune(experts(5120, 8), {32}, source_, options_).ok()) << "another batch size has room";
}

// A choice that the kernels no longer have, or that does not take the product, is measured anew.
TEST_F(Tuning, WhatNoLongerFitsIsMeasuredAnew) {
  std::filesystem::create_directories(options_.output_dir);
  KernelConfigName name = products_[0].name;
  name.device = source_.device_name();
  const cuda::Choice stale = cuda::parse_choice("skinny 48x64 stages 4").value();
  const cuda::Choice good = cuda::parse_choice("skinny 8x64 splits 4 stages 4").value();
  const std::vector<KernelConfigEntry> entries = {{.batch = 1, .choice = good},
                                                  {.batch = 16, .choice = stale}};
  ASSERT_TRUE(write_kernel_config(options_.output_dir, name, entries).ok());
  const auto report = tune({products_[0]}, {1, 16}, source_, options_);
  ASSERT_TRUE(report.ok()) << report.status().message;
  EXPECT_EQ(report->num_kept, 1);
  const auto stored = read_kernel_config(options_.output_dir, name);
  ASSERT_EQ(stored->entries.size(), 2);
  EXPECT_EQ(stored->entries[0].choice, good);
  EXPECT_NE(stored->entries[1].choice, stale);
}

TEST_F(Tuning, RefusesADirectoryThatCannotBeWritten) {
  options_.output_dir = "/proc/hadal";
  EXPECT_THAT(tune(products_, batches_, source_, options_).status().message,
              HasSubstr("--output-dir /proc/hadal"));
  EXPECT_EQ(source_.num_opened, 0);
  EXPECT_FALSE(check_output_dir("/proc/hadal").ok());
  const std::filesystem::path none =
      std::filesystem::temp_directory_path() / ("hadal-none-" + std::to_string(std::random_device{}()));
  EXPECT_TRUE(check_output_dir(none / "hadal").ok());
  EXPECT_FALSE(std::filesystem::exists(none)) << "only looked at";
}

}  // namespace
}  // namespace hadal
