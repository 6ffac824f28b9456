// Runs speculation on the GPU over the bundled model with a random indexer in every layer, the NextN layer
// included. Answers begin with fewer keys than index_topk and end with more, so a step's rows lie on both
// sides of the limit.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "model/random_weights.h"
#include "model/safetensors_writer.h"
#include "model/tensor_list.h"
#include "tests/cuda/engine/speculating_model_test.h"
#include "tests/model/checkpoint_files.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using testing::kPrompts;
using testing::TempDir;

constexpr int64_t kSparseTopk = 64;
constexpr int64_t kAnswer = 60;  // the prompts have 17 to 30 tokens

// Writes the bundled model with random indexers to a directory, and returns its config.
ModelConfig write_sparse_model(const fs::path& dir) {
  const fs::path source = fs::path(source_dir()) / "models/hadal-tiny";
  for (const fs::directory_entry& file : fs::directory_iterator(source)) {
    const std::string name = file.path().filename().string();
    if (name.ends_with(".safetensors")) fs::create_symlink(file.path(), dir / name);
  }
  const std::string text = read_text_file((source / "config.json").string(), size_t{1} << 20).value();
  ModelConfig config =
      parse_model_config(text, "the sparse model",
                         R"({"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 16,
                             "index_head_dim": 128, "index_topk": 64})")
          .value();
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<std::vector<std::byte>> values;
  std::string placed;
  constexpr const char* kFile = "model-00003-of-00003.safetensors";
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.name.find(".indexer.") == std::string::npos) continue;
    const RandomTensor tensor = RandomTensor::make(spec, RandomWeightOptions::for_config(config, 1)).value();
    values.emplace_back(tensor.num_bytes());
    tensor.fill(0, tensor.num_elements(), values.back().data());
    entries.push_back({.name = spec.name, .dtype = spec.dtype, .shape = spec.shape});
    placed += fmt::format("\"{}\": \"{}\", ", spec.name, kFile);
  }
  const std::vector<std::span<const std::byte>> spans(values.begin(), values.end());
  EXPECT_TRUE(write_safetensors(dir / kFile, entries, spans).ok());
  constexpr const char* kIndex = "model.safetensors.index.json";
  std::string index = read_text_file((source / kIndex).string(), size_t{1} << 20).value();
  const std::string_view opening = "\"weight_map\": {";
  index.insert(index.find(opening) + opening.size(), placed);
  testing::write_file(dir / kIndex, index);
  return config;
}

class SparseSpeculationTest : public testing::SpeculatingModelTest {
 protected:
  static void SetUpTestSuite() {
    pool_ = std::make_unique<ThreadPool>(2);
    directory_ = std::make_unique<TempDir>();
    config_ = write_sparse_model(directory_->path());
    ASSERT_EQ(config_.index_topk, kSparseTopk);
    backend_ = load_sparse(DeviceType::kCuda);
  }
  static void TearDownTestSuite() {
    SpeculatingModelTest::TearDownTestSuite();
    directory_.reset();
  }
  static std::unique_ptr<Backend> load_sparse(DeviceType device) {
    return load_backend(device, directory_->path(), config_, {}, *pool_).value();
  }
  static EngineOptions sparse_options(int64_t width, KvFormat format = KvFormat::kBF16) {
    EngineOptions options = options_of(width, /*overlap=*/false);
    options.kv_layout = cache_layout(config_, format).value();
    options.speculation_adapts = false;
    return options;
  }

  static inline std::unique_ptr<TempDir> directory_;
  static inline ModelConfig config_;
};

// Six of the nine requests cross the limit in decode, and three have longer prompts.
TEST_F(SparseSpeculationTest, GreedyTokensAreThoseWithoutIt) {
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kFp8E4M3}) {
    const std::vector<Finished> expected = run_prompts(*backend_, sparse_options(0, format));
    for (const int64_t width : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << to_string(format) << " width " << width);
      const std::vector<Finished> got = run_prompts(*backend_, sparse_options(width, format));
      const int64_t num_equal = testing::expect_greedy(expected, got);
      EXPECT_GT(num_equal, 9 * kAnswer / 3);
      for (const Finished& finished : got) {
        const SpeculationCounts& counts = finished.last.speculation;
        EXPECT_EQ(counts.tokens, kAnswer - 1);
        EXPECT_EQ(counts.tokens, counts.verifications + counts.accepted);
        EXPECT_EQ(counts.drafts > 0, width > 1);
      }
    }
  }
}

// If NextN selected from other keys than the CPU does, its drafts would be worse.
TEST_F(SparseSpeculationTest, DraftsAreAcceptedAsOnTheCpu) {
  const auto cpu = load_sparse(DeviceType::kCpu);
  SpeculationCounts counts[2];
  Backend* const backends[] = {cpu.get(), backend_.get()};
  for (int device = 0; device < 2; ++device) {
    const CheckedEngine engine = make_engine(*backends[device], sparse_options(4));
    for (const std::vector<int32_t>& prompt : kPrompts)
      counts[device] += testing::run(*engine, greedy_request(prompt, 90)).last.speculation;
  }
  std::printf("accept length: CPU %.2f, GPU %.2f\n", counts[0].accept_length(), counts[1].accept_length());
  EXPECT_GT(counts[1].accept_length(), 1.2);
  EXPECT_NEAR(counts[1].accept_length(), counts[0].accept_length(), 0.5);
}

// With all drafts accepted, lengths grow by four, and a step's rows see for example 62 to 65 keys. Each
// number of requests begins in graphs without the indexer and ends in graphs with it.
TEST_F(SparseSpeculationTest, GraphsGiveTheBitsOfKernelsOneByOneAcrossTheLimit) {
  for (const bool all_accepted : {false, true}) {
    for (const int count : {1, 3}) {
      SCOPED_TRACE(::testing::Message() << "all accepted " << all_accepted << ", requests " << count);
      const auto answers = [&](bool use_graphs) {
        EngineOptions options = sparse_options(4);
        options.device.use_graphs = use_graphs;
        if (all_accepted) options.simulated_acceptance = {1.0, 1.0, 1.0};
        return run_all(*backend_, options, count, [](int i) {
          GenerateRequest request = greedy_request(kPrompts[i % 3], kAnswer);
          request.logprobs = {.enabled = true, .top_num = 2};
          return request;
        });
      };
      const std::vector<Finished> graphed = answers(true);
      const std::vector<Finished> eager = answers(false);
      for (size_t i = 0; i < graphed.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_EQ(graphed[i].last.completion_tokens, kAnswer);
        testing::expect_same(graphed[i], eager[i]);
        if (all_accepted) {
          EXPECT_GT(graphed[i].last.speculation.accept_length(), 3.5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hadal
