// Tests what ranks hold on GPUs: together, their codes and scales are what one GPU holds. Small models are
// placed in host memory, so no GPU is needed.
#include <algorithm>
#include <unordered_set>

#include "model/info.h"
#include "model/presets.h"
#include "tests/cuda/weights/rank_weights.h"
#include "tests/sanitized.h"

namespace hadal {
namespace {

using testing::Comparison;
using testing::Format;
using testing::Held;
using testing::Json;

TEST(RankWeightPlan, RanksPutTogetherAreWhatOneGpuHas) {
  for (const char* family : {"v3", "v2-lite"}) {
    for (const Format& format : testing::kFormats) {
      if (format.compute == DType::kF32) continue;  // not on a GPU
      Json json = testing::uneven_config(family);
      json["tie_word_embeddings"] = format.name == "int8 blocks";
      const ModelConfig config = testing::config_in(json, format);
      WeightLoadOptions options = testing::options_of(format);
      options.load_nextn = false;
      const Held whole = testing::hold(config, options, {});
      for (const ModelSplit split : testing::splits_of(config)) {
        SCOPED_TRACE(fmt::format("{} {} tp {} ep {}", family, format.name, split.tp, split.ep));
        const Held held = testing::hold(config, options, split);
        Comparison(config, options, whole.ranks[0], held.ranks).run();
        if (HasFatalFailure()) return;
      }
    }
  }
}

// These are small splits of a large vocabulary, and more ranks than an MLP has blocks.
TEST(RankWeightPlan, ARankMayHoldNothingOfAnMlpOrOfTheHead) {
  Json json = testing::uneven_config("v3");
  json.update(Json::parse(R"({"moe_intermediate_size": 128, "intermediate_size": 256, "vocab_size": 150})"));
  const ModelConfig config = testing::parsed(json);
  const DeviceWeights last =
      device_weight_shapes(config, LoadQuantization::kNone, DType::kBF16, {.tp = 8}, 7);
  EXPECT_EQ(last.lm_head.n, 0);
  EXPECT_EQ(last.layers[0].mlp.intermediate, 0);
  EXPECT_EQ(last.layers[1].moe.experts.intermediate, 0);
  EXPECT_EQ(gpu_rank_bytes(config, {}, {.tp = 8}, 7).experts, 0);
  // With ep the experts are whole, and only the shared MLP is cut.
  const DeviceMoe moe =
      device_weight_shapes(config, LoadQuantization::kNone, DType::kBF16, {.tp = 8, .ep = 8}, 7)
          .layers[1]
          .moe;
  EXPECT_EQ(moe.first_expert, 7);
  EXPECT_EQ(moe.num_local_experts, 1);
  EXPECT_EQ(moe.experts.intermediate, 128);
  EXPECT_EQ(moe.shared.intermediate, 0);
}

// The following tests use published models, with one layer of each kind.

enum class Cut : uint8_t { kNot, kRows, kColumns };

Cut cut_of(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("q_b_proj") || has("q_proj") || has("kv_b_proj") || has("lm_head")) return Cut::kRows;
  if (has("gate_proj") || has("up_proj")) return Cut::kRows;
  return has("o_proj") || has("down_proj") ? Cut::kColumns : Cut::kNot;
}

// Expects that the windows which ranks have of a source cover it, each element once. Only rows of queries may
// be there twice, up to half a block of them.
void expect_tiled(const std::string& name, const TensorSource& source,
                  std::vector<const WeightPlacement*> windows, int64_t num_ranks) {
  const bool is_scale = name.find("weight_scale") != std::string::npos;
  const bool in_blocks = name.ends_with("weight_scale_inv");
  const Cut cut = cut_of(name);
  const bool all_have_it =
      cut == Cut::kNot || (is_scale && !in_blocks && cut == Cut::kColumns) || source.num_elements() == 1;
  if (all_have_it) {
    ASSERT_TRUE(cut == Cut::kNot ? std::ssize(windows) == num_ranks : !windows.empty()) << name;
    for (const WeightPlacement* p : windows) {
      ASSERT_TRUE(p->row == 0 && p->col == 0 && p->cols == source.cols) << name;
      ASSERT_TRUE(p->repeat || p->rows == source.rows) << name;
    }
    return;
  }
  const bool rows = cut == Cut::kRows;
  const auto begin_of = [&](const WeightPlacement* p) { return rows ? p->row : p->col; };
  std::sort(windows.begin(), windows.end(),
            [&](const auto* a, const auto* b) { return begin_of(a) < begin_of(b); });
  const bool is_query =
      name.find("q_b_proj") != std::string::npos || name.find("q_proj") != std::string::npos;
  const int64_t most_twice = !is_query ? 0 : is_scale ? 1 : 64;
  int64_t at = 0;
  for (const WeightPlacement* p : windows) {
    ASSERT_TRUE(begin_of(p) <= at && begin_of(p) >= at - most_twice)
        << name << " " << begin_of(p) << " " << at;
    ASSERT_EQ(rows ? p->col : p->row, 0) << name;
    ASSERT_EQ(rows ? p->cols : p->rows, rows ? source.cols : source.rows) << name;
    at = begin_of(p) + (rows ? p->rows : p->cols);
  }
  ASSERT_EQ(at, rows ? source.rows : source.cols) << name;
}

void expect_ranks_tile(const ModelConfig& config, LoadQuantization quantization, ModelSplit split) {
  const TensorSources sources = testing::shapes_of(config);
  const TensorSource rope = rope_source(config);
  auto* base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  std::vector<DeviceWeightPlan> plans;
  std::unordered_map<const TensorSource*, std::vector<const WeightPlacement*>> windows;
  for (int64_t rank = 0; rank < split.tp; ++rank) {
    plans.push_back(
        plan_device_weights(config, sources, rope, quantization, base, DType::kBF16, split, rank));
    testing::expect_separate_places(plans.back(), base);
    EXPECT_EQ(plans.back().weights.bytes,
              device_weight_bytes(config, quantization, DType::kBF16, split, rank));
  }
  std::unordered_set<const TensorSource*> widening;
  for (const DeviceWeightPlan& plan : plans) {
    for (const WeightPlacement& placement : plan.placements) {
      windows[placement.source].push_back(&placement);
      if (placement.widened()) widening.insert(placement.code_scales);
    }
  }
  for (const auto& [name, source] : sources) {
    if (widening.contains(&source)) continue;  // read with the codes that it widens
    expect_tiled(name, source, windows[&source], split.tp);
  }
  expect_tiled("rope", rope, windows[&rope], split.tp);
}

TEST(RankWeightPlan, EveryElementOfPublishedModelsIsOnOneRankOrOnAll) {
  for (const std::string& name : preset_names()) {
    Json json = Json::parse(preset_config_json(name).value());
    json["num_hidden_layers"] = json["first_k_dense_replace"].get<int>() + 1;
    const ModelConfig config = testing::parsed(json);
    std::vector<LoadQuantization> quantizations = {LoadQuantization::kNone};
    if (!config.quantization)
      quantizations.insert(quantizations.end(), {LoadQuantization::kFp8, LoadQuantization::kW8A8Int8});
    for (const LoadQuantization quantization : quantizations) {
      for (const int64_t tp : {1, 2, 4, 8, 16}) {
        if (testing::kSanitized && tp > 4) continue;
        for (int64_t ep = 1; ep <= tp; ep *= 2) {
          SCOPED_TRACE(fmt::format("{} {} tp {} ep {}", name, to_string(quantization), tp, ep));
          ASSERT_TRUE(check_split(config, {tp, ep}).ok());
          expect_ranks_tile(config, quantization, {tp, ep});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(RankWeightPlan, WidthsOfV2LiteAreWholeBlocksOfTheirMlps) {
  const ModelConfig lite = parse_model_config(preset_config_json("v2-lite").value(), "v2-lite").value();
  const auto widths = [&](LoadQuantization quantization, ModelSplit split) {
    std::vector<int64_t> found;
    for (int64_t rank = 0; rank < split.tp; ++rank) {
      const DeviceWeights w = device_weight_shapes(lite, quantization, DType::kBF16, split, rank);
      found.push_back(w.layers[1].moe.experts.intermediate);
      found.push_back(w.layers[1].moe.shared.intermediate);
    }
    return found;
  };
  for (const LoadQuantization quantization : {LoadQuantization::kNone, LoadQuantization::kFp8}) {
    EXPECT_EQ(widths(quantization, {.tp = 2}), (std::vector<int64_t>{768, 0, 640, 0}));
    EXPECT_EQ(widths(quantization, {.tp = 2, .ep = 2}), (std::vector<int64_t>{1408, 1408, 1408, 1408}));
  }
}

TEST(GpuRankBytes, OfV3AreAnEighthOfTheModelAndWhatAllRanksHave) {
  const ModelConfig v3 = parse_model_config(preset_config_json("v3").value(), "v3").value();
  const int64_t whole = gpu_rank_bytes(v3, {}, {}, 0).all;
  EXPECT_EQ(whole, device_weight_bytes(v3, LoadQuantization::kNone));
  for (int64_t rank = 0; rank < 8; ++rank) {
    const RankBytes bytes = gpu_rank_bytes(v3, {}, {.tp = 8}, rank);
    EXPECT_GT(bytes.all, whole / 8);
    EXPECT_LT(static_cast<double>(bytes.all), 1.04 * static_cast<double>(whole) / 8);
    EXPECT_LT(bytes.experts, bytes.all);
    EXPECT_GT(static_cast<double>(bytes.experts), 0.9 * static_cast<double>(bytes.all));
  }
}

}  // namespace
}  // namespace hadal
