// Tests the texts of tuning: reports, the verdict on the heuristic, and dry runs.
#include "tune/tune_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/tune/fake_measurer.h"

namespace hadal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Tuning, ReportsHowFarTheHeuristicIs) {
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
  EXPECT_THAT(verdict_text(report), HasSubstr("2 of 3 rows, worst 50.0 %"))
      << "the other row was only compared";
  report.num_left = 7;
  EXPECT_THAT(report_text(report), AllOf(HasSubstr("(search cut short)"), HasSubstr("left 7")));
}

TEST_F(Tuning, DryRunsEstimateTheTime) {
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

TEST_F(Tuning, DryRunsReportTheDirectorysContents) {
  const auto text = [&] { return dry_run_text(products_, {1, 16}, options_, 132); };
  EXPECT_THAT(text(), AllOf(HasSubstr(" choices for 11 products at 2 batch sizes, on 132"),
                            Not(HasSubstr("a run on"))));
  EXPECT_FALSE(std::filesystem::exists(options_.output_dir));
  ASSERT_TRUE(tune({products_[0]}, {1}, source_, options_).ok());
  EXPECT_THAT(text(), HasSubstr("a run on NVIDIA_H200 would keep the choices of 1 of these 22 lines"));
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

// The file of expert down projections ends with _down.json, which is not part of the card's name.
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

}  // namespace
}  // namespace hadal
