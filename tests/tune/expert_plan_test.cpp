// Tests which kernels run a layer's experts (kernels/cuda/experts/plan.h): against a record at the models'
// shapes, the order of the decisions one by one, and the workspace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "kernels/cuda/experts/few/choice.h"
#include "kernels/cuda/experts/plan.h"
#include "model/presets.h"
#include "tests/source_dir.h"
#include "tests/tune/graph_sizes.h"
#include "tune/kernel_config.h"
#include "tune/tune_shapes.h"

namespace hadal::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMostTokens = 4096;
constexpr WeightType kExpertTypes[] = {WeightType::kBF16,      WeightType::kF16,
                                       WeightType::kFp8Block,  WeightType::kFp8Channel,
                                       WeightType::kInt8Block, WeightType::kInt8Channel};
constexpr const char* kExpertTypeNames[] = {"bf16",        "f16",        "fp8_block",
                                            "fp8_channel", "int8_block", "int8_channel"};
constexpr const char* kModels[] = {"v2-lite", "v2", "v3", "tiny"};

constexpr ModelSplit kSplits[] = {{.tp = 1}, {.tp = 2},          {.tp = 4},
                                  {.tp = 8}, {.tp = 4, .ep = 2}, {.tp = 8, .ep = 8}};

struct Mode {
  const char* name;
  ExpertsFlags flags;
};
constexpr Mode kModes[] = {
    {"fused", {}}, {"--disable-fusion", {.fusion = false}}, {"--kernels reference", {.reference = true}}};

ExpertsShape shape_of(const std::string& model, ModelSplit split, WeightType type) {
  const std::string tiny = source_dir() + "/models/hadal-tiny/config.json";
  const auto text = model == "tiny" ? read_text_file(tiny, size_t{1} << 20) : preset_config_json(model);
  const auto config = parse_model_config(text.value(), model);
  const WeightType plain = type == WeightType::kF16 ? type : WeightType::kBF16;
  ExpertsShape shape =
      expert_layer_shapes(config.value(), LoadQuantization::kNone, plain, split).value().front();
  shape.gate_up = shape.down = type;
  shape.gate = plain;
  return shape;
}

// Returns the choices that come with the program for one H200.
const ProductChoices& shipped() {
  static const ProductChoices choices = [] {
    const std::vector<std::filesystem::path> dirs = {source_dir() + "/share/kernel-configs"};
    return load_kernel_configs(dirs, "NVIDIA H200", 132).value();
  }();
  return choices;
}

// Returns the kernels without sizes, for plans of different numbers of tokens that run the same kernels.
std::string kernels_text(const ExpertsPlan& plan) {
  std::string text;
  for (const ExpertsKernel& kernel : plan.kernels) {
    const std::string name = kernel_text(kernel);
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", to_string(kernel.op), name.empty() ? "" : " ",
                        name);
  }
  return text;
}

// Returns "1 few …; 9 router …": each list of kernels after the smallest number of tokens that has it.
std::string runs_of_plans(ExpertsShape shape, const ProductChoices* measured, const ExpertsFlags& flags) {
  std::string text;
  std::string last;
  for (shape.tokens = 1; shape.tokens <= kMostTokens; ++shape.tokens) {
    const std::string kernels = kernels_text(plan_experts(shape, measured, flags));
    if (kernels == last) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", shape.tokens, kernels);
    last = kernels;
  }
  return text;
}

// Calls visit(label, shape, measured, flags) for every model, type, split, mode and source of choices.
template <typename Visit>
void for_every_case(const Visit& visit) {
  for (const char* model : kModels) {
    for (size_t type = 0; type < std::size(kExpertTypes); ++type) {
      for (const ModelSplit split : kSplits) {
        if (std::string_view(model) == "tiny" && split.tp > 2) continue;
        const ExpertsShape shape = shape_of(model, split, kExpertTypes[type]);
        const std::string ep = split.ep == 1 ? "" : fmt::format(" ep{}", split.ep);
        for (const Mode& mode : kModes) {
          for (const bool measured : {false, true}) {
            visit(fmt::format("{} {} tp{}{} {}{}", model, kExpertTypeNames[type], split.tp, ep, mode.name,
                              measured ? " measured" : ""),
                  shape, measured ? &shipped() : nullptr, mode.flags);
          }
        }
      }
    }
  }
}

// Computes FNV-1a.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

// expert_plans.txt has one line for each case: the kernels of the published models in their own formats, and
// a hash of them for all other cases. The test writes what it found to a file of the same name.
TEST(ExpertPlan, KernelsAreAsRecorded) {
  std::ostringstream found;
  for_every_case([&](const std::string& label, const ExpertsShape& shape, const ProductChoices* measured,
                     const ExpertsFlags& flags) {
    const std::string text = runs_of_plans(shape, measured, flags);
    const bool own_format = label.starts_with("v3 fp8_block tp") || label.starts_with("v2-lite bf16 tp1") ||
                            label.starts_with("tiny bf16 tp1 ");
    found << label << ": " << (own_format ? text : fmt::format("{:016x}", hash_of(text))) << "\n";
  });
  const std::string path = ::testing::TempDir() + "/expert_plans.txt";
  std::ofstream(path) << found.str();
  const auto recorded = read_text_file(source_dir() + "/tests/tune/expert_plans.txt", size_t{8} << 20);
  ASSERT_TRUE(recorded.ok()) << recorded.status().message;
  EXPECT_TRUE(found.str() == *recorded)
      << "the plans differ from tests/tune/expert_plans.txt; compare it with " << path;
}

// Every kernel of a plan supports its shape, and padding a batch to a default size of a graph changes no
// kernel.
TEST(ExpertPlan, KernelsSupportTheirShapesAndPaddingChangesNone) {
  const std::vector<testing::GraphSizes> all_graphs = {testing::GraphSizes(4096), testing::GraphSizes(1469)};
  for_every_case([&](const std::string& label, ExpertsShape shape, const ProductChoices* measured,
                     const ExpertsFlags& flags) {
    for (shape.tokens = 1; shape.tokens <= kMostTokens; shape.tokens += 1 + shape.tokens / 8) {
      const ExpertsPlan plan = plan_experts(shape, measured, flags);
      for (const ExpertsKernel& kernel : plan.kernels) {
        const bool down = kernel.op == ExpertsOp::kDown;
        if (kernel.op == ExpertsOp::kFewExperts) {
          ASSERT_TRUE(few::supports(shape, kernel.choice.splits)) << label << " " << shape.tokens;
        } else if (kernel.op == ExpertsOp::kRoute) {
          ASSERT_TRUE(supports(kernel.route, shape)) << label << " " << shape.tokens;
        } else if (down || kernel.op == ExpertsOp::kGateUp || kernel.op == ExpertsOp::kGateUpActivated) {
          const GroupedShape product{.type = down ? shape.down : shape.gate_up,
                                     .num_rows = kernel.rows,
                                     .rows_per_token = shape.num_slots(),
                                     .num_experts = shape.num_held_experts(),
                                     .n = down ? shape.hidden : 2 * shape.intermediate,
                                     .k = kernel.k,
                                     .gathered = kernel.gathered};
          ASSERT_TRUE(supports(kernel.choice, product)) << label << " " << shape.tokens;
        }
      }
      // Float16 skips measured choices that it is not compiled for, which leaves gaps in the table.
      if (measured != nullptr && shape.gate_up == WeightType::kF16) continue;
      for (const testing::GraphSizes& graphs : all_graphs) {
        if (shape.tokens > graphs.largest()) continue;
        ExpertsShape padded = shape;
        padded.tokens = graphs.padded(shape.tokens);
        const ExpertsPlan larger = plan_experts(padded, measured, flags);
        ASSERT_EQ(larger.kernels.size(), plan.kernels.size()) << label << " " << shape.tokens;
        for (size_t i = 0; i < plan.kernels.size(); ++i) {
          ASSERT_EQ(larger.kernels[i].op, plan.kernels[i].op) << label << " " << shape.tokens;
          if (plan.kernels[i].op == ExpertsOp::kRouter) continue;  // a linear, which has borders of its own
          ASSERT_EQ(larger.kernels[i].choice, plan.kernels[i].choice) << label << " " << shape.tokens;
        }
      }
    }
  });
}

// The workspace for any number of tokens holds every smaller batch.
TEST(ExpertPlan, WorkspaceHoldsEverySmallerBatch) {
  for_every_case([&](const std::string& label, ExpertsShape shape, const ProductChoices* measured,
                     const ExpertsFlags& flags) {
    size_t most_so_far = 0;
    for (int64_t tokens = 1; tokens <= kMostTokens; tokens += 1 + tokens / 16) {
      shape.tokens = tokens;
      most_so_far = std::max(most_so_far, plan_experts(shape, measured, flags).workspace.bytes);
      ASSERT_GE(experts_workspace_bytes(shape, measured, flags), most_so_far) << label << " " << tokens;
    }
  });
}

// Regions of one plan do not overlap, and all of them end inside the workspace.
TEST(ExpertPlan, RegionsOfTheWorkspaceAreApart) {
  for_every_case([&](const std::string& label, ExpertsShape shape, const ProductChoices* measured,
                     const ExpertsFlags& flags) {
    for (const int64_t tokens : {1, 8, 9, 100, 300, 4096}) {
      shape.tokens = tokens;
      const ExpertsWorkspace w = plan_experts(shape, measured, flags).workspace;
      const auto rows = static_cast<size_t>(shape.num_rows());
      const auto inner = static_cast<size_t>(shape.intermediate);
      const auto outer = static_cast<size_t>(shape.hidden);
      const bool codes = has_scales(shape.gate_up);
      std::vector<std::pair<size_t, size_t>> regions;
      const auto add = [&](size_t begin, size_t bytes) {
        if (begin != ExpertsWorkspace::kNone) regions.emplace_back(begin, begin + bytes);
      };
      add(w.topk_ids, rows * 4);
      add(w.token_of, rows * 4);
      add(w.expert_offsets, static_cast<size_t>(shape.num_all_experts() + 1) * 4);
      add(w.few_scratch, few::scratch_bytes(shape, few::splits_of(shape)));
      add(w.router_logits, static_cast<size_t>(tokens * shape.num_experts) * 4);
      add(w.route_scratch, route_scratch_bytes(tokens, shape.num_all_experts()));
      const bool columns = w.gate_up == ExpertsWorkspace::kNone;
      add(w.sorted.x, (columns ? static_cast<size_t>(tokens * shape.top_k) : rows) * outer * 2);
      add(w.sorted.codes, rows * outer);
      add(w.gate_up, rows * inner * 4);
      add(w.activated.x, rows * inner * 2);
      add(w.activated.codes, rows * inner);
      for (const size_t scales : {w.sorted.scales, w.activated.scales}) {
        EXPECT_EQ(scales != ExpertsWorkspace::kNone,
                  codes && (scales == w.activated.scales ? w.activated.codes : w.sorted.codes) !=
                               ExpertsWorkspace::kNone)
            << label;
        add(scales, rows * 4);
      }
      std::sort(regions.begin(), regions.end());
      for (size_t i = 0; i < regions.size(); ++i) {
        ASSERT_EQ(regions[i].first % 256, 0) << label;
        ASSERT_LE(regions[i].second, i + 1 < regions.size() ? regions[i + 1].first : w.bytes)
            << label << " " << tokens;
      }
    }
  });
}

std::vector<std::string> reasons(const ExpertsShape& shape, const ProductChoices* measured,
                                 const ExpertsFlags& flags) {
  std::vector<std::string> out;
  for (const ExpertsKernel& kernel : plan_experts(shape, measured, flags).kernels)
    out.push_back(reason_text(kernel));
  return out;
}

TEST(ExpertPlan, SaysWhyEachKernelRuns) {
  ExpertsShape v3 = shape_of("v3", {.tp = 8}, WeightType::kFp8Block);
  v3.tokens = 8;
  EXPECT_THAT(to_string(plan_experts(v3, nullptr, {})), HasSubstr("few tokens with a small activation"));
  EXPECT_EQ(reasons(v3, nullptr, {.fusion = false}).front(), "--disable-fusion; heuristic");
  EXPECT_EQ(reasons(v3, nullptr, {.reference = true}).front(), "--kernels reference");
  v3.tokens = 9;
  EXPECT_EQ(reasons(v3, nullptr, {}).front(), "more than 8 tokens; heuristic");
  EXPECT_EQ(reasons(v3, &shipped(), {}).front(), "more than 8 tokens; measured");
  v3.tokens = 64;
  EXPECT_EQ(reasons(v3, nullptr, {}).back(), "heuristic");
  EXPECT_EQ(reasons(v3, &shipped(), {}).back(), "measured");
  v3.down_aligned = false;
  EXPECT_EQ(reasons(v3, &shipped(), {}).back(), "no tuned kernel supports the shape");
  v3.tokens = 1;
  EXPECT_EQ(reasons(v3, nullptr, {}).front(), "no kernel for few tokens supports the layer; heuristic");
  ExpertsShape lite = shape_of("v2-lite", {}, WeightType::kBF16);
  lite.tokens = 8;
  EXPECT_EQ(reasons(lite, nullptr, {}).front(), "large activation: separate kernels are faster; heuristic");
  lite.tokens = 4096;
  EXPECT_EQ(kernels_text(plan_experts(lite, nullptr, {})),
            "router library, route large, permute spread, experts_gate_up columns 208x128 stages 4 cluster 2 "
            "activated, experts_down columns 208x128 stages 4 cluster 2");
  EXPECT_EQ(plan_experts(lite, nullptr, {}).kernels.at(2).rows, 4096 * 6) << "shared experts read the tokens";
  EXPECT_FALSE(plan_experts(lite, nullptr, {}).kernels.back().offsets_settled);
  EXPECT_TRUE(plan_experts(lite, nullptr, {.fusion = false}).kernels.back().offsets_settled);
}

// A rank with an eighth of the experts gets an eighth of the rows, so it streams weights where one rank with
// all experts would sort rows. All tokens are nevertheless routed over all experts.
TEST(ExpertPlan, ARankWithSomeExpertsPlansForItsShareOfTheRows) {
  ExpertsShape whole = shape_of("v3", {.tp = 8, .ep = 8}, WeightType::kFp8Block);
  ASSERT_EQ(whole.num_held, 32);
  ASSERT_EQ(whole.num_shared, 0);
  whole.tokens = 512;
  ExpertsShape part = whole;
  whole.num_held = 0;
  const ExpertsPlan of_part = plan_experts(part, nullptr, {});
  const ExpertsPlan of_whole = plan_experts(whole, nullptr, {});
  EXPECT_EQ(of_part.kernels[0].n, 256);
  EXPECT_EQ(of_part.kernels[2].rows, of_whole.kernels[2].rows) << "all tokens may choose the rank's experts";
  EXPECT_EQ(kernels_text(of_part), kernels_text(of_whole)) << "the rows of an expert are as many";
  part.num_held = 256;
  EXPECT_EQ(to_string(plan_experts(part, nullptr, {})), to_string(of_whole));
}

// The down projection has another type than gate and up.
TEST(ExpertPlan, MixedTypesRunSeparately) {
  ExpertsShape shape = shape_of("v2-lite", {}, WeightType::kBF16);
  shape.tokens = 4096;
  shape.down = WeightType::kFp8Block;
  EXPECT_EQ(kernels_text(plan_experts(shape, nullptr, {})),
            "router library, route large, permute, experts_gate_up columns 208x128 stages 4 cluster 2, "
            "experts_silu_mul, experts_down tiled 128x128 stages 6 cluster 2");
  EXPECT_THAT(kernels_text(plan_experts(shape, nullptr, {.fusion = false})),
              HasSubstr("experts_silu_mul, quantize, experts_down"));
  shape.tokens = 1;
  EXPECT_EQ(plan_experts(shape, nullptr, {}).kernels.size(), 5);
}

}  // namespace
}  // namespace hadal::cuda
