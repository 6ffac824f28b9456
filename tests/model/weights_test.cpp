#include "model/weights.h"

#include <gmock/gmock.h>

#include <mutex>

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
using testing::FileTensors;
using ::testing::HasSubstr;
using testing::Json;

class WeightsTest : public ::testing::Test {
 protected:
  Result<ModelWeights> load(const ModelConfig& config, const FileTensors& tensors,
                            WeightLoadOptions options = {}, int padding = 0) {
    testing::write_file(dir_.path() / "model.safetensors", testing::safetensors_file(tensors, padding));
    return load_weights(dir_.path(), config, options, pool_);
  }
  ModelWeights loaded(const ModelConfig& config, const FileTensors& tensors, WeightLoadOptions options = {},
                      int padding = 0) {
    auto weights = load(config, tensors, std::move(options), padding);
    if (!weights.ok()) throw std::runtime_error(weights.status().message);
    return std::move(weights).value();
  }
  static ModelConfig config_with(const char* field, const Json& value) {
    Json json = testing::tiny_config();
    json[field] = value;
    return testing::parsed(json);
  }

  testing::TempDir dir_;
  ThreadPool pool_{2};
};

constexpr const char* kOProj = "model.layers.1.self_attn.o_proj.weight";
constexpr const char* kExpert = "model.layers.1.mlp.experts.3.down_proj.weight";
constexpr const char* kGate = "model.layers.1.mlp.gate.weight";

// Widening a stored value never changes it; this is the value in the checkpoint.
float stored(DType dtype, const std::string& name, int64_t i) {
  const float v = testing::fine_pattern(name, i);
  return dtype == DType::kF32 ? v : dtype == DType::kF16 ? to_float(to_f16(v)) : to_float(to_bf16(v));
}

TEST_F(WeightsTest, Bf16MatricesAreViewsIntoTheFile) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  for (const DType compute : {DType::kBF16, DType::kF32, DType::kF16}) {
    const ModelWeights w = loaded(config, testing::tensors_of(config), {.compute_dtype = compute});
    const auto value = [](const char* name) {
      return [name](int64_t i) { return stored(DType::kBF16, name, i); };
    };
    ASSERT_EQ(w.layers.size(), 2U);
    ASSERT_TRUE(w.layers[0].mlp && !w.layers[0].moe);
    ASSERT_TRUE(w.layers[1].moe && !w.layers[1].mlp);
    EXPECT_EQ(w.layers[1].moe->experts.size(), 4U);
    expect_matrix(w.layers[1].attention.o, 144, 256, WeightType::kBF16, value(kOProj));
    expect_matrix(w.layers[1].moe->experts[3].down, 144, 72, WeightType::kBF16, value(kExpert));
    expect_matrix(w.layers[1].moe->gate, 4, 144, WeightType::kBF16, value(kGate));
    expect_matrix(w.layers[1].moe->shared->up, 72, 144, WeightType::kBF16,
                  value("model.layers.1.mlp.shared_experts.up_proj.weight"));
    expect_matrix(w.layers[0].mlp->gate, 200, 144, WeightType::kBF16,
                  value("model.layers.0.mlp.gate_proj.weight"));
    expect_matrix(w.layers[0].attention.q_a, 136, 144, WeightType::kBF16,
                  value("model.layers.0.self_attn.q_a_proj.weight"));
    expect_matrix(w.layers[0].attention.q_b, 2 * 192, 136, WeightType::kBF16,
                  value("model.layers.0.self_attn.q_b_proj.weight"));
    expect_matrix(w.layers[0].attention.kv_a, 576, 144, WeightType::kBF16,
                  value("model.layers.0.self_attn.kv_a_proj_with_mqa.weight"));
    expect_matrix(w.layers[0].attention.kv_b, 512, 512, WeightType::kBF16,
                  value("model.layers.0.self_attn.kv_b_proj.weight"));
    expect_matrix(w.embedding, 96, 144, WeightType::kBF16, value("model.embed_tokens.weight"));
    expect_matrix(w.lm_head, 96, 144, WeightType::kBF16, value("lm_head.weight"));
    for (int64_t i = 0; i < 144; ++i) {
      ASSERT_EQ(w.final_norm[i], stored(DType::kBF16, "model.norm.weight", i));
      ASSERT_EQ(w.layers[1].post_attention_norm[i],
                stored(DType::kBF16, "model.layers.1.post_attention_layernorm.weight", i));
    }
    for (int64_t i = 0; i < 4; ++i) {
      ASSERT_EQ(w.layers[1].moe->correction_bias[i],
                testing::fine_pattern("model.layers.1.mlp.gate.e_score_correction_bias", i));
    }
    EXPECT_EQ(w.layers[0].attention.q_proj.data, nullptr);
    EXPECT_EQ(w.compute_dtype, compute);
    EXPECT_LT(w.owned_bytes, 16384);  // norms only
    EXPECT_GT(w.mapped_bytes, 1'000'000);
  }
}

TEST_F(WeightsTest, F32AndF16FollowTheComputeType) {
  for (const auto& [dtype, text] : {std::pair{DType::kF32, "float32"}, {DType::kF16, "float16"}}) {
    const ModelConfig config = config_with("torch_dtype", text);
    const FileTensors tensors = testing::tensors_of(config);
    const DType from = dtype;
    const auto value = [from](const char* name) { return [=](int64_t i) { return stored(from, name, i); }; };
    for (const DType compute : {DType::kF32, DType::kF16}) {
      const ModelWeights w = loaded(config, tensors, {.compute_dtype = compute});
      expect_matrix(w.layers[1].attention.o, 144, 256, WeightType::kF32, value(kOProj));
      expect_matrix(w.embedding, 96, 144, WeightType::kF32, value("model.embed_tokens.weight"));
      expect_matrix(w.layers[1].moe->gate, 4, 144, WeightType::kF32, value(kGate));
    }
    const ModelWeights w = loaded(config, tensors, {.compute_dtype = DType::kBF16});
    const auto rounded = [from](const char* name) {
      return [=](int64_t i) { return to_float(to_bf16(stored(from, name, i))); };
    };
    expect_matrix(w.layers[1].attention.o, 144, 256, WeightType::kBF16, rounded(kOProj));
    expect_matrix(w.lm_head, 96, 144, WeightType::kBF16, rounded("lm_head.weight"));
    expect_matrix(w.layers[1].moe->gate, 4, 144, WeightType::kF32,
                  value(kGate));  // the router is never rounded
    for (int64_t i = 0; i < 144; ++i) ASSERT_EQ(w.final_norm[i], stored(from, "model.norm.weight", i));
  }
}

TEST_F(WeightsTest, Fp8BlocksStayInTheFile) {
  const ModelConfig config = config_with("quantization_config", testing::fp8_config_field());
  const ModelWeights w = loaded(config, testing::tensors_of(config));
  const MatrixWeight& kv_a = w.layers[0].attention.kv_a;  // 576 rows: the last block row is ragged
  const std::string name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight";
  EXPECT_EQ(kv_a.scale_stride, 2);
  expect_matrix(kv_a, 576, 144, WeightType::kFp8Block, [&](int64_t i) {
    const int64_t block = i / 144 / 128 * 2 + i % 144 / 128;
    return to_float(to_fp8_e4m3(testing::fine_pattern(name, i))) *
           testing::fine_pattern(name + "_scale_inv", block);
  });
  EXPECT_EQ(w.lm_head.type, WeightType::kBF16);
  EXPECT_LT(w.owned_bytes, 16384);
}

TEST_F(WeightsTest, MisalignedFilesGiveTheSameValues) {
  for (const Json& quantization : {Json(nullptr), testing::fp8_config_field()}) {
    const ModelConfig config = config_with("quantization_config", quantization);
    const FileTensors tensors = testing::tensors_of(config);
    const ModelWeights aligned = loaded(config, tensors);
    const ModelWeights odd = loaded(config, tensors, {}, /*padding=*/1);
    EXPECT_GT(odd.owned_bytes, aligned.owned_bytes);
    const MatrixWeight& expected = aligned.layers[1].moe->experts[3].down;
    expect_matrix(odd.layers[1].moe->experts[3].down, 144, 72, expected.type,
                  [&](int64_t i) { return element(expected, i / 72, i % 72); });
    EXPECT_EQ(reinterpret_cast<uintptr_t>(odd.lm_head.data) % 2, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(odd.layers[1].moe->correction_bias) % 4, 0U);
  }
}

TEST_F(WeightsTest, QuantisingAtLoadFollowsTheDefinition) {
  for (const auto& [dtype, text] : {std::pair{DType::kBF16, "bfloat16"}, {DType::kF32, "float32"}}) {
    const ModelConfig config = config_with("torch_dtype", text);
    const ModelWeights w =
        loaded(config, testing::tensors_of(config), {.quantization = LoadQuantization::kFp8});
    const MatrixWeight& kv_a = w.layers[0].attention.kv_a;
    const std::string name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight";
    ASSERT_EQ(kv_a.scale_stride, 2);
    std::vector<float> values;
    for (int64_t i = 0; i < 576 * 144; ++i) values.push_back(stored(dtype, name, i));
    for (int64_t strip = 0; strip < 5; ++strip) {
      const int64_t rows = std::min<int64_t>(128, 576 - strip * 128);
      std::vector<fp8_e4m3> codes(static_cast<size_t>(rows * 144));
      std::vector<float> scales(2);
      quantize_rows(WeightType::kFp8Block, DType::kF32,
                    reinterpret_cast<const std::byte*>(values.data() + strip * 128 * 144), rows, 144,
                    reinterpret_cast<std::byte*>(codes.data()), scales.data());
      EXPECT_EQ(std::memcmp(codes.data(), static_cast<const fp8_e4m3*>(kv_a.data) + strip * 128 * 144,
                            codes.size()),
                0);
      EXPECT_EQ(kv_a.scales[strip * 2], scales[0]);
      EXPECT_EQ(kv_a.scales[strip * 2 + 1], scales[1]);
    }
    EXPECT_EQ(w.layers[1].moe->experts[0].gate.type, WeightType::kFp8Block);
    EXPECT_NE(w.layers[1].moe->gate.type, WeightType::kFp8Block);
    EXPECT_EQ(w.embedding.type, WeightType::kBF16);
    EXPECT_EQ(w.lm_head.type, WeightType::kBF16);
  }
}

TEST_F(WeightsTest, NextnUsesTheTargetsTensorsThatItLacks) {
  const ModelConfig config = config_with("num_nextn_predict_layers", 1);
  const ModelWeights shared = loaded(config, testing::tensors_of(config));
  ASSERT_TRUE(shared.mtp);
  EXPECT_EQ(shared.mtp->embedding.data, shared.embedding.data);
  EXPECT_EQ(shared.mtp->lm_head.data, shared.lm_head.data);
  EXPECT_TRUE(shared.mtp->layer.moe);
  expect_matrix(shared.mtp->eh_proj, 144, 288, WeightType::kBF16,
                [](int64_t i) { return stored(DType::kBF16, "model.layers.2.eh_proj.weight", i); });
  ASSERT_EQ(shared.mtp->hnorm[3], stored(DType::kBF16, "model.layers.2.hnorm.weight", 3));

  const ModelWeights own = loaded(config, testing::tensors_of(config, /*with_optional=*/true));
  expect_matrix(own.mtp->lm_head, 96, 144, WeightType::kBF16,
                [](int64_t i) { return stored(DType::kBF16, "model.layers.2.shared_head.head.weight", i); });
  EXPECT_NE(own.mtp->embedding.data, own.embedding.data);

  EXPECT_FALSE(loaded(config, testing::tensors_of(config), {.load_nextn = false}).mtp);
  const ModelConfig without = testing::parsed(testing::tiny_config());
  EXPECT_FALSE(loaded(config, testing::tensors_of(without)).mtp);
}

TEST_F(WeightsTest, NextnEhProjIsNeverQuantised) {
  const ModelConfig config = config_with("num_nextn_predict_layers", 1);
  const ModelWeights w =
      loaded(config, testing::tensors_of(config), {.quantization = LoadQuantization::kFp8});
  EXPECT_EQ(w.mtp->eh_proj.type, WeightType::kBF16);
  EXPECT_EQ(w.mtp->layer.attention.o.type, WeightType::kFp8Block);
}

TEST_F(WeightsTest, DirectQueriesAndTiedHeadsAreLoaded) {
  Json json = testing::tiny_config();
  json["q_lora_rank"] = nullptr;
  json["tie_word_embeddings"] = true;
  const ModelConfig config = testing::parsed(json);
  const ModelWeights w = loaded(config, testing::tensors_of(config));
  expect_matrix(w.layers[0].attention.q_proj, 384, 144, WeightType::kBF16,
                [](int64_t i) { return stored(DType::kBF16, "model.layers.0.self_attn.q_proj.weight", i); });
  EXPECT_EQ(w.layers[0].attention.q_a_norm, nullptr);
  EXPECT_EQ(w.lm_head.data, w.embedding.data);
}

TEST_F(WeightsTest, WeightsStayValidAfterTheLoaderAndCopiesAreGone) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  ModelWeights w = loaded(config, testing::tensors_of(config));
  std::filesystem::remove(dir_.path() / "model.safetensors");
  const ModelWeights copy = w;
  w = ModelWeights{};
  EXPECT_EQ(element(copy.layers[1].attention.o, 5, 6), stored(DType::kBF16, kOProj, 5 * 256 + 6));
}

TEST_F(WeightsTest, DummyWeightsEqualTheGeneratorsForAnyNumberOfThreads) {
  for (const Json& quantization : {Json(nullptr), testing::fp8_config_field()}) {
    const ModelConfig config = config_with("quantization_config", quantization);
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      auto w = load_weights("/nowhere", config, {.format = LoadFormat::kDummy, .seed = 7}, pool);
      ASSERT_TRUE(w.ok()) << w.status().message;
      const auto options = RandomWeightOptions::for_config(config, 7);
      const bool fp8 = config.quantization.has_value();
      const DType dtype = fp8 ? DType::kF8E4M3 : DType::kBF16;
      const std::vector<int64_t> shape{144, 256};
      const RandomTensor random = *RandomTensor::make(kOProj, shape, dtype, options);
      const std::vector<int64_t> scale_shape{2, 2};
      const RandomTensor scales =
          *RandomTensor::make(std::string(kOProj) + "_scale_inv", scale_shape, DType::kF32, options);
      expect_matrix(w->layers[1].attention.o, 144, 256, fp8 ? WeightType::kFp8Block : WeightType::kBF16,
                    [&](int64_t i) {
                      const int64_t block = i / 256 / 128 * 2 + i % 256 / 128;
                      return random.at(i) * (fp8 ? scales.at(block) : 1.0F);
                    });
      EXPECT_EQ(w->mapped_bytes, 0);
    }
  }
}

TEST_F(WeightsTest, DummyWeightsCanBeQuantised) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  const auto w =
      load_weights("/nowhere", config,
                   {.format = LoadFormat::kDummy, .quantization = LoadQuantization::kFp8, .seed = 7}, pool_);
  ASSERT_TRUE(w.ok());
  const std::vector<int64_t> shape{144, 256};
  const RandomTensor random =
      *RandomTensor::make(kOProj, shape, DType::kBF16, RandomWeightOptions::for_config(config, 7));
  const MatrixWeight& o = w->layers[1].attention.o;
  ASSERT_EQ(o.type, WeightType::kFp8Block);
  for (int64_t i = 0; i < 144 * 256; ++i) {
    const float step = o.scales[i / 256 / 128 * 2 + i % 256 / 128];
    ASSERT_NEAR(element(o, i / 256, i % 256), random.at(i),
                std::max(std::fabs(random.at(i)) / 15.9F, step * 0x1p-9F));
  }
}

TEST_F(WeightsTest, ModelsThatDoNotFitAreRefusedBeforeMemoryIsTouched) {
  Json json = testing::tiny_config();
  json.update(
      Json::parse(R"({"hidden_size": 65536, "intermediate_size": 1048576, "moe_intermediate_size": 65536,
                              "num_hidden_layers": 64, "vocab_size": 1000000, "n_routed_experts": 128})"));
  const auto w = load_weights("/nowhere", testing::parsed(json), {.format = LoadFormat::kDummy}, pool_);
  ASSERT_FALSE(w.ok());
  if (w.status().code == StatusCode::kResourceExhausted) {
    EXPECT_THAT(w.status().message, HasSubstr("GB of memory are needed for weights"));
  } else {
    EXPECT_THAT(w.status().message, HasSubstr("elements"));  // one tensor beyond the generator's range
  }
}

TEST_F(WeightsTest, FilesOfTheWrongModelAreRefused) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  FileTensors tensors = testing::tensors_of(config);
  tensors.erase("lm_head.weight");
  const auto w = load(config, tensors);
  ASSERT_FALSE(w.ok());
  EXPECT_EQ(w.status().code, StatusCode::kDataLoss);
  EXPECT_THAT(w.status().message, HasSubstr("missing: lm_head.weight"));
}

TEST_F(WeightsTest, ProgressRisesToItsTotal) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  std::mutex mutex;
  std::vector<size_t> done;
  size_t total = 0;
  WeightLoadOptions options{.quantization = LoadQuantization::kFp8};
  options.progress = [&](size_t done_bytes, size_t total_bytes, std::string_view what) {
    const std::unique_lock lock(mutex, std::try_to_lock);
    ASSERT_TRUE(lock.owns_lock()) << "two calls at once";
    ASSERT_FALSE(what.empty());
    done.push_back(done_bytes);
    total = total_bytes;
  };
  loaded(config, testing::tensors_of(config), options);
  ASSERT_GT(done.size(), 2U);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
}

TEST_F(WeightsTest, InfoPredictsTheMemoryThatLoadingNeeds) {
  for (const char* text : {"bfloat16", "float32", "float16"}) {
    for (const DType compute : {DType::kBF16, DType::kF32}) {
      for (const auto quantization : {LoadQuantization::kNone, LoadQuantization::kFp8}) {
        Json json = testing::tiny_config();
        json["torch_dtype"] = text;
        json["num_nextn_predict_layers"] = 1;
        const ModelConfig config = testing::parsed(json);
        const WeightLoadOptions options{.quantization = quantization, .compute_dtype = compute};
        const ModelWeights w = loaded(config, testing::tensors_of(config), options);
        const ModelInfo info = model_info(config, options, KvLayout{}, 0);
        const int64_t actual = w.mapped_bytes + w.owned_bytes;
        EXPECT_GE(actual, info.weight_bytes);
        EXPECT_LT(actual, info.weight_bytes + 64 * 120);  // allocations are rounded up to 64 bytes
      }
    }
  }
}

TEST(ComputeDtype, AutoIsTheConfigs) {
  Json json = testing::tiny_config();
  json["torch_dtype"] = "float16";
  const ModelConfig config = testing::parsed(json);
  EXPECT_EQ(*resolve_compute_dtype("auto", config), DType::kF16);
  EXPECT_EQ(*resolve_compute_dtype("float32", config), DType::kF32);
  EXPECT_EQ(*resolve_compute_dtype("bfloat16", config), DType::kBF16);
  EXPECT_THAT(resolve_compute_dtype("int8", config).status().message,
              HasSubstr("--dtype: \"int8\" is unknown; allowed: auto, float32, float16, bfloat16"));
}

Json v32_config() {
  Json json = testing::tiny_config();
  json.update(Json::parse(R"({"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 16,
    "index_head_dim": 128, "index_topk": 8, "num_nextn_predict_layers": 1})"));
  return json;
}

TEST_F(WeightsTest, EveryLayerOfV32HasItsIndexer) {
  const ModelConfig config = testing::parsed(v32_config());
  const ModelWeights w = loaded(config, testing::tensors_of(config), {.compute_dtype = DType::kBF16});
  const std::string prefix = "model.layers.1.self_attn.indexer.";
  const auto value = [&](const std::string& name) {
    return [=](int64_t i) { return stored(DType::kBF16, prefix + name, i); };
  };
  ASSERT_TRUE(w.layers[0].attention.indexer && w.layers[1].attention.indexer);
  const IndexerWeights& indexer = *w.layers[1].attention.indexer;
  expect_matrix(indexer.wq_b, 16 * 128, 136, WeightType::kBF16, value("wq_b.weight"));
  expect_matrix(indexer.wk, 128, 144, WeightType::kBF16, value("wk.weight"));
  expect_matrix(indexer.weights_proj, 16, 144, WeightType::kBF16, value("weights_proj.weight"));
  for (int64_t i = 0; i < 128; ++i) {
    ASSERT_EQ(indexer.norm_weight[i], value("k_norm.weight")(i));
    ASSERT_EQ(indexer.norm_bias[i], value("k_norm.bias")(i));
  }
  ASSERT_TRUE(w.mtp && w.mtp->layer.attention.indexer) << "the NextN layer has an indexer of its own";
}

TEST_F(WeightsTest, AnIndexerMayBeStoredUnquantisedInAQuantisedCheckpoint) {
  Json json = v32_config();
  json["quantization_config"] = testing::fp8_config_field();
  const ModelConfig config = testing::parsed(json);
  FileTensors tensors = testing::tensors_of(config);
  const ModelWeights quantised = loaded(config, tensors, {.compute_dtype = DType::kBF16});
  EXPECT_EQ(quantised.layers[0].attention.indexer->wq_b.type, WeightType::kFp8Block);
  EXPECT_EQ(quantised.layers[0].attention.indexer->wk.type, WeightType::kFp8Block);
  EXPECT_EQ(quantised.layers[0].attention.indexer->weights_proj.type, WeightType::kBF16);

  // The indexer's matrices have 16 bits and no scales; its norm and weights_proj have 32.
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.name.find(".indexer.") == std::string::npos) continue;
    if (spec.role == TensorRole::kScale) {
      tensors.erase(spec.name);
    } else {
      const DType dtype = spec.role == TensorRole::kLinear ? DType::kBF16 : DType::kF32;
      tensors[spec.name] = testing::make_tensor(spec.name, dtype, spec.shape, testing::fine_pattern);
    }
  }
  const ModelWeights plain = loaded(config, tensors, {.compute_dtype = DType::kF32});
  const IndexerWeights& indexer = *plain.layers[1].attention.indexer;
  EXPECT_EQ(indexer.wq_b.type, WeightType::kBF16);
  EXPECT_EQ(plain.layers[1].attention.q_b.type, WeightType::kFp8Block);
  expect_matrix(indexer.weights_proj, 16, 144, WeightType::kF32, [](int64_t i) {
    return stored(DType::kF32, "model.layers.1.self_attn.indexer.weights_proj.weight", i);
  });
  EXPECT_EQ(indexer.norm_bias[3], stored(DType::kF32, "model.layers.1.self_attn.indexer.k_norm.bias", 3));
  tensors.erase("model.layers.1.self_attn.indexer.k_norm.bias");
  EXPECT_THAT(load(config, tensors).status().message,
              HasSubstr("missing: model.layers.1.self_attn.indexer.k_norm.bias"));
}

TEST_F(WeightsTest, V32HasNoFloat16) {
  const ModelConfig config = testing::parsed(v32_config());
  EXPECT_EQ(resolve_compute_dtype("float16", config).status().message,
            "--dtype float16: DeepseekV32ForCausalLM does not run in float16; allowed: bfloat16, float32");
  Json json = v32_config();
  json["torch_dtype"] = "float16";
  EXPECT_THAT(resolve_compute_dtype("auto", testing::parsed(json)).status().message,
              HasSubstr("--dtype auto, which is float16 in config.json"));
  EXPECT_EQ(*resolve_compute_dtype("auto", config), DType::kBF16);
}

}  // namespace
}  // namespace hadal
