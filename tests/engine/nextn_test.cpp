// Tests the NextN layer's forward pass against float64 references, and across formats, chunks and ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include <boost/json.hpp>

#include "base/mapped_file.h"
#include "engine/cpu/rank_runner.h"
#include "model/random_checkpoint.h"
#include "model/safetensors.h"
#include "model/shard_weights.h"
#include "model/weights_loader.h"
#include "tests/model/ranks.h"
#include "tests/source_dir.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;
using testing::batch_of;
using testing::Sequences;
using testing::Work;

// NextnGolden is a directory of tests/model/goldens_nextn, with its weights.
struct NextnGolden {
  NextnGolden(const std::string& name, ThreadPool& pool, bool copies = false) {
    const fs::path dir = fs::path(source_dir()) / "tests/model/goldens_nextn" / name;
    const std::string text = read_text_file(dir / "config.json").value();
    config = parse_model_config(text, name).value();
    const boost::json::value json = boost::json::parse(read_text_file(dir / "nextn.json").value());
    RandomCheckpointOptions options;
    options.weights = RandomWeightOptions::for_config(config, json.at("seed").to_number<uint64_t>());
    options.weights.gate_bias_amplitude = json.at("gate_bias_amplitude").to_number<double>();
    options.nextn_copies = copies;
    for (const auto& id : json.at("input_ids").as_array()) ids.push_back(id.to_number<int32_t>());

    const MappedFile file = MappedFile::open(dir / "nextn.safetensors").value();
    const auto tensors = parse_safetensors_header(file.bytes(), "nextn.safetensors").value();
    logits.resize((ids.size() - 1) * static_cast<size_t>(config.vocab_size));
    HADAL_CHECK_EQ(tensors.at(0).end - tensors.at(0).begin, logits.size() * sizeof(float));
    std::memcpy(logits.data(), file.bytes().data() + tensors[0].begin, logits.size() * sizeof(float));

    std::string pattern = (fs::temp_directory_path() / "hadal_nextn_XXXXXX").string();
    HADAL_CHECK(::mkdtemp(pattern.data()) != nullptr, "{}", pattern);
    const auto written = write_random_checkpoint(pattern, text, config, options, pool);
    HADAL_CHECK(written.ok(), "{}", written.status().message);
    weights = load_weights(pattern, config, {.compute_dtype = DType::kF32}, pool).value();
    fs::remove_all(pattern);  // the mappings of the files stay
  }

  ModelConfig config;
  ModelWeights weights;
  std::vector<int32_t> ids;
  std::vector<float> logits;  // [ids.size() - 1, vocab]
};

// Returns NextN's logits of all rows of a sequence that is computed in steps of `work`.
std::vector<float> nextn_logits(HostRunner& runner, const std::vector<int32_t>& ids,
                                const std::vector<Work>& steps) {
  const Sequences tokens = {ids};
  const Sequences following = {{ids.begin() + 1, ids.end()}};
  std::vector<float> all;
  for (const Work& work : steps) {
    const ForwardRows rows = runner.forward_with_hidden(batch_of(tokens, {work}));
    const std::vector<float> hidden(rows.hidden.begin(), rows.hidden.end());
    const ForwardRows drafts = runner.forward_nextn(batch_of(following, {work}), hidden);
    all.insert(all.end(), drafts.logits.begin(), drafts.logits.end());
  }
  return all;
}

// Returns prompt chunks up to num_prompt, and one decode step for each token after them.
std::vector<Work> steps_of(int32_t num_tokens, int32_t num_prompt, int32_t chunk) {
  std::vector<Work> steps;
  for (int32_t t = 0; t < num_prompt; t += chunk)
    steps.push_back({.begin = t, .end = std::min(t + chunk, num_prompt)});
  for (int32_t t = num_prompt; t < num_tokens; ++t)
    steps.push_back({.begin = t, .end = t + 1, .decode = true});
  return steps;
}

double relative_error(const std::vector<float>& values, const std::vector<float>& expected) {
  double error = 0.0;
  double norm = 0.0;
  EXPECT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
    error += std::pow(double{values[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

class NextnForward : public ::testing::Test {
 protected:
  std::unique_ptr<Model> model_of(const NextnGolden& golden) {
    return make_model(golden.config, golden.weights).value();
  }

  ThreadPool pool_{2};
};

TEST_F(NextnForward, AgreesWithAReferenceInFloat64) {
  for (const std::string name : {"v2_lite", "v3", "v3_fp8", "v32"}) {
    const NextnGolden golden(name, pool_);
    const auto model = model_of(golden);
    const auto num_rows = static_cast<int32_t>(golden.ids.size()) - 1;
    for (const int32_t num_prompt : {num_rows, 120}) {
      CpuRunner runner(*model, pool_, testing::kPagesPerSequence,
                       cache_layout(golden.config, KvFormat::kF32).value());
      const double error = relative_error(
          nextn_logits(runner, golden.ids, steps_of(num_rows, num_prompt, num_rows)), golden.logits);
      EXPECT_LT(error, 1e-5) << name << ", prompt of " << num_prompt;
    }
  }
}

TEST_F(NextnForward, RunsInEveryFormatOfTheCache) {
  const NextnGolden golden("v3", pool_);
  const auto model = model_of(golden);
  const auto num_rows = static_cast<int32_t>(golden.ids.size()) - 1;
  const std::pair<KvFormat, double> bounds[] = {{KvFormat::kBF16, 1e-2},
                                                {KvFormat::kF16, 2e-3},
                                                {KvFormat::kFp8E4M3, 8e-2},
                                                {KvFormat::kFp8E5M2, 2e-1}};
  for (const auto& [format, bound] : bounds) {
    CpuRunner runner(*model, pool_, testing::kPagesPerSequence, cache_layout(golden.config, format).value());
    const double error =
        relative_error(nextn_logits(runner, golden.ids, steps_of(num_rows, 120, 33)), golden.logits);
    EXPECT_LT(error, bound) << static_cast<int>(format);
    EXPECT_GT(error, 1e-5) << static_cast<int>(format) << ": the records are not rounded";
  }
}

TEST_F(NextnForward, BitsDoNotDependOnChunks) {
  for (const std::string name : {"v3", "v32"}) {
    const NextnGolden golden(name, pool_);
    const auto model = model_of(golden);
    const auto num_rows = static_cast<int32_t>(golden.ids.size()) - 1;
    const KvLayout layout = cache_layout(golden.config, KvFormat::kBF16).value();
    CpuRunner whole(*model, pool_, testing::kPagesPerSequence, layout);
    CpuRunner chunked(*model, pool_, testing::kPagesPerSequence, layout);
    EXPECT_EQ(nextn_logits(whole, golden.ids, steps_of(num_rows, num_rows, num_rows)),
              nextn_logits(chunked, golden.ids, steps_of(num_rows, num_rows, 17)))
        << name;
  }
}

TEST_F(NextnForward, CopiesOfEmbeddingAndHeadGiveTheSameBits) {
  const NextnGolden shared("v3", pool_, false);
  const NextnGolden own("v3", pool_, true);
  ASSERT_NE(own.weights.mtp->lm_head.data, own.weights.lm_head.data);
  const auto num_rows = static_cast<int32_t>(shared.ids.size()) - 1;
  std::vector<std::vector<float>> logits;
  for (const NextnGolden* golden : {&shared, &own}) {
    const auto model = model_of(*golden);
    CpuRunner runner(*model, pool_, testing::kPagesPerSequence, {.format = KvFormat::kF32});
    logits.push_back(nextn_logits(runner, golden->ids, steps_of(num_rows, num_rows, num_rows)));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST_F(NextnForward, RanksAgreeWithTheReference) {
  const NextnGolden golden("v3", pool_);
  const auto num_rows = static_cast<int32_t>(golden.ids.size()) - 1;
  for (const ModelSplit split : {ModelSplit{2, 1}, ModelSplit{4, 2}}) {
    std::vector<std::shared_ptr<Model>> ranks;
    for (int64_t rank = 0; rank < split.tp; ++rank) {
      ranks.push_back(
          make_model(golden.config, shard_weights(golden.weights, golden.config, split, rank)).value());
    }
    RankRunner runner(ranks, {.num_pages = testing::kPagesPerSequence, .layout = {.format = KvFormat::kF32}});
    const double error =
        relative_error(nextn_logits(runner, golden.ids, steps_of(num_rows, 100, 40)), golden.logits);
    EXPECT_LT(error, 1e-5) << split.tp;
  }
}

TEST_F(NextnForward, HiddenStatesBesideLogitsChangeNoBits) {
  const NextnGolden golden("v3", pool_);
  const auto model = model_of(golden);
  const ForwardBatch batch = batch_of({golden.ids}, {{.begin = 0, .end = 40}, {.begin = 40, .end = 41}});
  CpuRunner one(*model, pool_, testing::kPagesPerSequence, {.format = KvFormat::kF32});
  CpuRunner other(*model, pool_, testing::kPagesPerSequence, {.format = KvFormat::kF32});
  const std::span<const float> logits = one.forward(batch);
  const ForwardRows rows = other.forward_with_hidden(batch);
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), rows.logits.begin(), rows.logits.end()));
  EXPECT_EQ(static_cast<int64_t>(rows.hidden.size()), 41 * golden.config.hidden_size);
}

}  // namespace
}  // namespace hadal
