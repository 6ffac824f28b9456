// Tests whole tuning runs over products with files, without a GPU.
#include "tune/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "base/mapped_file.h"
#include "tests/tune/fake_measurer.h"

namespace hadal {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An engine without files gathers rows of gate_up until there are enough per expert for sorting to be faster.
TEST_F(Tuning, ComparesGateUpWithTheGatheringKernelIfRowsAreFew) {
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

TEST_F(Tuning, WritesFilesThatLoadTheChoicesFound) {
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
    // The heuristic's choice is measured with the candidates.
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

// Sizes between others are only compared, and only if the choices around them differ.
TEST_F(Tuning, ComparesSizesBetweenDifferingChoices) {
  options_.compare_between = true;
  std::map<int64_t, std::vector<std::string>> measured;
  source_.on_measure = [&](int64_t batch, const cuda::Choice& c) { measured[batch].push_back(to_string(c)); };
  // The best tiles have 64 columns up to 4 tokens and 128 columns for 8 tokens; the heuristic chooses others.
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
  EXPECT_LE(compared.size(), 3) << "those of both neighbours and the heuristic's";
  EXPECT_EQ(tune(product, {1, 4, 8}, source_, options_)->num_kept, 3);

  // The heuristic's choice is the best at all sizes, so nothing is left to compare.
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

TEST_F(Tuning, ResumesWhereItWasInterrupted) {
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

TEST_F(Tuning, StopsAtItsTimeLimit) {
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

TEST_F(Tuning, ResultsBeforeAFailureAreKept) {
  source_.fail_at = 4;
  const auto report = tune(products_, batches_, source_, options_);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().message, "no room");
  const auto choices = load_kernel_configs(std::vector{options_.output_dir}, "NVIDIA H200", 132);
  ASSERT_TRUE(choices.ok());
  EXPECT_FALSE(choices->empty());
}

TEST_F(Tuning, KeepsEntriesOfOtherToolsAndVersions) {
  std::filesystem::create_directories(options_.output_dir);
  KernelConfigName name = products_[0].name;
  name.device = source_.device_name();
  const std::filesystem::path path = options_.output_dir / file_name(name);
  std::ofstream(path) << R"({"triton_version": "3.5.1", "4096": {"BLOCK_SIZE_M": 64},
                             "32": {"kernel": "woven"}, "16": {"kernel": "woven"}})";
  const auto report = tune(products_, batches_, source_, options_);
  ASSERT_TRUE(report.ok()) << report.status().message;
  EXPECT_EQ(report->num_kept, 1) << "an entry of a later version for one of the batch sizes";
  const std::string text = read_text_file(path, 1 << 20).value();
  for (const char* kept :
       {"\"triton_version\": \"3.5.1\"", "\"4096\": {\n        \"BLOCK_SIZE_M\": 64\n    }",
        "\"32\": {\n        \"kernel\": \"woven\"", "\"16\": {\n        \"kernel\": \"woven\""}) {
    EXPECT_THAT(text, HasSubstr(kept));
  }
  EXPECT_EQ(read_kernel_config(options_.output_dir, name)->entries.size(), 2) << "1 and 256";
  source_.num_opened = 0;
  EXPECT_THAT(tune(products_, {1, 4096}, source_, options_).status().message,
              HasSubstr(file_name(name) + ": \"4096\" was written by another tool"));
  EXPECT_EQ(source_.num_opened, 0) << "it is refused before anything is measured";
}

// Experts with the same number and intermediate size share one file, whatever the model's hidden size.
TEST_F(Tuning, ExpertsOfAnotherModelAreNotOverwritten) {
  const auto experts = [](int64_t hidden, int64_t top_k) {
    return expert_products_of(WeightType::kFp8Block, 64, 256, hidden, top_k);
  };
  ASSERT_TRUE(tune(experts(7168, 8), batches_, source_, options_).ok());
  source_.num_opened = 0;
  for (const bool again : {false, true}) {
    options_.again = again;
    EXPECT_THAT(tune(experts(5120, 8), batches_, source_, options_).status().message,
                HasSubstr("[128, 128].json: \"1\": hidden_size is 7168, which belongs to another model's "
                          "experts; must be 5120"));
    EXPECT_THAT(tune(experts(7168, 6), {16}, source_, options_).status().message,
                HasSubstr("\"16\": rows is 128, which belongs to another model's experts; must be 96"));
  }
  EXPECT_EQ(source_.num_opened, 0);
  options_.again = false;
  const auto same = tune(experts(7168, 8), batches_, source_, options_);
  ASSERT_TRUE(same.ok()) << same.status().message;
  EXPECT_EQ(same->num_kept, 6);
  EXPECT_TRUE(tune(experts(5120, 8), {32}, source_, options_).ok()) << "another batch size has no conflict";
}

// A choice whose kernel no longer exists, or that does not support the product, is measured again.
TEST_F(Tuning, ChoicesThatNoLongerFitAreMeasuredAgain) {
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
  EXPECT_FALSE(std::filesystem::exists(none)) << "the directory is not created";
}

}  // namespace
}  // namespace hadal
