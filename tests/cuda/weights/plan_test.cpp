// The plan of device weights is executed on host memory, so no GPU is needed.
#include <algorithm>
#include <map>
#include <tuple>

#include "model/cuda/device_weights_loader.h"
#include "model/info.h"
#include "model/presets.h"
#include "model/random_weights.h"
#include "tests/cuda/weights/placed_weights.h"

namespace hadal {
namespace {

using testing::GoldenConfig;
using testing::HostBlock;
using testing::RopeRows;

TensorSources shapes_of(const ModelConfig& config) {
  TensorSources sources;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (!spec.optional && !spec.nextn) sources.emplace(spec.name, source_of(spec, spec.dtype));
  }
  return sources;
}

TensorSource rope_shape(const ModelConfig& config) {
  TensorSource source;
  source.dtype = DType::kF32;
  source.rows = config.max_position_embeddings;
  source.cols = kQkRopeHeadDim;
  return source;
}

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
  if (measured.error) {
    EXPECT_TRUE(is_block_scaled(measured.weights.linears) && golden.config.n_shared_experts > 1 &&
                golden.config.moe_intermediate_size % 128 != 0)
        << measured.error->message;
    EXPECT_NE(measured.error->message.find("moe_intermediate_size is 64"), std::string::npos);
    return;
  }
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
  for (const char* name : {"v3", "v2_lite"}) {
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

TEST(DeviceWeightPlan, SharedExpertsOfFp8CheckpointsAreCutBetweenBlocks) {
  const GoldenConfig golden =
      testing::golden_config("v3_fp8", {{"\"n_shared_experts\": 1", "\"n_shared_experts\": 3"},
                                        {"\"moe_intermediate_size\": 96", "\"moe_intermediate_size\": 256"}});
  expect_plan_gives_the_host_loaders_weights(golden, "", {.format = LoadFormat::kDummy, .load_nextn = false});
}

// Checks that every stored element has exactly one place, that no place is written twice or is outside the
// block, and that nothing is misaligned.
void expect_sound(const ModelConfig& config, LoadQuantization quantization) {
  const TensorSources sources = shapes_of(config);
  const TensorSource rope = rope_shape(config);
  auto* base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  const DeviceWeightPlan plan = plan_device_weights(config, sources, rope, quantization, base);
  ASSERT_FALSE(plan.error) << plan.error->message;

  std::map<const TensorSource*, int64_t> used;
  std::vector<std::tuple<std::byte*, std::byte*>> written;
  for (const WeightPlacement& p : plan.placements) {
    ASSERT_TRUE(p.row >= 0 && p.col >= 0 && (p.repeat || p.row + p.rows <= p.source->rows) &&
                p.col + p.cols <= p.source->cols);
    used[p.source] += p.repeat ? 1 : p.rows * p.cols;
    if (p.widened()) used[p.code_scales] += p.code_scales->num_elements();
    const int64_t size = dtype_bytes(p.type);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(p.dst) % static_cast<uintptr_t>(size), 0U);
    for (int64_t i = 0; i < (p.stride == p.cols ? 1 : p.rows); ++i) {
      const int64_t count = p.stride == p.cols ? p.rows * p.cols : p.cols;
      written.emplace_back(p.dst + i * p.stride * size, p.dst + (i * p.stride + count) * size);
    }
    if (!p.quantised()) continue;
    if (is_channel_scaled(p.codes)) {
      auto* scales = reinterpret_cast<std::byte*>(p.scales);
      written.emplace_back(scales, scales + p.rows * 4);
      continue;
    }
    for (int64_t i = 0; i < (p.rows + 127) / 128; ++i) {
      auto* scales = reinterpret_cast<std::byte*>(p.scales + i * p.scale_stride);
      written.emplace_back(scales, scales + (p.cols + 127) / 128 * 4);
    }
  }
  for (const KeyTranspose& job : plan.transposes) {
    auto* data = static_cast<std::byte*>(const_cast<void*>(job.w_uk.data));
    written.emplace_back(data, data + job.w_uk.n * 128 * weight_element_bytes(job.w_uk.type));
    auto* scales = reinterpret_cast<std::byte*>(const_cast<float*>(job.w_uk.scales));
    if (job.w_uk.type == WeightType::kFp8Block) written.emplace_back(scales, scales + job.num_heads * 16);
  }
  std::sort(written.begin(), written.end());
  for (size_t i = 0; i < written.size(); ++i) {
    ASSERT_GE(std::get<0>(written[i]), i == 0 ? base : std::get<1>(written[i - 1]));
  }
  ASSERT_LE(std::get<1>(written.back()), base + plan.weights.bytes);
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
      const TensorSources sources = shapes_of(golden.config);
      const DeviceWeightPlan plan = plan_device_weights(golden.config, sources, rope_shape(golden.config),
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
  TensorSources sources = shapes_of(golden.config);
  const TensorSource rope = rope_shape(golden.config);
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
