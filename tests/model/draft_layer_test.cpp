// Tests a NextN layer of another directory: both forms of directories, formats of weights, what is shared
// with the model, and what is refused.
#include "model/draft_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/thread_pool.h"
#include "tests/model/draft_directories.h"
#include "tests/model/matrix_elements.h"

namespace hadal {
namespace {

using ::testing::AllOf;
using testing::element;
using testing::FileTensors;
using ::testing::HasSubstr;
using testing::Json;

Json with_nextn(Json json = testing::tiny_config()) {
  json["num_nextn_predict_layers"] = 1;
  return json;
}

void expect_same_matrix(const MatrixWeight& found, const MatrixWeight& expected, const char* name) {
  SCOPED_TRACE(name);
  ASSERT_EQ(found.type, expected.type);
  ASSERT_EQ(found.n, expected.n);
  ASSERT_EQ(found.k, expected.k);
  for (int64_t row = 0; row < found.n; ++row) {
    for (int64_t col = 0; col < found.k; ++col)
      ASSERT_EQ(element(found, row, col), element(expected, row, col)) << row << "," << col;
  }
}

void expect_same_layer(const MtpWeights& found, const MtpWeights& expected) {
  expect_same_matrix(found.eh_proj, expected.eh_proj, "eh_proj");
  expect_same_matrix(found.embedding, expected.embedding, "embedding");
  expect_same_matrix(found.lm_head, expected.lm_head, "lm_head");
  expect_same_matrix(found.layer.attention.kv_a, expected.layer.attention.kv_a, "kv_a");
  expect_same_matrix(found.layer.attention.o, expected.layer.attention.o, "o");
  ASSERT_TRUE(found.layer.moe && expected.layer.moe);
  ASSERT_EQ(found.layer.moe->experts.size(), expected.layer.moe->experts.size());
  expect_same_matrix(found.layer.moe->gate, expected.layer.moe->gate, "gate");
  expect_same_matrix(found.layer.moe->experts[3].down, expected.layer.moe->experts[3].down, "expert");
  expect_same_matrix(found.layer.moe->shared->up, expected.layer.moe->shared->up, "shared expert");
  for (int64_t i = 0; i < found.eh_proj.n; ++i) {
    ASSERT_EQ(found.enorm[i], expected.enorm[i]);
    ASSERT_EQ(found.hnorm[i], expected.hnorm[i]);
    ASSERT_EQ(found.shared_head_norm[i], expected.shared_head_norm[i]);
  }
}

class DraftLayerTest : public ::testing::Test {
 protected:
  // Writes the model that the draft layers belong to. Its NextN layer is model.layers.2.
  void write_model(const Json& json, bool with_copies = false) {
    config_ = testing::parsed(json);
    model_ = dir_.path() / "model";
    testing::write_directory(model_, json, testing::tensors_of(config_, with_copies));
  }

  std::filesystem::path write_export(const Json& json, const FileTensors& tensors) {
    const std::filesystem::path path = dir_.path() / "export";
    testing::write_directory(path, json, tensors);
    return path;
  }

  DraftLayer draft_of(const std::filesystem::path& path) const {
    return read_draft_layer({.dir = path}).value();
  }
  std::string error_of(const DraftRequest& request) const {
    const auto draft = read_draft_layer(request);
    return draft.ok() ? "no error" : draft.status().message;
  }

  Result<ModelWeights> load_with(const DraftLayer& draft, WeightLoadOptions options = {}) {
    options.draft = draft;
    return load_weights(model_, config_, options, pool_);
  }
  ModelWeights loaded_with(const DraftLayer& draft, const WeightLoadOptions& options = {}) {
    return load_with(draft, options).value();
  }

  testing::TempDir dir_;
  ThreadPool pool_{2};
  ModelConfig config_;
  std::filesystem::path model_;
};

TEST_F(DraftLayerTest, BothFormsHaveTheWeightsOfTheLayerThatTheyWereTakenFrom) {
  for (const Json& quantization : {Json(nullptr), testing::fp8_config_field()}) {
    Json json = with_nextn();
    json["quantization_config"] = quantization;
    write_model(json);
    const ModelWeights own = load_weights(model_, config_, {}, pool_).value();
    const FileTensors tensors = testing::exported_layer(model_, 2);
    Json plain = testing::export_config(json);  // recognised by its tensors
    plain["architectures"] = json["architectures"];
    for (const Json& export_json : {testing::export_config(json), plain}) {
      const DraftLayer draft = draft_of(write_export(export_json, tensors));
      EXPECT_EQ(draft.config.num_hidden_layers, 0);
      expect_same_layer(*loaded_with(draft).mtp, *own.mtp);
    }
    const DraftLayer whole = draft_of(model_);
    EXPECT_EQ(whole.config.num_hidden_layers, 2);
    expect_same_layer(*loaded_with(whole).mtp, *own.mtp);
  }
}

TEST_F(DraftLayerTest, TheModelNeedsNoLayerOfItsOwn) {
  write_model(with_nextn());
  const DraftLayer draft =
      draft_of(write_export(testing::export_config(with_nextn()), testing::exported_layer(model_, 2)));
  write_model(testing::tiny_config());
  EXPECT_TRUE(loaded_with(draft).mtp);
  EXPECT_FALSE(loaded_with(draft, {.load_nextn = false}).mtp);
}

TEST_F(DraftLayerTest, AnExportHasExpertsDespiteFirstKDenseReplace) {
  write_model(with_nextn());
  Json json = testing::export_config(with_nextn());
  json["first_k_dense_replace"] = 3;
  const DraftLayer draft = draft_of(write_export(json, testing::exported_layer(model_, 2)));
  EXPECT_TRUE(loaded_with(draft).mtp->layer.moe);
}

TEST_F(DraftLayerTest, AnExportOfV32HasAnIndexer) {
  Json json = with_nextn();
  json["architectures"] = Json::array({"DeepseekV32ForCausalLM"});
  json["index_n_heads"] = 16;
  json["index_head_dim"] = 128;
  json["index_topk"] = 8;
  write_model(json);
  const DraftLayer draft =
      draft_of(write_export(testing::export_config(json), testing::exported_layer(model_, 2)));
  EXPECT_TRUE(check_draft_fits(draft, config_).ok());
  EXPECT_TRUE(loaded_with(draft).mtp->layer.attention.indexer);
}

TEST_F(DraftLayerTest, TheFormatMayDifferFromTheModels) {
  Json fp8 = with_nextn();
  fp8["quantization_config"] = testing::fp8_config_field();
  for (const bool draft_is_fp8 : {true, false}) {
    write_model(draft_is_fp8 ? fp8 : with_nextn());
    const ModelWeights source = load_weights(model_, config_, {}, pool_).value();
    Json json = testing::export_config(draft_is_fp8 ? fp8 : with_nextn());
    const FileTensors tensors = testing::exported_layer(model_, 2);
    for (const bool declared : {true, false}) {
      if (!declared) json.erase("quantization_config");  // the tensors say it
      const DraftLayer draft = draft_of(write_export(json, tensors));
      write_model(draft_is_fp8 ? with_nextn() : fp8);
      const ModelWeights weights = loaded_with(draft);
      EXPECT_NE(weights.mtp->layer.attention.o.type, weights.layers[1].attention.o.type);
      expect_same_layer(*weights.mtp, *source.mtp);
    }
  }
}

TEST_F(DraftLayerTest, CopiesOfEmbeddingAndHeadAreSharedWhereTheirBytesAreEqual) {
  write_model(with_nextn());
  FileTensors tensors = testing::exported_layer(model_, 2);
  const FileTensors of_model = testing::tensors_of(config_);
  const std::string embedding = "model.layers.0.embed_tokens.weight";
  const std::string head = "model.layers.0.shared_head.head.weight";
  tensors[embedding] = of_model.at("model.embed_tokens.weight");
  tensors[head] = of_model.at("lm_head.weight");
  const Json json = testing::export_config(with_nextn());
  ModelWeights weights = loaded_with(draft_of(write_export(json, tensors)));
  EXPECT_EQ(weights.mtp->embedding.data, weights.embedding.data);
  EXPECT_EQ(weights.mtp->lm_head.data, weights.lm_head.data);

  tensors[embedding].bytes.back() ^= 1;
  tensors[head] =
      testing::make_tensor("lm_head.weight", DType::kF32, {96, 144}, testing::fine_pattern);  // another type
  weights = loaded_with(draft_of(write_export(json, tensors)));
  EXPECT_NE(weights.mtp->embedding.data, weights.embedding.data);
  EXPECT_NE(element(weights.mtp->embedding, 95, 143), element(weights.embedding, 95, 143));
  EXPECT_NE(weights.mtp->lm_head.data, weights.lm_head.data);
}

TEST_F(DraftLayerTest, ItsFlagElseTheModelsSaysHowItIsQuantised) {
  write_model(with_nextn());
  const auto path = write_export(testing::export_config(with_nextn()), testing::exported_layer(model_, 2));
  const auto type_with = [&](std::optional<LoadQuantization> flag, LoadQuantization of_model) {
    const DraftLayer draft =
        read_draft_layer({.dir = path, .quantization = flag, .model_quantization = of_model}).value();
    return loaded_with(draft, {.quantization = of_model}).mtp->layer.attention.o.type;
  };
  EXPECT_EQ(type_with({}, LoadQuantization::kNone), WeightType::kBF16);
  EXPECT_EQ(type_with({}, LoadQuantization::kFp8), WeightType::kFp8Block);
  EXPECT_EQ(type_with(LoadQuantization::kNone, LoadQuantization::kFp8), WeightType::kBF16);
  EXPECT_EQ(type_with(LoadQuantization::kW8A8Int8, LoadQuantization::kFp8), WeightType::kInt8Channel);
}

TEST_F(DraftLayerTest, AStoredFormatAgreesWithItsFlagAndNeedNotAgreeWithTheModels) {
  Json json = with_nextn();
  json["quantization_config"] = testing::fp8_config_field();
  write_model(json);
  EXPECT_TRUE(read_draft_layer({.dir = model_, .model_quantization = LoadQuantization::kW8A8Int8}).ok());
  EXPECT_TRUE(read_draft_layer({.dir = model_, .quantization = LoadQuantization::kFp8}).ok());
  EXPECT_THAT(error_of({.dir = model_, .quantization = LoadQuantization::kW8A8Int8}),
              HasSubstr("--speculative-draft-model-quantization w8a8_int8 means int8, one scale per row"));
}

TEST_F(DraftLayerTest, RandomWeightsNeedItsConfigAlone) {
  write_model(with_nextn());
  const std::filesystem::path path = dir_.path() / "config_alone";
  testing::write_file(path / "config.json", testing::export_config(with_nextn()).dump());
  const DraftLayer draft = read_draft_layer({.dir = path, .format = LoadFormat::kDummy}).value();
  const ModelWeights weights = loaded_with(draft);
  EXPECT_EQ(weights.mtp->lm_head.data, weights.lm_head.data);
  const float value = element(weights.mtp->layer.attention.o, 3, 5);
  EXPECT_TRUE(std::isfinite(value) && value != 0.0F) << value;
}

TEST_F(DraftLayerTest, DirectoriesWithoutALayerAreErrorsThatNameTheFlag) {
  const auto error = [&](const std::filesystem::path& path) { return error_of({.dir = path}); };
  EXPECT_THAT(error(dir_.path() / "nowhere"), HasSubstr("nowhere has no config.json"));
  write_model(testing::tiny_config());
  EXPECT_THAT(error(model_), AllOf(HasSubstr(kDraftFlag), HasSubstr("num_nextn_predict_layers is 0")));
  EXPECT_EQ(read_draft_layer({.dir = model_}).status().code, StatusCode::kInvalidArgument);
  testing::write_file(model_ / "config.json", with_nextn().dump());
  EXPECT_THAT(error(model_),
              AllOf(HasSubstr(kDraftFlag), HasSubstr("has no tensor model.layers.2.eh_proj.weight")));
  Json wide = with_nextn();
  wide["hidden_size"] = "wide";
  testing::write_file(model_ / "config.json", wide.dump());
  EXPECT_THAT(error(model_), AllOf(HasSubstr(kDraftFlag), HasSubstr("hidden_size")));
  EXPECT_EQ(read_draft_layer({.dir = model_}).status().code, StatusCode::kDataLoss);
  wide["architectures"] = Json::array({"LlamaForCausalLM"});
  testing::write_file(model_ / "config.json", wide.dump());
  EXPECT_THAT(error(model_), AllOf(HasSubstr(kDraftFlag), HasSubstr("a Llama model")));
}

TEST_F(DraftLayerTest, TensorsThatAreMissingMisshapenOrUnknownAreOneLine) {
  write_model(with_nextn());
  const FileTensors tensors = testing::exported_layer(model_, 2);
  const auto error_with = [&](const FileTensors& changed) {
    const auto weights = load_with(draft_of(write_export(testing::export_config(with_nextn()), changed)));
    return weights.ok() ? "no error" : weights.status().message;
  };
  FileTensors changed = tensors;
  changed.erase("model.layers.0.shared_head.norm.weight");
  const std::string missing = error_with(changed);
  EXPECT_THAT(missing,
              AllOf(HasSubstr(kDraftFlag), HasSubstr("missing: model.layers.0.shared_head.norm.weight")));
  EXPECT_EQ(std::count(missing.begin(), missing.end(), '\n'), 0);
  changed = tensors;
  changed["model.layers.0.enorm.weight"] =
      testing::make_tensor("", DType::kBF16, {143}, testing::fine_pattern);
  EXPECT_THAT(error_with(changed), HasSubstr("model.layers.0.enorm.weight has shape [143], expected [144]"));
  changed = tensors;
  changed["model.layers.0.more.weight"] = tensors.at("model.layers.0.enorm.weight");
  EXPECT_THAT(error_with(changed), HasSubstr("unexpected: model.layers.0.more.weight"));
  changed = tensors;
  changed["model.embed_tokens.weight"] = tensors.at("model.layers.0.enorm.weight");
  EXPECT_EQ(error_with(changed), "no error") << "other parts of a checkpoint are not read";
}

TEST_F(DraftLayerTest, EveryFieldThatDiffersFromTheModelsIsNamedWithBothValues) {
  Json json = with_nextn();
  json["rope_scaling"] = {{"type", "yarn"},
                          {"factor", 40},
                          {"mscale", 1.0},
                          {"beta_fast", 32},
                          {"beta_slow", 1},
                          {"mscale_all_dim", 1.0},
                          {"original_max_position_embeddings", 4096}};
  const ModelConfig model = testing::parsed(json);
  const auto error_of_draft = [&](const Json& changed) {
    const auto checked = check_draft_fits({.dir = "draft", .config = testing::parsed(changed)}, model);
    return checked.ok() ? "no error" : checked.status().message;
  };
  EXPECT_EQ(error_of_draft(json), "no error");
  Json deeper = json;
  deeper["num_hidden_layers"] = 5;
  deeper["first_k_dense_replace"] = 2;
  EXPECT_EQ(error_of_draft(deeper), "no error") << "the layer does not depend on those before it";
  const auto written = [](const Json& value) {
    return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
  };
  const std::pair<const char*, Json> cases[] = {
      {"hidden_size", 160},        {"vocab_size", 97},           {"num_attention_heads", 4},
      {"q_lora_rank", 64},         {"n_routed_experts", 8},      {"n_shared_experts", 2},
      {"num_experts_per_tok", 1},  {"moe_intermediate_size", 8}, {"n_group", 1},
      {"norm_topk_prob", false},   {"rms_norm_eps", 1e-5},       {"rope_theta", 20000},
      {"routed_scaling_factor", 2}};
  for (const auto& [field, value] : cases) {
    Json changed = json;
    changed[field] = value;
    EXPECT_THAT(error_of_draft(changed),
                HasSubstr(fmt::format("{} draft: its {} is {}, but the model's is {}; both must be equal",
                                      kDraftFlag, field, written(value), written(json[field]))));
  }
  for (const auto& [field, value] : {std::pair<const char*, double>{"factor", 20}, {"mscale", 0.5}}) {
    Json changed = json;
    changed["rope_scaling"][field] = value;
    EXPECT_THAT(error_of_draft(changed),
                HasSubstr(fmt::format("its rope_scaling.{} is {}, but the model's is {}", field, value,
                                      json["rope_scaling"][field].get<double>())));
  }
  Json unscaled = json;
  unscaled.erase("rope_scaling");
  EXPECT_THAT(error_of_draft(unscaled),
              HasSubstr("its rope_scaling.factor is absent, but the model's is 40"));
}

TEST_F(DraftLayerTest, AGpuTakesTheModelsFormatAlone) {
  const ModelConfig plain = testing::parsed(with_nextn());
  Json json = with_nextn();
  json["quantization_config"] = testing::fp8_config_field();
  const ModelConfig fp8 = testing::parsed(json);
  const auto error = [](const ModelConfig& draft, LoadQuantization of_draft, const ModelConfig& model,
                        LoadQuantization of_model) {
    const auto checked =
        check_gpu_draft({.dir = "draft", .config = draft, .quantization = of_draft}, model, of_model);
    return checked.ok() ? "no error" : checked.status().message;
  };
  constexpr auto kNone = LoadQuantization::kNone;
  constexpr auto kFp8 = LoadQuantization::kFp8;
  EXPECT_EQ(error(plain, kNone, plain, kNone), "no error");
  EXPECT_EQ(error(plain, kFp8, plain, kFp8), "no error");
  EXPECT_EQ(error(fp8, kNone, fp8, kNone), "no error");
  EXPECT_EQ(error(plain, kNone, fp8, kNone), "no error") << "16 bits have a place in every model";
  EXPECT_THAT(error(fp8, kNone, plain, kNone),
              AllOf(HasSubstr("--speculative-draft-model-path draft: on a GPU"),
                    HasSubstr("it has fp8 e4m3, 128x128 blocks, and the model none")));
  EXPECT_THAT(error(plain, LoadQuantization::kW8A8Int8, plain, kFp8), HasSubstr("--device cpu"));
  ModelConfig dense = plain;
  dense.first_k_dense_replace = 3;
  EXPECT_THAT(error(plain, kNone, dense, kNone), HasSubstr("first_k_dense_replace"));
}

}  // namespace
}  // namespace hadal
