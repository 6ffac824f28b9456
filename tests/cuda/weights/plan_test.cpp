// Executes the plan of device weights on host memory, so no GPU is needed.
#include <algorithm>
#include <map>
#include <tuple>

#include "model/cuda/device_weights_loader.h"
#include "model/draft_layer.h"
#include "model/info.h"
#include "model/presets.h"
#include "model/random_weights.h"
#include "tests/cuda/weights/placed_weights.h"
#include "tests/model/draft_directories.h"

namespace hadal {
namespace {

using testing::GoldenConfig;
using testing::HostBlock;
using testing::RopeRows;

void expect_plan_gives_the_host_loaders_weights(const GoldenConfig& golden, const std::filesystem::path& dir,
                                                const WeightLoadOptions& options) {
  SCOPED_TRACE(golden.name + (options.format == LoadFormat::kDummy ? " dummy" : " file") +
               (options.quantization == LoadQuantization::kFp8 ? " fp8" : ""));
  ThreadPool pool(1);
  const ModelWeights stored = load_weights(dir, golden.config, options, pool).value();
  const WeightSources sources = weight_sources(dir, golden.config, options).value();
  const RopeRows rope(golden.config);
  const auto plan_at = [&](std::byte* base) {
    return plan_device_weights(golden.config, sources.map, rope.source, options.quantization, base,
                               options.compute_dtype);
  };
  const DeviceWeightPlan measured = plan_at(nullptr);
  HostBlock block(static_cast<size_t>(measured.weights.bytes));
  const DeviceWeightPlan plan = plan_at(block.data());
  testing::run_on_host(plan);
  const WeightType linears = golden.config.quantization ? golden.config.quantization->type
                             : options.quantization != LoadQuantization::kNone
                                 ? weight_type_of(options.quantization)
                             : options.compute_dtype == DType::kF16 ? WeightType::kF16
                                                                    : WeightType::kBF16;
  EXPECT_EQ(plan.weights.linears, linears);
  EXPECT_EQ(plan.weights.is_f16(), options.compute_dtype == DType::kF16);
  testing::expect_same_weights(plan.weights, stored, golden.config);
}

TEST(DeviceWeightPlan, GoldensOnHostMemoryAreTheHostLoadersWeights) {
  for (const GoldenConfig& golden : testing::golden_configs()) {
    testing::ScratchDirectory scratch;
    const auto dir = scratch.path() / "model";
    testing::write_checkpoint(dir, golden, 7);
    for (const LoadFormat format : {LoadFormat::kAuto, LoadFormat::kDummy}) {
      for (const LoadQuantization quantization : {LoadQuantization::kNone, LoadQuantization::kFp8}) {
        WeightLoadOptions options{
            .format = format, .quantization = quantization, .seed = 3, .load_nextn = false};
        expect_plan_gives_the_host_loaders_weights(golden, dir, options);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Published files have copies of the embedding and the head in the NextN layer.
TEST(DeviceWeightPlan, TheNextnLayerSharesWhatEqualsTheTargets) {
  const GoldenConfig golden =
      testing::golden_config("v3", {{"\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1"}});
  ASSERT_EQ(golden.config.num_nextn_predict_layers, 1);
  testing::ScratchDirectory scratch;
  const auto dir = scratch.path() / "model";
  testing::write_checkpoint(dir, golden, 7);
  ThreadPool pool(1);
  const ModelWeights stored = load_weights(dir, golden.config, {}, pool).value();
  ASSERT_TRUE(stored.mtp.has_value());
  WeightSources sources = weight_sources(dir, golden.config, {}).value();
  const RopeRows rope(golden.config);
  const auto plan_at = [&](std::byte* base) {
    return plan_device_weights(golden.config, sources.map, rope.source, LoadQuantization::kNone, base);
  };
  const int64_t with_copies = plan_at(nullptr).weights.bytes;
  share_equal_copies(golden.config, sources.map, sources.map);
  const int64_t bytes = plan_at(nullptr).weights.bytes;
  EXPECT_GE(with_copies - bytes, 2 * golden.config.vocab_size * golden.config.hidden_size * 2);
  HostBlock block(static_cast<size_t>(bytes));
  const DeviceWeightPlan plan = plan_at(block.data());
  testing::run_on_host(plan);
  testing::expect_separate_places(plan, block.data());
  testing::expect_same_weights(plan.weights, stored, golden.config);
  ASSERT_TRUE(plan.weights.nextn.has_value());
  const DeviceNextn& nextn = *plan.weights.nextn;
  EXPECT_EQ(nextn.embedding.data, plan.weights.embedding.data);
  EXPECT_EQ(nextn.lm_head.data, plan.weights.lm_head.data);
  const auto same = [](const void* placed, const void* expected, int64_t bytes_of) {
    return std::memcmp(placed, expected, static_cast<size_t>(bytes_of)) == 0;
  };
  const int64_t hidden = golden.config.hidden_size;
  EXPECT_TRUE(same(nextn.enorm, stored.mtp->enorm, hidden * 4));
  EXPECT_TRUE(same(nextn.hnorm, stored.mtp->hnorm, hidden * 4));
  EXPECT_TRUE(same(nextn.shared_head_norm, stored.mtp->shared_head_norm, hidden * 4));
  EXPECT_TRUE(same(nextn.eh_proj.data, stored.mtp->eh_proj.data, 2 * hidden * hidden * 2));
  EXPECT_TRUE(nextn.layer.is_moe);
  EXPECT_TRUE(same(nextn.layer.attention.o.data, stored.mtp->layer.attention.o.data,
                   nextn.layer.attention.o.n * nextn.layer.attention.o.k * 2));
}

TEST(DeviceWeightPlan, ADraftLayerIsPlacedAsTheModelsOwnWithTheSameWeights) {
  for (const char* name : {"v3", "v3_fp8"}) {
    SCOPED_TRACE(name);
    const GoldenConfig golden = testing::golden_config(
        name, {{"\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1"}});
    testing::ScratchDirectory scratch;
    const auto dir = scratch.path() / "model";
    testing::write_checkpoint(dir, golden, 7);
    const auto exported = scratch.path() / "export";
    testing::write_directory(exported, testing::export_config(testing::Json::parse(golden.text)),
                             testing::exported_layer(dir, golden.config.num_hidden_layers));
    const DraftLayer draft = read_draft_layer({.dir = exported}).value();
    ASSERT_TRUE(check_gpu_draft(draft, golden.config, LoadQuantization::kNone).ok());
    const RopeRows rope(golden.config);
    const auto placed = [&](const WeightLoadOptions& options) {
      WeightSources sources = weight_sources(dir, golden.config, options).value();
      if (options.draft) {
        EXPECT_TRUE(add_draft_sources(golden.config, draft, options.seed, sources).ok());
      }
      share_equal_copies(golden.config, sources.map, sources.map);
      const auto plan_at = [&](std::byte* base) {
        return plan_device_weights(golden.config, sources.map, rope.source, LoadQuantization::kNone, base);
      };
      const auto bytes = static_cast<size_t>(plan_at(nullptr).weights.bytes);
      HostBlock block(bytes);
      const DeviceWeightPlan plan = plan_at(block.data());
      testing::run_on_host(plan);
      EXPECT_TRUE(plan.weights.nextn.has_value());
      return std::vector<std::byte>(block.data(), block.data() + bytes);
    };
    EXPECT_TRUE(placed({}) == placed({.draft = draft}));
  }
}

TEST(DeviceWeightPlan, Float16AndFloat32CheckpointsAreConverted) {
  for (const char* dtype : {"float16", "float32"}) {
    const GoldenConfig golden = testing::golden_config("v3", {{"bfloat16", dtype}});
    for (const LoadQuantization quantization : {LoadQuantization::kNone, LoadQuantization::kFp8}) {
      const WeightLoadOptions options{
          .format = LoadFormat::kDummy, .quantization = quantization, .load_nextn = false};
      expect_plan_gives_the_host_loaders_weights(golden, "", options);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DeviceWeightPlan, Float16IsTheTypeOfEverythingInSixteenBits) {
  for (const char* name : {"v3", "v2_lite"}) {
    for (const char* dtype : {"bfloat16", "float16", "float32"}) {
      SCOPED_TRACE(std::string(name) + " " + dtype);
      const GoldenConfig golden = testing::golden_config(name, {{"bfloat16", dtype}});
      expect_plan_gives_the_host_loaders_weights(
          golden, "", {.format = LoadFormat::kDummy, .compute_dtype = DType::kF16, .load_nextn = false});
      if (HasFatalFailure()) return;
    }
  }
}

constexpr LoadQuantization kQuantisations[] = {LoadQuantization::kFp8, LoadQuantization::kW8A8Fp8,
                                               LoadQuantization::kW8A8Int8, LoadQuantization::kBlockwiseInt8};

// Covers checkpoints in their published formats, and the same formats made at load.
TEST(DeviceWeightPlan, EveryQuantisationIsPlaced) {
  for (const char* name : {"v3", "v2_lite", "v32"}) {
    const GoldenConfig plain = testing::golden_config(name);
    for (const PublishedFormat& format : published_formats()) {
      SCOPED_TRACE(std::string(name) + " " + format.name);
      const GoldenConfig golden = testing::golden_config(
          name, {{"{", "{\"quantization_config\": " + quantization_config_json(format, {}) + ", "}});
      testing::ScratchDirectory scratch;
      const auto dir = scratch.path() / "model";
      testing::write_checkpoint(dir, golden, 7);
      for (const LoadFormat load : {LoadFormat::kAuto, LoadFormat::kDummy}) {
        expect_plan_gives_the_host_loaders_weights(golden, dir, {.format = load, .load_nextn = false});
        if (HasFatalFailure()) return;
      }
    }
    for (const LoadQuantization quantization : kQuantisations) {
      SCOPED_TRACE(std::string(name) + " " + to_string(quantization));
      expect_plan_gives_the_host_loaders_weights(
          plain, "", {.format = LoadFormat::kDummy, .quantization = quantization, .load_nextn = false});
      if (HasFatalFailure()) return;
    }
  }
}

// Where the borders of shared experts would cut blocks, their MLP is a product of its own.
TEST(DeviceWeightPlan, SharedExpertsOfFp8CheckpointsAreCutBetweenBlocksOrNotAtAll) {
  for (const char* size : {"256", "200"}) {
    const GoldenConfig golden = testing::golden_config(
        "v3_fp8", {{"\"n_shared_experts\": 1", "\"n_shared_experts\": 3"},
                   {"\"moe_intermediate_size\": 96", std::string("\"moe_intermediate_size\": ") + size}});
    expect_plan_gives_the_host_loaders_weights(golden, "",
                                               {.format = LoadFormat::kDummy, .load_nextn = false});
    const DeviceMoe moe = device_weight_shapes(golden.config, LoadQuantization::kNone).layers.at(1).moe;
    EXPECT_EQ(moe.num_shared, golden.config.moe_intermediate_size == 256 ? 3 : 0);
    EXPECT_EQ(moe.shared.intermediate, golden.config.moe_intermediate_size == 256 ? 0 : 640);
  }
}

// Checks that every stored element has exactly one place, that no place is written twice or is outside the
// block, and that nothing is misaligned.
void expect_sound(const ModelConfig& config, LoadQuantization quantization) {
  const TensorSources sources = testing::shapes_of(config);
  const TensorSource rope = rope_source(config);
  auto* base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  const DeviceWeightPlan plan = plan_device_weights(config, sources, rope, quantization, base);
  testing::expect_separate_places(plan, base);
  std::map<const TensorSource*, int64_t> used;
  for (const WeightPlacement& p : plan.placements) {
    used[p.source] += p.repeat ? 1 : p.rows * p.cols;
    if (p.widened()) used[p.code_scales] += p.code_scales->num_elements();
  }
  // Each part of a shared MLP that is cut has all channel scales of the down projection.
  const bool shared_scales = is_channel_scaled(plan.weights.linears) && config.quantization;
  for (const auto& [name, source] : sources) {
    const bool often = shared_scales && name.find("shared_experts.down_proj") != std::string::npos &&
                       name.find("scale") != std::string::npos;
    ASSERT_EQ(used[&source], source.num_elements() * (often ? config.n_shared_experts : 1)) << name;
  }

  // The size is that of the tensors plus a second W_UK, padding and the table of positions.
  const int64_t stored =
      model_info(config, {.quantization = quantization, .load_nextn = false}, {}, 0).weight_bytes;
  EXPECT_GT(plan.weights.bytes, stored);
  EXPECT_LT(static_cast<double>(plan.weights.bytes), 1.02 * static_cast<double>(stored));
  EXPECT_EQ(plan.weights.bytes, device_weight_bytes(config, quantization));
}

TEST(DeviceWeightPlan, PublishedModelsArePlacedOnceWithoutOverlap) {
  for (const char* name : {"v2-lite", "v2", "v3"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = parse_model_config(preset_config_json(name).value(), name).value();
    expect_sound(config, LoadQuantization::kNone);
    for (const LoadQuantization quantization : kQuantisations) {
      if (!config.quantization) expect_sound(config, quantization);
    }
  }
}

// Returns a checksum over every field of every placement, with addresses as offsets.
uint64_t checksum(const DeviceWeightPlan& plan, const TensorSources& sources, const std::byte* base) {
  std::map<const TensorSource*, std::string> names;
  for (const auto& [name, source] : sources) names[&source] = name;
  uint64_t sum = 14695981039346656037ULL;  // FNV-1a
  const auto add = [&](uint64_t value) {
    for (int i = 0; i < 8; ++i) sum = (sum ^ ((value >> (8 * i)) & 255)) * 1099511628211ULL;
  };
  const auto add_all = [&](std::initializer_list<int64_t> values) {
    for (const int64_t value : values) add(static_cast<uint64_t>(value));
  };
  const auto offset = [&](const void* address) {
    return address == nullptr ? int64_t{-1} : static_cast<const std::byte*>(address) - base;
  };
  for (const WeightPlacement& p : plan.placements) {
    for (const char c : names.contains(p.source) ? names[p.source] : "rope") add(static_cast<uint8_t>(c));
    add_all({p.row, p.col, p.rows, p.cols, static_cast<int64_t>(p.type), offset(p.dst), p.stride,
             offset(p.scales), p.scale_stride, p.widened() ? 1 : 0, p.repeat ? 1 : 0});
  }
  for (const KeyTranspose& job : plan.transposes)
    add_all({offset(job.kv_b.data), offset(job.w_uk.data), offset(job.w_uk.scales), job.num_heads});
  return sum;
}

// The kernels, their measured choices and published measurements depend on these places.
TEST(DeviceWeightPlan, OneGpuHasThePlacesThatWereRecorded) {
  struct Recorded {
    const char* preset;
    LoadQuantization quantization;
    int64_t bytes;
    uint64_t checksum;
  };
  const Recorded all[] = {
      {"v2-lite", LoadQuantization::kNone, 31512573952, 0x7159b41753bd83ad},
      {"v2-lite", LoadQuantization::kFp8, 16204097536, 0x7f29905072c1eba2},
      {"v2-lite", LoadQuantization::kW8A8Fp8, 16319382272, 0xe15e541a9800bb02},
      {"v2-lite", LoadQuantization::kW8A8Int8, 16319382272, 0xc0436f374715291e},
      {"v2-lite", LoadQuantization::kBlockwiseInt8, 16289011456, 0xf07bcadddb984afb},
      {"v2", LoadQuantization::kNone, 472532930560, 0x804e39b280ef92a4},
      {"v2", LoadQuantization::kFp8, 237443249920, 0x6557f41ff1197a58},
      {"v2", LoadQuantization::kW8A8Fp8, 239216729088, 0x966149031b9fb096},
      {"v2", LoadQuantization::kW8A8Int8, 239216729088, 0xa628b0de1b7c2875},
      {"v2", LoadQuantization::kBlockwiseInt8, 238952830720, 0x2b72e5bbf0453ad1},
      {"v3", LoadQuantization::kNone, 673706400000, 0xb0e0d3459d56beda},
  };
  for (const Recorded& recorded : all) {
    SCOPED_TRACE(std::string(recorded.preset) + " " + to_string(recorded.quantization));
    const ModelConfig config =
        parse_model_config(preset_config_json(recorded.preset).value(), recorded.preset).value();
    const TensorSources sources = testing::shapes_of(config);
    const TensorSource rope = rope_source(config);
    auto* base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
    const DeviceWeightPlan plan = plan_device_weights(config, sources, rope, recorded.quantization, base);
    EXPECT_EQ(plan.weights.bytes, recorded.bytes);
    EXPECT_EQ(checksum(plan, sources, base), recorded.checksum);
  }
}

// Linears that a checkpoint leaves in 16 bits stay in 16 bits, and so do the linears stored in one stack with
// them.
TEST(DeviceWeightPlan, LinearsLeftInSixteenBitsStaySo) {
  struct Left {
    const char* module;                     // left out of quantisation
    bool attention, output, experts, down;  // true if those of layer 1 are still in 8 bits
  };
  const Left lefts[] = {{"kv_a_proj_with_mqa", false, true, true, true},
                        {"o_proj", true, false, true, true},
                        {"kv_b_proj", true, true, true, true},
                        {"model.layers.1.mlp.experts.3.up_proj", true, true, false, true},
                        {"shared_experts", true, true, false, false},
                        {"down_proj", true, true, true, false}};
  for (const PublishedFormat& format : published_formats()) {
    for (const Left& left : lefts) {
      SCOPED_TRACE(std::string(format.name) + " without " + left.module);
      const std::string module = left.module;
      const GoldenConfig golden = testing::golden_config(
          "v3", {{"{", "{\"quantization_config\": " +
                           quantization_config_json(format, std::span(&module, 1)) + ", "}});
      testing::ScratchDirectory scratch;
      const auto dir = scratch.path() / "model";
      testing::write_checkpoint(dir, golden, 7);
      expect_plan_gives_the_host_loaders_weights(golden, dir, {.load_nextn = false});
      if (HasFatalFailure()) return;
      const TensorSources sources = testing::shapes_of(golden.config);
      const DeviceWeightPlan plan = plan_device_weights(golden.config, sources, rope_source(golden.config),
                                                        LoadQuantization::kNone, nullptr);
      const DeviceLayer& layer = plan.weights.layers.at(1);
      EXPECT_EQ(has_scales(layer.attention.qkv_a.type), left.attention);
      EXPECT_EQ(has_scales(layer.attention.o.type), left.output);
      EXPECT_EQ(has_scales(layer.moe.experts.gate_up.type), left.experts);
      EXPECT_EQ(has_scales(layer.moe.experts.down.type), left.down);
    }
  }
}

// A 16-bit copy of an FP8 model may keep the model's config; --quantization fp8 then quantises it at load.
TEST(DeviceWeightPlan, FilesMayHave16BitsWhereTheConfigSays8) {
  const GoldenConfig golden = testing::golden_config("v3_fp8");
  TensorSources sources = testing::shapes_of(golden.config);
  const TensorSource rope = rope_source(golden.config);
  const auto plan = [&](LoadQuantization quantization) {
    return plan_device_weights(golden.config, sources, rope, quantization, nullptr);
  };
  sources.at("model.layers.1.mlp.experts.3.up_proj.weight").dtype = DType::kBF16;
  const auto experts = [](const DeviceWeightPlan& made) {
    return made.weights.layers.at(1).moe.experts.gate_up.type;
  };
  EXPECT_EQ(experts(plan(LoadQuantization::kNone)), WeightType::kBF16);
  EXPECT_EQ(experts(plan(LoadQuantization::kFp8)), WeightType::kFp8Block);
  for (auto& [name, source] : sources) {
    if (source.dtype == DType::kF8E4M3) source.dtype = DType::kBF16;
  }
  EXPECT_FALSE(plan(LoadQuantization::kNone).weights.w8a8());
  EXPECT_TRUE(plan(LoadQuantization::kFp8).weights.w8a8());
}

}  // namespace
}  // namespace hadal
