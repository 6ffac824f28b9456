// Tests which tokens of V3.2 select keys, and the bits of its forward pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/blocks/indexer.h"
#include "model/weights_loader.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/ranks.h"

namespace hadal {
namespace {

using testing::batch_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Json;
using testing::Ranks;
using testing::Sequences;
using testing::Work;

void add_segment(ForwardBatch& batch, int32_t seq_idx, int32_t q_len, int32_t kv_len) {
  const auto first = static_cast<int32_t>(batch.num_prefill_tokens);
  batch.segments.push_back({.seq_idx = seq_idx, .q_begin = first, .q_len = q_len, .kv_len = kv_len});
  for (int32_t i = 0; i < q_len; ++i) batch.positions.push_back(kv_len - q_len + i);
  batch.num_prefill_tokens += q_len;
}

void add_decode(ForwardBatch& batch, int32_t seq_idx, int32_t kv_len) {
  batch.positions.push_back(kv_len - 1);
  batch.decode_seq_idx.push_back(seq_idx);
  batch.decode_kv_len.push_back(kv_len);
}

TEST(SelectionPlan, WithoutAnIndexerAllPromptRowsAreOneRun) {
  ForwardBatch batch;
  add_segment(batch, 0, 4, 8);
  add_segment(batch, 2, 3000, 5000);
  add_decode(batch, 1, 9000);
  const SelectionPlan plan = plan_selection(batch, 0);
  ASSERT_EQ(plan.prefill.size(), 1U);
  EXPECT_FALSE(plan.prefill[0].selects);
  EXPECT_EQ(plan.prefill[0].num_rows, 3004);
  ASSERT_EQ(plan.prefill[0].segments.size(), 2U);
  EXPECT_EQ(plan.prefill[0].segments[1].q_begin, 4);
  EXPECT_EQ(plan.prefill[0].segments[1].kv_len, 5000);
  EXPECT_THAT(plan.to_all.rows, ElementsAre(0));
  EXPECT_THAT(plan.selecting.rows, IsEmpty());
}

TEST(SelectionPlan, ASegmentIsCutWhereItsTokensSeeMoreThanTopkKeys) {
  ForwardBatch batch;
  add_segment(batch, 0, 4, 8);
  add_segment(batch, 1, 6, 13);  // attends to 8 to 13 keys
  add_segment(batch, 2, 3, 3);
  const SelectionPlan plan = plan_selection(batch, 10);
  ASSERT_EQ(plan.prefill.size(), 3U);
  const auto& before = plan.prefill[0];
  EXPECT_FALSE(before.selects);
  EXPECT_EQ(before.first_row, 0);
  EXPECT_EQ(before.num_rows, 7);
  ASSERT_EQ(before.segments.size(), 2U);
  EXPECT_EQ(before.segments[1].q_begin, 4);
  EXPECT_EQ(before.segments[1].q_len, 3);
  EXPECT_EQ(before.segments[1].kv_len, 10) << "the last row that attends to all sees topk keys";
  const auto& selecting = plan.prefill[1];
  EXPECT_TRUE(selecting.selects);
  EXPECT_EQ(selecting.first_row, 7);
  EXPECT_THAT(selecting.kv_len, ElementsAre(11, 12, 13));
  EXPECT_THAT(selecting.seq_idx, ElementsAre(1, 1, 1));
  EXPECT_EQ(selecting.segments[0].q_begin, 0);
  EXPECT_EQ(selecting.segments[0].kv_len, 13);
  const auto& after = plan.prefill[2];
  EXPECT_FALSE(after.selects);
  EXPECT_EQ(after.first_row, 10);
  EXPECT_EQ(after.segments[0].q_begin, 0);
  EXPECT_EQ(after.segments[0].seq_idx, 2);
}

TEST(SelectionPlan, LongRunsAreProcessedInPieces) {
  ForwardBatch batch;
  add_segment(batch, 0, 1300, 1300);
  const SelectionPlan plan = plan_selection(batch, 100);
  ASSERT_EQ(plan.prefill.size(), 4U);
  EXPECT_EQ(plan.prefill[0].num_rows, 100);
  int64_t row = 100;
  for (size_t i = 1; i < 4; ++i) {
    const auto& run = plan.prefill[i];
    EXPECT_TRUE(run.selects);
    EXPECT_EQ(run.first_row, row);
    EXPECT_LE(run.num_rows, kMaxSelectingRows);
    EXPECT_EQ(run.kv_len.front(), row + 1);
    row += run.num_rows;
    EXPECT_EQ(run.segments[0].kv_len, row);
  }
  EXPECT_EQ(row, 1300);
}

TEST(SelectionPlan, DecodeRowsAreDividedByTheKeysTheySee) {
  ForwardBatch batch;
  add_segment(batch, 3, 2, 2);
  for (const int32_t kv_len : {9, 11, 10, 500}) add_decode(batch, kv_len % 3, kv_len);
  const SelectionPlan plan = plan_selection(batch, 10);
  EXPECT_THAT(plan.to_all.rows, ElementsAre(0, 2));
  EXPECT_THAT(plan.to_all.kv_len, ElementsAre(9, 10));
  EXPECT_THAT(plan.selecting.rows, ElementsAre(1, 3));
  EXPECT_THAT(plan.selecting.kv_len, ElementsAre(11, 500));
  EXPECT_THAT(plan.selecting.positions, ElementsAre(10, 499));
  EXPECT_THAT(plan.selecting.seq_idx, ElementsAre(2, 2));
}

class SparseForward : public ::testing::Test {
 protected:
  // Makes a model with an indexer of this topk, or without one (V3) if topk is 0. The other random weights
  // are equal for every topk.
  Ranks model(int64_t topk, int64_t num_sequences, KernelSet kernels = KernelSet::kOptimised) {
    Json json = testing::tiny_config();
    if (topk > 0) {
      json.update(Json::parse(R"({"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 16,
        "index_head_dim": 128})"));
      json["index_topk"] = topk;
    }
    const ModelConfig config = testing::parsed(json);
    const ModelWeights weights =
        load_weights({}, config, {.format = LoadFormat::kDummy, .compute_dtype = DType::kF32, .seed = 5},
                     pool_)
            .value();
    return Ranks(config, weights, {}, num_sequences, kernels);
  }

  static Sequences sequences_of(const std::vector<int>& lengths) {
    std::mt19937 random(23);
    Sequences sequences;
    for (const int length : lengths) {
      for (sequences.emplace_back(); static_cast<int>(sequences.back().size()) < length;)
        sequences.back().push_back(static_cast<int32_t>(random() % kVocab));
    }
    return sequences;
  }

  // Returns the logits of one sequence: a prompt in chunks of the given size, then decode tokens.
  static std::vector<float> run(Ranks& model, const Sequences& sequences, int32_t sequence, int32_t prompt,
                                int32_t chunk) {
    std::vector<float> logits;
    const auto step = [&](Work work) {
      work.sequence = sequence;
      const std::vector<float> some = model.forward(batch_of(sequences, {work}));
      logits.insert(logits.end(), some.begin(), some.end());
    };
    for (int32_t begin = 0; begin < prompt; begin += chunk)
      step({.begin = begin, .end = std::min(begin + chunk, prompt)});
    const auto length = static_cast<int32_t>(sequences[sequence].size());
    for (int32_t t = prompt; t < length; ++t) step({.begin = t, .end = t + 1, .decode = true});
    return logits;
  }

  // Returns the greatest difference of logits of tokens [begin, end).
  static float difference(const std::vector<float>& a, const std::vector<float>& b, int64_t begin,
                          int64_t end) {
    float most = 0.0F;
    for (int64_t i = begin * kVocab; i < end * kVocab; ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  }

  static constexpr int64_t kVocab = 96;
  ThreadPool pool_{1};
};

TEST_F(SparseForward, WithinIndexTopkTheBitsAreThoseOfV3) {
  const Sequences sequences = sequences_of({203});
  Ranks v3 = model(0, 1);
  Ranks v32 = model(203, 1);
  EXPECT_EQ(run(v32, sequences, 0, 200, 200), run(v3, sequences, 0, 200, 200));
}

TEST_F(SparseForward, TokensBeyondIndexTopkAttendToFewerKeys) {
  const Sequences sequences = sequences_of({150});
  Ranks v3 = model(0, 1);
  Ranks v32 = model(64, 1);
  const std::vector<float> all = run(v3, sequences, 0, 140, 140);
  const std::vector<float> some = run(v32, sequences, 0, 140, 140);
  EXPECT_EQ(difference(some, all, 0, 64), 0.0F);
  EXPECT_GT(difference(some, all, 64, 140), 1e-3F) << "prompt";
  EXPECT_GT(difference(some, all, 140, 150), 1e-3F) << "decode";
}

TEST_F(SparseForward, BitsDoNotDependOnChunks) {
  const Sequences sequences = sequences_of({605});
  Ranks one = model(40, 1);
  const std::vector<float> whole = run(one, sequences, 0, 600, 600);  // pieces of 512 and 48 rows
  for (const int32_t chunk : {64, 37, 250}) {
    Ranks other = model(40, 1);
    EXPECT_EQ(run(other, sequences, 0, 600, chunk), whole) << chunk;
  }
}

TEST_F(SparseForward, BitsDoNotDependOnTheRowsBeside) {
  const Sequences sequences = sequences_of({120, 25, 70});
  const auto tokens = [&](const std::vector<Work>& work, Ranks& ranks) {
    return ranks.forward(batch_of(sequences, work));
  };
  // Sequence 0 selects keys, sequence 1 does not, and sequence 2 begins to select within its chunk.
  std::vector<std::vector<float>> alone;
  for (int32_t s = 0; s < 3; ++s) {
    Ranks ranks = model(40, 3);
    const auto length = static_cast<int32_t>(sequences[s].size());
    alone.push_back(run(ranks, sequences, s, length - 2, length));
  }
  Ranks together = model(40, 3);
  std::vector<std::vector<float>> found(3);
  const std::vector<std::vector<Work>> steps = {
      {{.sequence = 0, .begin = 0, .end = 118},
       {.sequence = 1, .begin = 0, .end = 23},
       {.sequence = 2, .begin = 0, .end = 30}},
      {{.sequence = 2, .begin = 30, .end = 68},
       {.sequence = 1, .begin = 23, .end = 24, .decode = true},
       {.sequence = 0, .begin = 118, .end = 119, .decode = true}},
      {{.sequence = 0, .begin = 119, .end = 120, .decode = true},
       {.sequence = 1, .begin = 24, .end = 25, .decode = true},
       {.sequence = 2, .begin = 68, .end = 70, .decode = true}},
  };
  for (const std::vector<Work>& step : steps) {
    const std::vector<float> logits = tokens(step, together);
    auto at = logits.begin();
    for (const Work& work : step) {
      const auto end = at + (work.end - work.begin) * kVocab;
      found[work.sequence].insert(found[work.sequence].end(), at, end);
      at = end;
    }
  }
  EXPECT_EQ(found, alone);
}

TEST_F(SparseForward, DecodeTokensSelectWhatPromptTokensDo) {
  const Sequences sequences = sequences_of({150});
  Ranks prompt = model(40, 1);
  Ranks decode = model(40, 1);
  const std::vector<float> expected = run(prompt, sequences, 0, 150, 150);
  const std::vector<float> found = run(decode, sequences, 0, 30, 30);  // 120 tokens one by one
  EXPECT_LT(difference(found, expected, 0, 150), 1e-3F);
  EXPECT_GT(difference(found, expected, 41, 150), 0.0F) << "the two paths round differently";
}

TEST_F(SparseForward, TheReferenceKernelsAgree) {
  const Sequences sequences = sequences_of({70});
  Ranks naive = model(40, 1, KernelSet::kReference);
  Ranks fast = model(40, 1);
  EXPECT_LT(difference(run(naive, sequences, 0, 60, 60), run(fast, sequences, 0, 60, 60), 0, 70), 1e-3F);
}

TEST_F(SparseForward, ACacheWithoutIndexKeysIsABrokenInvariant) {
  Json json = testing::tiny_config();
  json.update(Json::parse(R"({"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 16,
    "index_head_dim": 128, "index_topk": 8})"));
  const ModelConfig config = testing::parsed(json);
  auto whole =
      make_model(config, load_weights({}, config, {.format = LoadFormat::kDummy}, pool_).value()).value();
  KvCache cache(config.num_hidden_layers, 1, {.format = KvFormat::kF32});
  Arena workspace;
  ExecContext exec{.device = {}, .pool = pool_, .workspace = workspace, .stream = {}};
  std::vector<float> logits(kVocab);
  const ForwardOutputs outputs{.logits = logits.data()};
  EXPECT_THROW(whole->forward(batch_of({{1, 2, 3}}, {{.begin = 0, .end = 1}}), cache, outputs, exec), Error);
}

}  // namespace
}  // namespace hadal
