// Compares weights loaded to the device with the host's loader, bit for bit, and checks what is refused.
#include <algorithm>
#include <array>
#include <fstream>
#include <thread>

#include "kernels/cuda/availability.h"
#include "model/cuda/device_weights_loader.h"
#include "model/presets.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/weights/placed_weights.h"
#include "tests/model/shard_models.h"

namespace hadal {
namespace {

using testing::GoldenConfig;

// Copies the loaded block to the host and compares it with the host loader's weights.
void expect_loaded(const DeviceWeights& loaded, const GoldenConfig& from, const std::filesystem::path& dir,
                   const WeightLoadOptions& options) {
  ThreadPool pool(1);
  WeightLoadOptions host_options = options;
  host_options.load_nextn = false;
  const ModelWeights stored = load_weights(dir, from.config, host_options, pool).value();
  const WeightSources sources = weight_sources(dir, from.config, host_options).value();
  const testing::RopeRows rope(from.config);

  ASSERT_EQ(loaded.bytes, static_cast<int64_t>(loaded.storage->size()));
  testing::HostBlock block(loaded.storage->size());
  copy_to_host(block.data(), loaded.storage->data(), loaded.storage->size(), testing::test_stream().handle());
  testing::test_stream().synchronize();
  const DeviceWeightPlan plan = plan_device_weights(
      from.config, sources.map, rope.source, options.quantization, block.data(), options.compute_dtype);
  ASSERT_EQ(plan.weights.bytes, loaded.bytes);
  ASSERT_EQ(plan.weights.linears, loaded.linears);
  // The pointers have the plan's offsets, in another block.
  const auto offset = [](const void* p, const void* base) {
    return static_cast<const std::byte*>(p) - static_cast<const std::byte*>(base);
  };
  ASSERT_EQ(offset(plan.weights.layers.back().attention.w_uk.data, block.data()),
            offset(loaded.layers.back().attention.w_uk.data, loaded.storage->data()));
  testing::expect_same_weights(plan.weights, stored, from.config);
}

TEST(LoadDeviceWeights, TheGoldensModelsGetTheHostLoadersWeights) {
  for (const GoldenConfig& config : testing::golden_configs()) {
    testing::ScratchDirectory scratch;
    const auto dir = scratch.path() / "model";
    testing::write_checkpoint(dir, config, 7);
    for (const LoadFormat format : {LoadFormat::kAuto, LoadFormat::kDummy}) {
      for (const LoadQuantization quantization : {LoadQuantization::kNone, LoadQuantization::kFp8}) {
        for (const int threads : {1, 5}) {
          SCOPED_TRACE(config.name + (format == LoadFormat::kDummy ? " dummy" : " file") +
                       (quantization == LoadQuantization::kFp8 ? " fp8" : ""));
          ThreadPool pool(threads);
          const WeightLoadOptions options{
              .format = format, .quantization = quantization, .seed = 3, .load_nextn = false};
          const auto loaded = load_device_weights(dir, config.config, options, pool);
          ASSERT_TRUE(loaded.ok()) << loaded.status().message;
          expect_loaded(*loaded, config, dir, options);
          if (HasFatalFailure()) return;
          EXPECT_EQ(loaded->bytes, device_weight_bytes(config.config, quantization));
        }
      }
    }
  }
}

// Covers checkpoints in their published formats, and the same formats made at load, with one shared expert,
// and with two that are cut from one MLP.
TEST(LoadDeviceWeights, EveryQuantisationIsTheHostLoaders) {
  const std::pair<std::string, std::string> whole_blocks = {"\"moe_intermediate_size\": 64",
                                                            "\"moe_intermediate_size\": 128"};
  ThreadPool pool(3);
  for (const char* name : {"v3", "v2_lite"}) {
    const GoldenConfig plain = testing::golden_config(name, {whole_blocks});
    for (const PublishedFormat& format : published_formats()) {
      SCOPED_TRACE(std::string(name) + " " + format.name);
      const GoldenConfig golden = testing::golden_config(
          name,
          {whole_blocks, {"{", "{\"quantization_config\": " + quantization_config_json(format, {}) + ", "}});
      testing::ScratchDirectory scratch;
      const auto dir = scratch.path() / "model";
      testing::write_checkpoint(dir, golden, 7);
      for (const LoadFormat load : {LoadFormat::kAuto, LoadFormat::kDummy}) {
        const WeightLoadOptions options{.format = load, .seed = 3, .load_nextn = false};
        const auto loaded = load_device_weights(dir, golden.config, options, pool);
        ASSERT_TRUE(loaded.ok()) << loaded.status().message;
        expect_loaded(*loaded, golden, dir, options);
        if (HasFatalFailure()) return;
      }
    }
    for (const LoadQuantization quantization :
         {LoadQuantization::kW8A8Fp8, LoadQuantization::kW8A8Int8, LoadQuantization::kBlockwiseInt8}) {
      SCOPED_TRACE(std::string(name) + " " + to_string(quantization));
      const WeightLoadOptions options{
          .format = LoadFormat::kDummy, .quantization = quantization, .seed = 3, .load_nextn = false};
      const auto loaded = load_device_weights("", plain.config, options, pool);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message;
      expect_loaded(*loaded, plain, "", options);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LoadDeviceWeights, FilesOfEveryTypeAreRoundedToTheComputeType) {
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    const GoldenConfig config = testing::golden_config("v3", {{"bfloat16", dtype}});
    testing::ScratchDirectory scratch;
    const auto dir = scratch.path() / "model";
    testing::write_checkpoint(dir, config, 8);
    for (const LoadQuantization quantization : {LoadQuantization::kNone, LoadQuantization::kFp8}) {
      SCOPED_TRACE(dtype);
      ThreadPool pool(3);
      for (const DType compute : {DType::kBF16, DType::kF16}) {
        const WeightLoadOptions options{
            .quantization = quantization, .compute_dtype = compute, .load_nextn = false};
        const auto loaded = load_device_weights(dir, config.config, options, pool);
        if (compute == DType::kF16 && quantization != LoadQuantization::kNone) {
          ASSERT_FALSE(loaded.ok());
          EXPECT_NE(loaded.status().message.find("--dtype float16"), std::string::npos)
              << loaded.status().message;
          EXPECT_NE(loaded.status().message.find("auto, bfloat16"), std::string::npos)
              << loaded.status().message;
          continue;
        }
        ASSERT_TRUE(loaded.ok()) << loaded.status().message;
        expect_loaded(*loaded, config, dir, options);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The model has tensors of several pieces, two shared experts cut from one MLP in FP8, and an odd number of
// heads.
TEST(LoadDeviceWeights, LargerTensorsTravelInPieces) {
  const GoldenConfig bf16 =
      testing::golden_config("v2_lite", {{"\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 128"},
                                         {"\"hidden_size\": 256", "\"hidden_size\": 4224"},
                                         {"\"intermediate_size\": 320", "\"intermediate_size\": 1000"},
                                         {"\"num_attention_heads\": 4", "\"num_attention_heads\": 3"},
                                         {"\"num_key_value_heads\": 4", "\"num_key_value_heads\": 3"}});
  const GoldenConfig fp8 =
      testing::golden_config("v3_fp8", {{"\"n_shared_experts\": 1", "\"n_shared_experts\": 2"},
                                        {"\"moe_intermediate_size\": 96", "\"moe_intermediate_size\": 256"},
                                        {"\"hidden_size\": 320", "\"hidden_size\": 8000"}});
  const std::vector<std::pair<const GoldenConfig*, LoadQuantization>> cases = {
      {&bf16, LoadQuantization::kNone}, {&bf16, LoadQuantization::kFp8}, {&fp8, LoadQuantization::kNone}};
  for (const auto& [config, quantization] : cases) {
    SCOPED_TRACE(config->name);
    testing::ScratchDirectory scratch;
    const auto dir = scratch.path() / "model";
    testing::write_checkpoint(dir, *config, 9);
    for (const LoadFormat format : {LoadFormat::kAuto, LoadFormat::kDummy}) {
      ThreadPool pool(4);
      const WeightLoadOptions options{
          .format = format, .quantization = quantization, .seed = 9, .load_nextn = false};
      const auto loaded = load_device_weights(dir, config->config, options, pool);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message;
      expect_loaded(*loaded, *config, dir, options);
      if (HasFatalFailure()) return;
    }
  }
}

// Expects a rank's block to have the bytes of its plan on host memory, padding included.
void expect_block_of_rank(const DeviceWeights& loaded, const ModelConfig& config,
                          const WeightSources& sources, const WeightLoadOptions& options) {
  const testing::RopeRows rope(config);
  testing::HostBlock want(static_cast<size_t>(loaded.bytes));
  const DeviceWeightPlan plan =
      plan_device_weights(config, sources.map, rope.source, options.quantization, want.data(),
                          options.compute_dtype, loaded.split, loaded.rank);
  ASSERT_EQ(plan.weights.bytes, loaded.bytes);
  testing::run_on_host(plan);
  std::vector<std::byte> got(static_cast<size_t>(loaded.bytes));
  copy_to_host(got.data(), loaded.storage->data(), got.size(), testing::test_stream().handle());
  testing::test_stream().synchronize();
  const auto differ = std::mismatch(got.begin(), got.end(), want.data());
  ASSERT_EQ(differ.first - got.begin(), loaded.bytes) << "the first byte that differs";
}

// The ranks are on all GPUs of the machine in turn. If there is only one GPU, they share it.
TEST(LoadDeviceWeights, RanksGetTheBytesOfTheirPlans) {
  const int num_gpus = cuda::availability().num_devices;
  for (const char* family : {"v3", "v2-lite"}) {
    for (const testing::Format& format : testing::kFormats) {
      if (format.compute == DType::kF32) continue;
      const testing::Json json = testing::uneven_config(family);
      const ModelConfig config = testing::config_in(json, format);
      const WeightLoadOptions dummy = testing::options_of(format);
      testing::ScratchDirectory scratch;
      const auto dir = scratch.path() / "model";
      testing::write_checkpoint(
          dir, {.name = family, .text = testing::json_in(json, format).dump(), .config = config}, 7);
      for (const ModelSplit split : {ModelSplit{.tp = 2}, {.tp = 4, .ep = 2}, {.tp = 4, .ep = 4}}) {
        for (const LoadFormat load : {LoadFormat::kAuto, LoadFormat::kDummy}) {
          SCOPED_TRACE(fmt::format("{} {} tp {} ep {}{}", family, format.name, split.tp, split.ep,
                                   load == LoadFormat::kDummy ? " dummy" : ""));
          WeightLoadOptions options = dummy;
          options.format = load;
          options.load_nextn = false;
          std::vector<RankDevice> ranks;
          for (int64_t rank = 0; rank < split.tp; ++rank)
            ranks.push_back({.rank = rank, .device = static_cast<int>(rank) % num_gpus});
          ThreadPool pool(4);
          const auto loaded = load_device_weights(dir, config, options, split, ranks, pool);
          ASSERT_TRUE(loaded.ok()) << loaded.status().message;
          ASSERT_EQ(loaded->size(), ranks.size());
          const WeightSources sources = weight_sources(dir, config, options).value();
          for (size_t i = 0; i < ranks.size(); ++i) {
            EXPECT_EQ((*loaded)[i].rank, ranks[i].rank);
            cuda_set_device(ranks[i].device);
            expect_block_of_rank((*loaded)[i], config, sources, options);
            cuda_set_device(0);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(LoadDeviceWeights, ProgressRisesToItsTotal) {
  const GoldenConfig config = testing::golden_config("v3_fp8");
  size_t last = 0;
  size_t total = 0;
  WeightLoadOptions options{.format = LoadFormat::kDummy, .load_nextn = false};
  options.progress = [&](size_t done, size_t of, std::string_view) {
    EXPECT_GE(done, last);
    last = done;
    total = of;
  };
  ThreadPool pool(4);
  ASSERT_TRUE(load_device_weights("", config.config, options, pool).ok());
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 0U);
}

TEST(LoadDeviceWeights, WhatTheGpuCannotDoIsRefusedInOneLine) {
  ThreadPool pool(2);
  const auto message = [&](const ModelConfig& config, const std::filesystem::path& dir,
                           WeightLoadOptions options) {
    const auto loaded = load_device_weights(dir, config, options, pool);
    return loaded.ok() ? std::string("loaded") : loaded.status().message;
  };
  const GoldenConfig v3 = testing::golden_config("v3");
  EXPECT_NE(
      message(v3.config, "", {.format = LoadFormat::kDummy, .compute_dtype = DType::kF32}).find("--dtype"),
      std::string::npos);
  // No single GPU has room for 671 billion parameters.
  const ModelConfig full = parse_model_config(preset_config_json("v3").value(), "v3").value();
  const std::string text = message(full, "", {.format = LoadFormat::kDummy});
  EXPECT_NE(text.find("of device memory are needed for weights"), std::string::npos) << text;

  testing::ScratchDirectory scratch;
  EXPECT_EQ(message(v3.config, scratch.path(), {}),
            load_weights(scratch.path(), v3.config, {}, pool).status().message);
  const auto dir = scratch.path() / "other";
  testing::write_checkpoint(dir, testing::golden_config("v2"), 1);
  EXPECT_EQ(message(v3.config, dir, {}), load_weights(dir, v3.config, {}, pool).status().message);
}

}  // namespace
}  // namespace hadal
