#include "model/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "model/presets.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

constexpr int64_t kShape[] = {33, 64};

RandomTensor make(std::string_view name, DType dtype,
                  RandomWeightOptions options = {.num_hidden_layers = 2}) {
  return RandomTensor::make(name, kShape, dtype, options).value();
}

std::vector<std::byte> all_bytes(const RandomTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.num_bytes()));
  tensor.fill(0, tensor.num_elements(), bytes.data());
  return bytes;
}

float decode(const std::byte* bytes, DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3: {
      fp8_e4m3 v;
      std::memcpy(&v, bytes, 1);
      return to_float(v);
    }
    case DType::kBF16: {
      bf16 v;
      std::memcpy(&v, bytes, 2);
      return to_float(v);
    }
    case DType::kF16: {
      f16 v;
      std::memcpy(&v, bytes, 2);
      return to_float(v);
    }
    default: {
      float v = 0.0F;
      std::memcpy(&v, bytes, 4);
      return v;
    }
  }
}

// The sums come from tools/goldens/random_weights.py for the same tensors, so equality shows that the two
// definitions agree.
TEST(RandomWeights, EqualsTheNumpyDefinition) {
  RandomWeightOptions options{.seed = 12345, .num_hidden_layers = 3, .gate_bias_amplitude = 0.2};
  EXPECT_EQ(tensor_checksum(all_bytes(make("model.layers.1.mlp.gate.weight", DType::kBF16, options))),
            0x00086651d6554d98ULL);
  EXPECT_EQ(tensor_checksum(all_bytes(make("model.layers.0.self_attn.o_proj.weight", DType::kF32, options))),
            0x002120f6229e37d2ULL);
  EXPECT_EQ(tensor_checksum(all_bytes(make("model.norm.weight", DType::kBF16, options))),
            0x0004384b7b094d2cULL);
  EXPECT_EQ(tensor_checksum(all_bytes(make("model.layers.0.mlp.up_proj.weight", DType::kF8E4M3, options))),
            0x00022572c50de3bfULL);
  EXPECT_EQ(
      tensor_checksum(all_bytes(make("model.layers.0.mlp.up_proj.weight_scale_inv", DType::kF32, options))),
      0x000f19bad74995a4ULL);
  options.ue8m0_scales = true;
  EXPECT_EQ(
      tensor_checksum(all_bytes(make("model.layers.0.mlp.up_proj.weight_scale_inv", DType::kF32, options))),
      0x000f19a36a800000ULL);
}

TEST(RandomWeights, VectorsEqualTheElementwiseDefinitionInEveryType) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    const RandomTensor tensor = make("model.layers.0.mlp.down_proj.weight", dtype);
    const std::vector<std::byte> bytes = all_bytes(tensor);
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      ASSERT_EQ(decode(bytes.data() + i * dtype_bytes(dtype), dtype), tensor.at(i))
          << to_string(dtype) << " " << i;
    }
  }
}

TEST(RandomWeights, AnyRangeEqualsTheSameRangeOfTheWhole) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    const RandomTensor tensor = make("lm_head.weight", dtype);
    const std::vector<std::byte> whole = all_bytes(tensor);
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    for (const int64_t begin : {0, 1, 2, 3, 5, 64, 2111}) {
      for (const int64_t count : {0, 1, 2, 3, 7, 31, 70, 2112}) {
        const int64_t n = std::min(count, tensor.num_elements() - begin);
        std::vector<std::byte> part(static_cast<size_t>(n) * size + 1, std::byte{0xa5});
        tensor.fill(begin, n, part.data());
        EXPECT_EQ(std::memcmp(part.data(), whole.data() + static_cast<size_t>(begin) * size, part.size() - 1),
                  0)
            << to_string(dtype) << " " << begin << " " << count;
        EXPECT_EQ(part.back(), std::byte{0xa5}) << "wrote past the end";
      }
    }
  }
}

TEST(RandomWeights, SeedAndNameChangeEverythingButCopiesStayEqual) {
  const auto base = all_bytes(make("model.layers.1.mlp.up_proj.weight", DType::kBF16));
  EXPECT_EQ(base, all_bytes(make("model.layers.1.mlp.up_proj.weight", DType::kBF16)));
  EXPECT_NE(base, all_bytes(make("model.layers.2.mlp.up_proj.weight", DType::kBF16)));
  EXPECT_NE(base, all_bytes(make("model.layers.1.mlp.up_proj.weight", DType::kBF16,
                                 {.seed = 1, .num_hidden_layers = 2})));
  EXPECT_EQ(all_bytes(make("model.embed_tokens.weight", DType::kBF16)),
            all_bytes(make("model.layers.61.embed_tokens.weight", DType::kBF16)));
  EXPECT_EQ(all_bytes(make("lm_head.weight", DType::kBF16)),
            all_bytes(make("model.layers.61.shared_head.head.weight", DType::kBF16)));
}

// Mean and deviation of the recipes are taken over so many elements that a wrong factor cannot pass.
TEST(RandomWeights, RecipesHaveTheStatedScale) {
  const int64_t shape[] = {512, 1024};
  const auto moments = [&](const char* name) {
    const RandomTensor tensor =
        RandomTensor::make(name, shape, DType::kF32, {.num_hidden_layers = 8}).value();
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    tensor.fill(0, tensor.num_elements(), reinterpret_cast<std::byte*>(values.data()));
    double sum = 0.0;
    double squares = 0.0;
    for (const float v : values) {
      sum += v;
      squares += static_cast<double>(v) * v;
    }
    const double mean = sum / static_cast<double>(values.size());
    return std::pair(mean, std::sqrt(squares / static_cast<double>(values.size()) - mean * mean));
  };
  const auto check = [&](const char* name, double mean, double deviation) {
    const auto [got_mean, got_deviation] = moments(name);
    EXPECT_NEAR(got_mean, mean, 0.01 * deviation) << name;
    EXPECT_NEAR(got_deviation, deviation, 0.01 * deviation) << name;
  };
  check("model.layers.0.input_layernorm.weight", 1.0, 0.1 / std::sqrt(3.0));
  check("model.embed_tokens.weight", 0.0, 1.0);
  check("model.layers.0.self_attn.q_proj.weight", 0.0, 1.0 / 32.0);
  check("model.layers.0.mlp.gate.weight", 0.0, 1.0 / 32.0);
  check("model.layers.0.self_attn.o_proj.weight", 0.0, 1.0 / 32.0 / 4.0);
  check("model.layers.0.mlp.experts.3.down_proj.weight", 0.0, 1.0 / 32.0 / 4.0);
}

TEST(RandomWeights, DequantisedFp8HasTheScaleOfTheBf16Weight) {
  const int64_t weight_shape[] = {640, 1024};
  const int64_t scale_shape[] = {5, 8};
  for (const bool ue8m0 : {false, true}) {
    const RandomWeightOptions options{.seed = 3, .num_hidden_layers = 8, .ue8m0_scales = ue8m0};
    double mean_square = 0.0;
    int tensors = 0;
    for (int layer = 0; layer < 20; ++layer) {  // 40 scales per tensor are few, so average over several
      const std::string name = fmt::format("model.layers.{}.mlp.down_proj.weight", layer);
      const auto codes = RandomTensor::make(name, weight_shape, DType::kF8E4M3, options).value();
      const auto scales =
          RandomTensor::make(std::string(name) + "_scale_inv", scale_shape, DType::kF32, options).value();
      double sum = 0.0;
      std::set<float> distinct;
      for (int64_t i = 0; i < codes.num_elements(); ++i) {
        const float scale = scales.at((i / 1024 / 128) * 8 + (i % 1024) / 128);
        distinct.insert(scale);
        const double value = static_cast<double>(codes.at(i)) * scale;
        ASSERT_TRUE(std::isfinite(value));
        sum += value * value;
      }
      if (ue8m0) {
        EXPECT_LE(distinct.size(), 2U);
        for (const float scale : distinct) EXPECT_EQ(std::exp2(std::ilogb(scale)), scale);
      } else {
        EXPECT_EQ(distinct.size(), 40U) << "blocks must not share a scale";
      }
      mean_square += sum / static_cast<double>(codes.num_elements());
      ++tensors;
    }
    const double expected = 1.0 / 1024.0 / 16.0;
    EXPECT_NEAR(mean_square / tensors, expected, 0.05 * expected) << (ue8m0 ? "ue8m0" : "float");
  }
}

TEST(RandomWeights, OtherTypesAreAnError) {
  const auto result = RandomTensor::make("x.weight", kShape, DType::kI32, {});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message.find("I32"), std::string::npos);
}

TEST(Presets, EveryPresetParsesAndHasTheKnownNumberOfParameters) {
  const std::pair<const char*, double> kBillions[] = {{"v2-lite", 15.7},
                                                      {"coder-v2-lite", 15.7},
                                                      {"v2", 235.7},
                                                      {"v2.5", 235.7},
                                                      {"v3", 671.0},
                                                      {"r1", 671.0},
                                                      {"v3.1", 671.0},
                                                      {"v3.2", 671.9},
                                                      {"coder-v2-lite-fp8", 15.7},
                                                      {"r1-channel-int8", 671.0},
                                                      {"r1-block-int8", 671.0}};
  ASSERT_EQ(preset_names().size(), std::size(kBillions));
  for (const auto& [name, billions] : kBillions) {
    const ModelConfig config = parse_model_config(preset_config_json(name).value(), name).value();
    double parameters = 0.0;
    for (const TensorSpec& spec : expected_tensors(config)) {
      if (!spec.nextn && spec.role != TensorRole::kScale)
        parameters += static_cast<double>(spec.num_elements());
    }
    EXPECT_NEAR(parameters / 1e9, billions, 0.005 * billions) << name;
  }
  const auto unknown = preset_config_json("v9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message.find("v2-lite"), std::string::npos);
}

}  // namespace
}  // namespace hadal
