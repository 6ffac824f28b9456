// Tests the forward pass of ranks that share a model against that of one rank, and against the goldens.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>

#include "tests/model/golden_checkpoint.h"
#include "tests/model/ranks.h"
#include "tests/model/shard_models.h"

namespace hadal {
namespace {

using testing::batch_of;
using testing::config_in;
using testing::Format;
using testing::Json;
using testing::options_of;
using testing::Ranks;
using testing::Sequences;
using testing::Work;

// Returns a model of three layers that eight ranks can share, some of which hold nothing of an MLP or of the
// head.
Json small_config(const std::string& family) {
  Json json = testing::uneven_config(family);
  json.update(Json::parse(R"({"hidden_size": 128, "intermediate_size": 320, "moe_intermediate_size": 200,
    "num_hidden_layers": 3, "vocab_size": 293})"));
  return json;
}

constexpr ModelSplit kSplits[] = {{2, 1}, {4, 1}, {8, 1}, {2, 2}, {4, 4}, {8, 8}, {4, 2}};

Sequences random_sequences(const ModelConfig& config, const std::vector<int>& lengths) {
  std::mt19937 rng(11);
  Sequences sequences;
  for (const int length : lengths) {
    for (sequences.emplace_back(); static_cast<int>(sequences.back().size()) < length;)
      sequences.back().push_back(static_cast<int32_t>(rng() % config.vocab_size));
  }
  return sequences;
}

void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

class RankForward : public ::testing::Test {
 protected:
  // Runs prompts in chunks and decode tokens, and returns all logits. The routing is stored if `routing` is
  // given.
  std::vector<float> mixed_steps(Ranks& ranks, const Sequences& sequences,
                                 std::vector<std::vector<int32_t>>* routing, int64_t num_ranks) {
    const std::vector<std::vector<Work>> steps = {
        {{.sequence = 0, .begin = 0, .end = 5, .logits = false}},
        {{.sequence = 0, .begin = 5, .end = 9}, {.sequence = 1, .begin = 0, .end = 1}},
        {{.sequence = 1, .begin = 1, .end = 4}, {.sequence = 0, .begin = 9, .end = 10, .decode = true}},
        {{.sequence = 0, .begin = 10, .end = 11, .decode = true},
         {.sequence = 1, .begin = 4, .end = 5, .decode = true}},
    };
    std::vector<float> logits;
    for (const std::vector<Work>& step : steps) {
      append(logits, ranks.forward(batch_of(sequences, step)));
      if (routing == nullptr) continue;
      for (int64_t rank = 0; rank < num_ranks; ++rank) routing->push_back(ranks.distinct_experts(rank));
    }
    return logits;
  }

  void expect_sums(const std::string& family, const Format& format, std::span<const ModelSplit> splits,
                   KernelSet kernels = KernelSet::kOptimised) {
    const ModelConfig config = config_in(small_config(family), format);
    const ModelWeights weights = load_weights({}, config, options_of(format), pool_).value();
    const Sequences sequences = random_sequences(config, {11, 5});
    Ranks one(config, weights, {}, 2, kernels);
    std::vector<std::vector<int32_t>> expected_routing;
    const std::vector<float> expected = mixed_steps(one, sequences, &expected_routing, 1);
    float largest = 0.0F;
    for (const float logit : expected) largest = std::max(largest, std::abs(logit));
    for (const ModelSplit split : splits) {
      if (!check_split(config, split).ok()) continue;
      SCOPED_TRACE(fmt::format("{} {} tp {} ep {}", family, format.name, split.tp, split.ep));
      Ranks ranks(config, weights, split, 2, kernels);
      std::vector<std::vector<int32_t>> routing;
      const std::vector<float> logits = mixed_steps(ranks, sequences, &routing, split.tp);
      ASSERT_EQ(logits.size(), expected.size());
      float error = 0.0F;
      for (size_t i = 0; i < logits.size(); ++i) {
        ASSERT_FALSE(std::isnan(logits[i])) << "no rank wrote logit " << i;
        error = std::max(error, std::abs(logits[i] - expected[i]));
      }
      EXPECT_LE(error, 1e-5F * largest);
      for (size_t i = 0; i < routing.size(); ++i)
        EXPECT_EQ(routing[i], expected_routing[i / split.tp]) << "rank " << i % split.tp;
      ++num_compared_;
    }
  }

  ThreadPool pool_{1};
  int num_compared_ = 0;
};

TEST_F(RankForward, LogitsAreThoseOfOneRankWithinRounding) {
  for (const std::string& family : testing::kFamilies)
    expect_sums(family, {.name = "f32", .compute = DType::kF32}, kSplits);
  EXPECT_EQ(num_compared_, 7 + 5 + 7) << "12 heads are not dealt to 8 ranks";
}

TEST_F(RankForward, SoAreThoseOfQuantisedModels) {
  const ModelSplit splits[] = {{4, 1}, {8, 2}, {4, 2}};
  for (const Format& format : testing::kFormats) {
    if (format.compute == DType::kF32) continue;
    expect_sums("v3", format, {splits + 1, 1});
    expect_sums("v2-lite", format, splits);  // except for eight ranks
  }
  EXPECT_EQ(num_compared_, 7 * 3);
}

TEST_F(RankForward, TheReferenceKernelsAgree) {
  const ModelSplit split = {4, 2};
  expect_sums("v2-lite", {.name = "fp8 blocks", .at_load = LoadQuantization::kFp8}, {&split, 1},
              KernelSet::kReference);
  EXPECT_EQ(num_compared_, 1);
}

// The reference runs each sequence by itself, with its prompt in one chunk.
TEST_F(RankForward, BitsDoNotDependOnTheBatchTheChunksOrTheNeighbours) {
  const Format bf16{.name = "bf16"};
  const Format fp8{.name = "fp8", .at_load = LoadQuantization::kFp8};
  for (const auto& [family, format, tp] : {std::tuple("v2-lite", bf16, 4), std::tuple("v2-lite", fp8, 4),
                                           std::tuple("v3.2", bf16, 4), std::tuple("v3.2", fp8, 2)}) {
    const ModelConfig config = config_in(small_config(family), format);
    const ModelWeights weights = load_weights({}, config, options_of(format), pool_).value();
    const Sequences sequences = random_sequences(config, {20, 9});
    const ModelSplit split = {.tp = tp, .ep = 2};
    std::vector<std::vector<float>> expected;
    for (int32_t s = 0; s < 2; ++s) {
      Ranks alone(config, weights, split, 2);
      const int32_t length = static_cast<int32_t>(sequences[s].size());
      expected.push_back(
          alone.forward(batch_of(sequences, {{.sequence = s, .begin = 0, .end = length - 2}})));
      for (int32_t t = length - 2; t < length; ++t) {
        append(expected.back(), alone.forward(batch_of(
                                    sequences, {{.sequence = s, .begin = t, .end = t + 1, .decode = true}})));
      }
    }
    Ranks together(config, weights, split, 2);
    const std::vector<std::vector<Work>> steps = {
        {{.sequence = 0, .begin = 0, .end = 7}, {.sequence = 1, .begin = 0, .end = 3}},
        {{.sequence = 1, .begin = 3, .end = 7}, {.sequence = 0, .begin = 7, .end = 18}},
        {{.sequence = 1, .begin = 7, .end = 8, .decode = true},
         {.sequence = 0, .begin = 18, .end = 19, .decode = true}},
        {{.sequence = 0, .begin = 19, .end = 20, .decode = true},
         {.sequence = 1, .begin = 8, .end = 9, .decode = true}},
    };
    std::vector<std::vector<float>> found(2);
    for (const std::vector<Work>& step : steps) {
      const std::vector<float> logits = together.forward(batch_of(sequences, step));
      auto at = logits.begin();
      for (const Work& work : step) {
        const auto end = at + (work.end - work.begin) * config.vocab_size;
        found[work.sequence].insert(found[work.sequence].end(), at, end);
        at = end;
      }
    }
    EXPECT_EQ(found, expected) << family << " " << format.name;
  }
}

TEST_F(RankForward, EveryRunOfManyRanksHasTheSameBits) {
  const Format format{.name = "bf16"};
  const ModelConfig config = config_in(small_config("v3"), format);
  const ModelWeights weights = load_weights({}, config, options_of(format), pool_).value();
  const Sequences sequences = random_sequences(config, {11, 5});
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {
    Ranks ranks(config, weights, {.tp = 8, .ep = 2}, 2);
    const std::vector<float> logits = mixed_steps(ranks, sequences, nullptr, 0);
    if (run == 0) first = logits;
    EXPECT_EQ(logits, first);
  }
}

TEST_F(RankForward, GoldensAreWithinTheirTolerance) {
  for (const std::string& name : testing::golden_names()) {
    const testing::Golden golden = testing::load_golden(name);
    const testing::GoldenCheckpoint checkpoint(golden);
    const ModelWeights weights =
        load_weights(checkpoint.dir(), golden.config, {.compute_dtype = DType::kF32}, pool_).value();
    const testing::GoldenCase& golden_case = golden.cases[1];  // more than a page
    const Sequences sequences = {golden_case.input_ids};
    const auto length = static_cast<int32_t>(golden_case.input_ids.size());
    ASSERT_GT(length, kPageSize);
    for (const ModelSplit split : {ModelSplit{2, 1}, ModelSplit{2, 2}, ModelSplit{4, 1}, ModelSplit{4, 2}}) {
      if (!check_split(golden.config, split).ok()) continue;  // two heads
      Ranks ranks(golden.config, weights, split, 1);
      const int32_t prompt = length - 3;
      std::vector<float> logits = ranks.forward(batch_of(sequences, {{.begin = 0, .end = prompt}}));
      for (int32_t t = prompt; t < length; ++t)
        append(logits, ranks.forward(batch_of(sequences, {{.begin = t, .end = t + 1, .decode = true}})));
      double error = 0, norm = 0;
      for (size_t i = 0; i < logits.size(); ++i) {
        error += std::pow(double{logits[i]} - golden_case.logits[i], 2);
        norm += std::pow(double{golden_case.logits[i]}, 2);
      }
      EXPECT_LE(std::sqrt(error / norm), 1e-3) << name << " tp " << split.tp << " ep " << split.ep;
      ++num_compared_;
    }
  }
  EXPECT_GE(num_compared_, 6 * 2 + 2 * 2);
}

}  // namespace
}  // namespace hadal
