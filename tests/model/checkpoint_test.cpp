#include "model/checkpoint.h"

#include <gmock/gmock.h>

#include "tests/model/checkpoint_files.h"

namespace hadal {
namespace {

using ::testing::AllOf;
using testing::FileTensors;
using ::testing::HasSubstr;
using testing::Json;
using ::testing::Not;

std::string open_error(const std::filesystem::path& dir) {
  const auto checkpoint = Checkpoint::open(dir);
  return checkpoint.ok() ? "no error" : checkpoint.status().message;
}

// Returns the error of matching `tensors`, written as one file, against `config`.
std::string match_error(const ModelConfig& config, const FileTensors& tensors) {
  const testing::TempDir dir;
  testing::write_file(dir.path() / "model.safetensors", testing::safetensors_file(tensors));
  const auto checkpoint = Checkpoint::open(dir.path());
  if (!checkpoint.ok()) return checkpoint.status().message;
  const auto match = match_tensors(*checkpoint, expected_tensors(config));
  return match.ok() ? "no error" : match.status().message;
}

// Writes two shards and an index.
class ShardedFiles {
 public:
  ShardedFiles() {
    shards_["model-1.safetensors"]["a"] = testing::make_tensor("a", DType::kF32, {3}, testing::pattern);
    shards_["model-1.safetensors"]["b"] = testing::make_tensor("b", DType::kF32, {2}, testing::pattern);
    shards_["model-2.safetensors"]["c"] = testing::make_tensor("c", DType::kBF16, {5}, testing::pattern);
    for (const auto& [file, tensors] : shards_) {
      testing::write_file(path() / file, testing::safetensors_file(tensors));
      for (const auto& [name, tensor] : tensors) map_[name] = file;
    }
    write_index();
  }
  void write_index() {
    write_index_text(Json{{"metadata", {{"total_size", 30}}}, {"weight_map", map_}}.dump());
  }
  void write_index_text(const std::string& text) {
    testing::write_file(path() / "model.safetensors.index.json", text);
  }
  const std::filesystem::path& path() const { return dir_.path(); }
  Json map_;
  std::map<std::string, FileTensors> shards_;

 private:
  testing::TempDir dir_;
};

TEST(Checkpoint, ShardsAreFoundThroughTheIndex) {
  const ShardedFiles sharded;
  auto opened = Checkpoint::open(sharded.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message;
  const Checkpoint checkpoint = std::move(opened).value();  // names and data survive a move
  EXPECT_EQ(checkpoint.shards().size(), 2U);
  for (const auto& [file, tensors] : sharded.shards_) {
    for (const auto& [name, tensor] : tensors) {
      const Checkpoint::Entry* entry = checkpoint.find(name);
      ASSERT_NE(entry, nullptr) << name;
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(entry->data.data()), entry->data.size()),
                tensor.bytes);
    }
  }
  EXPECT_EQ(checkpoint.find("d"), nullptr);
}

TEST(Checkpoint, MissingShardsAreAllNamed) {
  const ShardedFiles sharded;
  std::filesystem::remove(sharded.path() / "model-1.safetensors");
  std::filesystem::remove(sharded.path() / "model-2.safetensors");
  EXPECT_THAT(
      open_error(sharded.path()),
      HasSubstr("2 of the 2 files named by model.safetensors.index.json are missing: model-1.safetensors, "
                "model-2.safetensors"));
}

TEST(Checkpoint, ShardNamesMayNotLeaveTheDirectory) {
  for (const char* name :
       {"../model-1.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "a\\b"}) {
    ShardedFiles sharded;
    sharded.map_["a"] = name;
    sharded.write_index();
    EXPECT_THAT(open_error(sharded.path()), HasSubstr("allowed: the name of a file in the same directory"))
        << name;
  }
  ShardedFiles sharded;
  sharded.map_["a"] = 7;
  sharded.write_index();
  EXPECT_THAT(open_error(sharded.path()), HasSubstr("a value that is not a string"));
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  ShardedFiles sharded;
  sharded.map_["a"] = "model-2.safetensors";
  sharded.map_["z"] = "model-1.safetensors";
  sharded.write_index();
  EXPECT_THAT(open_error(sharded.path()),
              AllOf(HasSubstr("places 2 tensors in files that lack them"),
                    HasSubstr("a (model-2.safetensors)"), HasSubstr("z (model-1.safetensors)")));
}

TEST(Checkpoint, ATensorInTwoShardsIsRefused) {
  const ShardedFiles sharded;
  FileTensors second = sharded.shards_.at("model-2.safetensors");
  second["a"] = sharded.shards_.at("model-1.safetensors").at("a");
  testing::write_file(sharded.path() / "model-2.safetensors", testing::safetensors_file(second));
  EXPECT_THAT(open_error(sharded.path()),
              HasSubstr("tensor a is in model-1.safetensors and in model-2.safetensors"));
}

TEST(Checkpoint, BrokenIndexIsRefused) {
  ShardedFiles sharded;
  for (const char* text : {"", "[]", "{", "\"x\""}) {
    sharded.write_index_text(text);
    EXPECT_THAT(open_error(sharded.path()), HasSubstr("index.json: is not a JSON object")) << text;
  }
  for (const char* text : {"{}", R"({"weight_map": {}})", R"({"weight_map": []})"}) {
    sharded.write_index_text(text);
    EXPECT_THAT(open_error(sharded.path()), HasSubstr("weight_map is missing or empty")) << text;
  }
  std::string deep = R"({"weight_map": {"a": )";
  for (int i = 0; i < 200'000; ++i) deep += "[";
  sharded.write_index_text(deep);
  EXPECT_THAT(open_error(sharded.path()), HasSubstr("not a JSON object"));
}

TEST(Checkpoint, ADirectoryWithoutWeightsIsAnErrorThatNamesTheFiles) {
  const testing::TempDir dir;
  EXPECT_THAT(open_error(dir.path()),
              HasSubstr("no weights: neither model.safetensors nor model.safetensors.index.json"));
  testing::write_file(dir.path() / "pytorch_model.bin", "");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("it contains pytorch_model.bin, which are not supported"));
  EXPECT_THAT(open_error(dir.path() / "nowhere"), HasSubstr("no such directory"));
}

TEST(Checkpoint, ADamagedShardIsNamed) {
  const ShardedFiles sharded;
  std::filesystem::resize_file(sharded.path() / "model-2.safetensors", 40);
  EXPECT_THAT(open_error(sharded.path()), HasSubstr("model-2.safetensors: header length"));
}

TEST(MatchTensors, AcceptsACompleteCheckpoint) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  EXPECT_EQ(match_error(config, testing::tensors_of(config)), "no error");
}

TEST(MatchTensors, ListsEveryDifferenceAtOnce) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  FileTensors tensors = testing::tensors_of(config);
  tensors.erase("model.norm.weight");
  tensors.erase("model.layers.1.mlp.gate.e_score_correction_bias");
  tensors["lm_head.weight"].shape = {config.hidden_size, config.vocab_size};
  tensors["model.layers.0.self_attn.o_proj.weight"] = {"I8", {144, 256}, std::string(144 * 256, '\0')};
  tensors["model.layers.0.mlp.up_proj.weight"].shape = {200 * 144};
  tensors["model.layers.9.mlp.up_proj.weight"] = {"F32", {1}, "1234"};
  tensors["model.layers.0.self_attn.o_proj.qzeros"] = {"I32", {1}, "1234"};
  EXPECT_THAT(match_error(config, tensors),
              AllOf(HasSubstr("(2 missing, 3 of wrong shape or type, 2 unexpected)"),
                    HasSubstr("missing: model.norm.weight"),
                    HasSubstr("missing: model.layers.1.mlp.gate.e_score_correction_bias"),
                    HasSubstr("misfit: lm_head.weight has shape [144, 96], expected [96, 144]"),
                    HasSubstr("o_proj.weight is I8, expected BF16, F16 or F32"),
                    HasSubstr("up_proj.weight has shape [28800], expected [200, 144]"),
                    HasSubstr("unexpected: model.layers.9.mlp.up_proj.weight"),
                    HasSubstr("unexpected: model.layers.0.self_attn.o_proj.qzeros")));
}

TEST(MatchTensors, LongListsAreCutAtTwenty) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  FileTensors tensors;
  tensors["other"] = {"F32", {1}, "1234"};
  const std::string message = match_error(config, tensors);
  const size_t total = testing::tensors_of(config).size();
  EXPECT_THAT(message, HasSubstr(fmt::format("({} missing, 0 of wrong shape or type, 1 unexpected)", total)));
  EXPECT_THAT(message, HasSubstr(fmt::format("… and {} more", total + 1 - 20)));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 21);
}

TEST(MatchTensors, KnownExtraTensorsAreIgnored) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  FileTensors tensors = testing::tensors_of(config);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {1}, "1234"};
  EXPECT_EQ(match_error(config, tensors), "no error");
}

TEST(MatchTensors, Fp8LinearsMayBeStoredUnquantised) {
  Json json = testing::tiny_config();
  json["quantization_config"] = testing::fp8_config_field();
  const ModelConfig config = testing::parsed(json);
  FileTensors tensors = testing::tensors_of(config);
  EXPECT_EQ(match_error(config, tensors), "no error");
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  tensors[name] = testing::make_tensor(name, DType::kBF16, {144, 256}, testing::pattern);
  EXPECT_THAT(match_error(config, tensors), HasSubstr("unexpected: " + name + "_scale_inv"));
  tensors.erase(name + "_scale_inv");
  EXPECT_EQ(match_error(config, tensors), "no error");
  tensors.erase("model.layers.0.mlp.down_proj.weight_scale_inv");
  EXPECT_THAT(match_error(config, tensors),
              HasSubstr("missing: model.layers.0.mlp.down_proj.weight_scale_inv"));
}

TEST(MatchTensors, Fp8WithoutQuantizationConfigIsAMisfit) {
  const ModelConfig config = testing::parsed(testing::tiny_config());
  FileTensors tensors = testing::tensors_of(config);
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  tensors[name] = testing::make_tensor(name, DType::kF8E4M3, {144, 256}, testing::pattern);
  EXPECT_THAT(match_error(config, tensors),
              HasSubstr("is F8_E4M3, expected BF16, F16 or F32 (config.json has no"));
}

TEST(MatchTensors, CodesOfALinearThatTheConfigLeavesOutAreAMisfit) {
  Json json = testing::tiny_config();
  json["quantization_config"] = testing::fp8_config_field();
  const FileTensors tensors = testing::tensors_of(testing::parsed(json));
  json["quantization_config"]["ignored_layers"] = {"o_proj"};
  EXPECT_THAT(match_error(testing::parsed(json), tensors),
              HasSubstr("o_proj.weight is F8_E4M3, expected BF16, F16 or F32 (the quantization_config of "
                        "config.json leaves it out"));
}

TEST(MatchTensors, TheNextnLayerMayBeAbsentAsAWhole) {
  Json json = testing::tiny_config();
  const ModelConfig without = testing::parsed(json);
  json["num_nextn_predict_layers"] = 1;
  const ModelConfig config = testing::parsed(json);
  EXPECT_EQ(match_error(config, testing::tensors_of(config)), "no error");
  EXPECT_EQ(match_error(config, testing::tensors_of(config, /*with_optional=*/true)), "no error");
  EXPECT_EQ(match_error(config, testing::tensors_of(without)), "no error");
  FileTensors tensors = testing::tensors_of(config);
  tensors.erase("model.layers.2.hnorm.weight");
  EXPECT_THAT(match_error(config, tensors), HasSubstr("missing: model.layers.2.hnorm.weight"));
  EXPECT_THAT(match_error(without, tensors), HasSubstr("unexpected: model.layers.2.eh_proj.weight"));
}

TEST(MatchTensors, ATiedHeadIsOptional) {
  Json json = testing::tiny_config();
  json["tie_word_embeddings"] = true;
  const ModelConfig config = testing::parsed(json);
  FileTensors tensors = testing::tensors_of(config);
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
  EXPECT_EQ(match_error(config, tensors), "no error");
  EXPECT_THAT(match_error(testing::parsed(testing::tiny_config()), tensors), Not(HasSubstr("no error")));
}

}  // namespace
}  // namespace hadal
