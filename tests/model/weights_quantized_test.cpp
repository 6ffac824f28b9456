// Compares weights of every quantised format, stored and made at load, with code · scale of the files' bytes.
#include <gmock/gmock.h>

#include "model/info.h"
#include "model/quantize.h"
#include "model/random_weights.h"
#include "model/weights_loader.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/matrix_elements.h"

namespace hadal {
namespace {

using testing::element;
using testing::expect_matrix;
using testing::FileTensor;
using testing::FileTensors;
using ::testing::HasSubstr;
using testing::Json;

constexpr const char* kKvB = "model.layers.1.self_attn.kv_b_proj.weight";

ModelConfig config_in(const PublishedFormat& format, std::vector<std::string> unquantised = {}) {
  Json json = testing::tiny_config();
  json["num_nextn_predict_layers"] = 1;
  json["quantization_config"] = Json::parse(quantization_config_json(format, unquantised));
  return testing::parsed(json);
}

float float_at(const FileTensor& tensor, int64_t i) {
  const char* bytes = tensor.bytes.data();
  if (tensor.dtype == "F32") return reinterpret_cast<const float*>(bytes)[i];
  if (tensor.dtype == "BF16") return to_float(reinterpret_cast<const bf16*>(bytes)[i]);
  if (tensor.dtype == "I8") return static_cast<float>(reinterpret_cast<const int8_t*>(bytes)[i]);
  return to_float(fp8_e4m3{static_cast<uint8_t>(bytes[i])});
}

// Returns the value of element i of a stored linear.
float meaning(const FileTensors& tensors, const WeightQuantization& quantization, const std::string& name,
              int64_t i) {
  const FileTensor& weight = tensors.at(name);
  if (weight.dtype == "BF16") return float_at(weight, i);
  const FileTensor& scale = tensors.at(scale_name(quantization, name));
  const int64_t k = weight.shape[1];
  const int64_t at = is_block_scaled(quantization.type) ? i / k / 128 * ((k + 127) / 128) + i % k / 128
                     : quantization.one_scale           ? 0
                                                        : i / k;
  return float_at(weight, i) * float_at(scale, at);
}

// These are the names of the linears of layer 1 and of one of the NextN layer.
std::vector<std::pair<std::string, MatrixWeight>> linears_of(const ModelWeights& w) {
  const LayerWeights& layer = w.layers[1];
  return {{"model.layers.1.self_attn.q_a_proj.weight", layer.attention.q_a},
          {"model.layers.1.self_attn.q_b_proj.weight", layer.attention.q_b},
          {"model.layers.1.self_attn.kv_a_proj_with_mqa.weight", layer.attention.kv_a},
          {kKvB, layer.attention.kv_b},
          {"model.layers.1.self_attn.o_proj.weight", layer.attention.o},
          {"model.layers.1.mlp.experts.3.down_proj.weight", layer.moe->experts[3].down},
          {"model.layers.1.mlp.shared_experts.up_proj.weight", layer.moe->shared->up},
          {"model.layers.0.mlp.gate_proj.weight", w.layers[0].mlp->gate},
          {"model.layers.2.self_attn.o_proj.weight", w.mtp->layer.attention.o}};
}

class QuantizedWeights : public ::testing::Test {
 protected:
  Result<ModelWeights> load(const ModelConfig& config, const FileTensors& tensors,
                            const WeightLoadOptions& options = {}, int padding = 0) {
    testing::write_file(dir_.path() / "model.safetensors", testing::safetensors_file(tensors, padding));
    return load_weights(dir_.path(), config, options, pool_);
  }
  std::string error(const ModelConfig& config, const FileTensors& tensors) {
    const auto weights = load(config, tensors);
    return weights.ok() ? "no error" : weights.status().message;
  }

  testing::TempDir dir_;
  ThreadPool pool_{2};
};

TEST_F(QuantizedWeights, ValuesAreCodeTimesScaleInEveryFormat) {
  for (const PublishedFormat& format : published_formats()) {
    const ModelConfig config = config_in(format);
    const WeightQuantization& quantization = *config.quantization;
    const FileTensors tensors = testing::tensors_of(config);
    for (const DType compute : {DType::kBF16, DType::kF32}) {
      for (const int padding : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} {} padding {}", format.name, to_string(compute), padding));
        const auto w = load(config, tensors, {.compute_dtype = compute}, padding);
        ASSERT_TRUE(w.ok()) << w.status().message;
        for (const auto& [name, matrix] : linears_of(*w)) {
          const bool widened = name == kKvB && is_channel_scaled(quantization.type);
          const bool rounded = widened && compute == DType::kBF16;
          const std::string& key = name;
          expect_matrix(matrix, tensors.at(name).shape[0], tensors.at(name).shape[1],
                        rounded   ? WeightType::kBF16
                        : widened ? WeightType::kF32
                                  : quantization.type,
                        [&](int64_t i) {
                          const float value = meaning(tensors, quantization, key, i);
                          return rounded ? to_float(to_bf16(value)) : value;
                        });
        }
        EXPECT_EQ(w->lm_head.type, WeightType::kBF16);
        EXPECT_EQ(w->mtp->eh_proj.type, WeightType::kBF16);
        const ModelInfo info = model_info(config, {.compute_dtype = compute}, KvLayout{}, 0);
        const int64_t actual = w->mapped_bytes + w->owned_bytes;
        EXPECT_GE(actual, info.weight_bytes);
        EXPECT_LT(actual, info.weight_bytes + 64 * 200);  // allocations are rounded up to 64 bytes
      }
    }
  }
}

TEST_F(QuantizedWeights, ScalesMayHaveOtherFloatTypesAndShapes) {
  for (const char* name : {"compressed-int8", "compressed-fp8-tensor"}) {
    const ModelConfig config = config_in(*find_published_format(name));
    const WeightQuantization& quantization = *config.quantization;
    FileTensors tensors = testing::tensors_of(config);
    for (auto& [key, tensor] : tensors) {
      if (!key.ends_with("weight_scale")) continue;
      std::vector<int64_t> shape = tensor.shape;
      shape.pop_back();  // [n] for [n, 1], [] for [1]
      tensor = testing::make_tensor(key, DType::kBF16, tensor.shape, testing::pattern);
      tensor.shape = shape;
    }
    const auto w = load(config, tensors);
    ASSERT_TRUE(w.ok()) << w.status().message;
    for (const auto& [key, matrix] : linears_of(*w)) {
      if (key == kKvB) continue;
      const std::string& linear = key;
      expect_matrix(matrix, tensors.at(key).shape[0], tensors.at(key).shape[1], quantization.type,
                    [&](int64_t i) { return meaning(tensors, quantization, linear, i); });
    }
  }
}

TEST_F(QuantizedWeights, LinearsThatTheConfigLeavesOutStayInSixteenBits) {
  const ModelConfig config =
      config_in(*find_published_format("w8a8_int8"), {"re:.*kv_b_proj$", "model.layers.0.mlp"});
  const FileTensors tensors = testing::tensors_of(config);
  for (const LoadQuantization flag : {LoadQuantization::kNone, LoadQuantization::kW8A8Int8}) {
    const auto w = load(config, tensors, {.quantization = flag});
    ASSERT_TRUE(w.ok()) << w.status().message;
    EXPECT_EQ(w->layers[0].mlp->gate.type, WeightType::kBF16);
    EXPECT_EQ(w->layers[1].attention.kv_b.type, WeightType::kBF16);
    EXPECT_EQ(w->layers[1].attention.o.type, WeightType::kInt8Channel);
  }
}

// Gate and up are computed side by side, so they have one type, whatever a checkpoint stores.
TEST_F(QuantizedWeights, GateAndUpOfDifferentFormatsAreWidened) {
  const std::string prefixes[] = {"model.layers.0.mlp.", "model.layers.1.mlp.experts.3.",
                                  "model.layers.1.mlp.shared_experts.", "model.layers.2.mlp.experts.0."};
  const auto mlps_of = [](const ModelWeights& w) {
    return std::vector<MlpWeights>{*w.layers[0].mlp, w.layers[1].moe->experts[3], *w.layers[1].moe->shared,
                                   w.mtp->layer.moe->experts[0]};
  };
  for (const PublishedFormat& format : published_formats()) {
    for (const char* left_out : {"re:.*up_proj", "gate_proj"}) {
      const ModelConfig config = config_in(format, {left_out});
      const WeightQuantization& quantization = *config.quantization;
      const FileTensors tensors = testing::tensors_of(config);
      ASSERT_EQ(tensors.at(prefixes[0] + "down_proj.weight").dtype,
                safetensors_name(code_dtype(quantization.type)));
      for (const DType compute : {DType::kBF16, DType::kF32, DType::kF16}) {
        SCOPED_TRACE(fmt::format("{} without {} in {}", format.name, left_out, to_string(compute)));
        const bool rounds = compute == DType::kBF16;
        const auto w = load(config, tensors, {.compute_dtype = compute});
        ASSERT_TRUE(w.ok()) << w.status().message;
        const std::vector<MlpWeights> mlps = mlps_of(*w);
        for (size_t i = 0; i < mlps.size(); ++i) {
          for (const auto& [part, matrix] :
               {std::pair{"gate_proj.weight", mlps[i].gate}, {"up_proj.weight", mlps[i].up}}) {
            const std::string name = prefixes[i] + part;
            SCOPED_TRACE(name);
            const std::vector<int64_t>& shape = tensors.at(name).shape;
            expect_matrix(matrix, shape[0], shape[1], rounds ? WeightType::kBF16 : WeightType::kF32,
                          [&](int64_t at) {
                            const float value = meaning(tensors, quantization, name, at);
                            return rounds ? to_float(to_bf16(value)) : value;
                          });
          }
          EXPECT_EQ(mlps[i].down.type, quantization.type);
        }
        const ModelInfo info = model_info(config, {.compute_dtype = compute}, KvLayout{}, 0);
        const int64_t actual = w->mapped_bytes + w->owned_bytes;
        EXPECT_GE(actual, info.weight_bytes);
        EXPECT_LT(actual, info.weight_bytes + 64 * 200);
      }
    }
  }
}

// A linear that the config quantises may be stored without scales; --quantization then converts it to the
// config's format, whatever blocks or rows the flag means elsewhere.
TEST_F(QuantizedWeights, CoveredLinearsInSixteenBitsBecomeTheConfigsFormat) {
  const ModelConfig config = config_in(*find_published_format("fp8-tensor"));
  FileTensors tensors = testing::tensors_of(config);
  const std::string up = "model.layers.1.mlp.experts.3.up_proj.weight";
  tensors.erase(up + "_scale");
  tensors[up] = testing::make_tensor(up, DType::kBF16, tensors.at(up).shape, testing::pattern);
  const auto as_stored = load(config, tensors);
  ASSERT_TRUE(as_stored.ok()) << as_stored.status().message;
  const MlpWeights& stored = as_stored->layers[1].moe->experts[3];
  EXPECT_EQ(stored.gate.type, WeightType::kBF16);
  EXPECT_EQ(stored.up.type, WeightType::kBF16);
  EXPECT_EQ(as_stored->layers[1].moe->experts[2].gate.type, WeightType::kFp8Channel);
  const auto quantised = load(config, tensors, {.quantization = LoadQuantization::kFp8});
  ASSERT_TRUE(quantised.ok()) << quantised.status().message;
  const MlpWeights& mlp = quantised->layers[1].moe->experts[3];
  EXPECT_EQ(mlp.gate.type, WeightType::kFp8Channel);
  ASSERT_EQ(mlp.up.type, WeightType::kFp8Channel);
  const FileTensor& source = tensors.at(up);
  for (int64_t i = 0; i < mlp.up.n * mlp.up.k; ++i)
    ASSERT_NEAR(element(mlp.up, i / mlp.up.k, i % mlp.up.k), float_at(source, i), 0.13F) << i;
}

TEST_F(QuantizedWeights, StaticScalesOfActivationsAreIgnored) {
  const ModelConfig config = config_in(*find_published_format("fp8-tensor"));
  FileTensors tensors = testing::tensors_of(config);
  const std::string module = "model.layers.1.mlp.experts.0.up_proj";
  tensors[module + ".input_scale"] = testing::make_tensor("x", DType::kF32, {1}, testing::pattern);
  EXPECT_EQ(error(config, tensors), "no error");
  tensors["model.layers.1.mlp.gate.input_scale"] = tensors[module + ".input_scale"];
  EXPECT_THAT(error(config, tensors), HasSubstr("unexpected: model.layers.1.mlp.gate.input_scale"));
}

TEST_F(QuantizedWeights, WrongTensorsAreNamed) {
  const ModelConfig config = config_in(*find_published_format("w8a8_int8"));
  const FileTensors tensors = testing::tensors_of(config);
  const std::string name = "model.layers.1.self_attn.o_proj.weight";
  FileTensors wrong = tensors;
  wrong.erase(name + "_scale");
  EXPECT_THAT(error(config, wrong), HasSubstr("missing: " + name + "_scale"));
  wrong = tensors;
  wrong[name + "_scale"] = testing::make_tensor("s", DType::kF32, {256, 1}, testing::pattern);
  EXPECT_THAT(error(config, wrong), HasSubstr(name + "_scale has shape [256, 1], expected [144, 1]"));
  wrong = tensors;
  wrong[name + "_scale"] = testing::make_tensor("s", DType::kF32, {1}, testing::pattern);
  EXPECT_THAT(error(config, wrong), HasSubstr(name + "_scale has shape [1], expected [144, 1]"));
  wrong = tensors;
  wrong[name + "_scale"].dtype = "I32";
  EXPECT_THAT(error(config, wrong), HasSubstr(name + "_scale is I32, expected BF16, F16 or F32"));
  wrong = tensors;
  wrong[name] = testing::make_tensor(name, DType::kF8E4M3, {144, 256}, testing::pattern);
  EXPECT_THAT(error(config, wrong), HasSubstr(name + " is F8_E4M3, expected I8, BF16, F16 or F32"));
  wrong = tensors;
  wrong["lm_head.weight"] = {"I8", {96, 144}, std::string(96 * 144, '\1')};
  EXPECT_THAT(error(config, wrong), HasSubstr("lm_head.weight is I8, expected BF16, F16 or F32"));

  const ModelConfig plain = testing::parsed(testing::tiny_config());
  EXPECT_THAT(error(plain, tensors), HasSubstr("is I8, expected BF16, F16 or F32 (config.json has no"));
}

TEST_F(QuantizedWeights, QuantisingAtLoadFollowsTheDefinition) {
  Json json = testing::tiny_config();
  json["num_nextn_predict_layers"] = 1;
  for (const char* dtype : {"bfloat16", "float32"}) {
    json["torch_dtype"] = dtype;
    const ModelConfig config = testing::parsed(json);
    const FileTensors tensors = testing::tensors_of(config);
    for (const LoadQuantization flag : {LoadQuantization::kFp8, LoadQuantization::kW8A8Fp8,
                                        LoadQuantization::kW8A8Int8, LoadQuantization::kBlockwiseInt8}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype, to_string(flag)));
      const WeightType type = weight_type_of(flag);
      const WeightLoadOptions options{.quantization = flag};
      const auto w = load(config, tensors, options);
      ASSERT_TRUE(w.ok()) << w.status().message;
      for (const auto& [name, matrix] : linears_of(*w)) {
        if (name == kKvB && is_channel_scaled(type)) {
          EXPECT_EQ(matrix.type, WeightType::kBF16);
          continue;
        }
        const FileTensor& source = tensors.at(name);
        const int64_t n = source.shape[0], k = source.shape[1];
        std::vector<float> values, expected(static_cast<size_t>(n * k));
        for (int64_t i = 0; i < n * k; ++i) values.push_back(float_at(source, i));
        for (int64_t row = 0; row < n; row += 128) {
          const int64_t num_rows = std::min<int64_t>(128, n - row);
          std::vector<std::byte> codes(static_cast<size_t>(num_rows * k));
          std::vector<float> scales(static_cast<size_t>(std::max(num_rows, k)));
          quantize_rows(type, DType::kF32, reinterpret_cast<const std::byte*>(values.data() + row * k),
                        num_rows, k, codes.data(), scales.data());
          dequantize_rows(type, codes.data(), num_rows, k, scales.data(), expected.data() + row * k);
        }
        expect_matrix(matrix, n, k, type, [&](int64_t i) { return expected[static_cast<size_t>(i)]; });
      }
      EXPECT_EQ(w->lm_head.type, WeightType::kBF16);
      const int64_t actual = w->mapped_bytes + w->owned_bytes;
      const ModelInfo info = model_info(config, options, KvLayout{}, 0);
      EXPECT_GE(actual, info.weight_bytes);
      EXPECT_LT(actual, info.weight_bytes + 64 * 200);
    }
  }
}

TEST_F(QuantizedWeights, DummyWeightsAreTheGeneratorsAndOfTheSizeOfBf16Ones) {
  for (const PublishedFormat& format : published_formats()) {
    const ModelConfig config = config_in(format);
    const auto w = load_weights("/nowhere", config, {.format = LoadFormat::kDummy, .seed = 7}, pool_);
    ASSERT_TRUE(w.ok()) << format.name << ": " << w.status().message;
    const auto options = RandomWeightOptions::for_config(config, 7);
    const std::string name = "model.layers.1.self_attn.q_b_proj.weight";
    const MatrixWeight& q_b = w->layers[1].attention.q_b;
    TensorSpec weight, scale;
    for (const TensorSpec& spec : expected_tensors(config)) {
      if (spec.name == name) weight = spec;
      if (spec.name == scale_name(*config.quantization, name)) scale = spec;
    }
    const RandomTensor codes = *RandomTensor::make(weight, options);
    const RandomTensor scales = *RandomTensor::make(scale, options);
    double squares = 0.0;
    const int64_t k = q_b.k;
    for (int64_t i = 0; i < q_b.n * k; ++i) {
      const int64_t at = is_block_scaled(q_b.type)        ? i / k / 128 * ((k + 127) / 128) + i % k / 128
                         : config.quantization->one_scale ? 0
                                                          : i / k;
      ASSERT_EQ(element(q_b, i / k, i % k), codes.at(i) * scales.at(at)) << format.name;
      squares += std::pow(static_cast<double>(element(q_b, i / k, i % k)), 2);
    }
    // A single scale, or the mean of the few scales of small blocks, may differ from the expected scale by up
    // to 50 %.
    const double rms = std::sqrt(squares / static_cast<double>(q_b.n * k) * static_cast<double>(k));
    EXPECT_GT(rms, 0.4) << format.name;
    EXPECT_LT(rms, 1.6) << format.name;
    EXPECT_EQ(w->mapped_bytes, 0);
  }
}

TEST(RandomInt8, PiecesEqualTheWholeAndNoCodeIsMinus128) {
  const int64_t shape[] = {3, 100'003};
  const RandomTensor tensor = *RandomTensor::make("x.weight", shape, DType::kI8, {.seed = 5});
  std::vector<int8_t> whole(static_cast<size_t>(tensor.num_elements()));
  tensor.fill(0, tensor.num_elements(), reinterpret_cast<std::byte*>(whole.data()));
  std::array<int, 256> seen{};
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    ASSERT_EQ(static_cast<float>(whole[static_cast<size_t>(i)]), tensor.at(i)) << i;
    ++seen[static_cast<uint8_t>(whole[static_cast<size_t>(i)])];
  }
  EXPECT_EQ(seen[0x80], 0);
  for (int code = 0; code < 256; ++code) EXPECT_TRUE(code == 0x80 || seen[static_cast<size_t>(code)] > 0);
  for (int64_t begin : {1, 2, 3, 77, 1001}) {
    std::vector<int8_t> piece(999);
    tensor.fill(begin, 999, reinterpret_cast<std::byte*>(piece.data()));
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + begin)) << begin;
  }
}

}  // namespace
}  // namespace hadal
