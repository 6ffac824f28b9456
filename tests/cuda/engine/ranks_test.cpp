// Tests that ranks which share the bundled model, and take turns on one GPU, answer like one rank. Every step
// also compares what the ranks have sampled (RankGroupExecutor), so a test that completes shows that the
// states of all ranks were equal throughout.
#include <gtest/gtest.h>

#include <limits>

#include "tests/cuda/engine/tiny_model_test.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Collector;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;
using testing::relative_error;

constexpr int64_t kPromptLen = 150;
// The sums of ranks are rounded to 16 bits, and close calls of the router then send a token elsewhere.
constexpr double kMaxError = 0.15;
constexpr ModelSplit kSplits[] = {{.tp = 2},          {.tp = 4},          {.tp = 8},
                                  {.tp = 2, .ep = 2}, {.tp = 4, .ep = 2}, {.tp = 8, .ep = 8}};

class RanksTest : public testing::TinyModelTest, public ::testing::WithParamInterface<ModelSplit> {
 protected:
  // Returns the batch of a prompt of `count` tokens, the last `num_decoded` of which are decode rows.
  static ForwardBatch batch_of(int64_t count, int64_t num_decoded) {
    const std::vector<int32_t> ids = random_prompt(count, 5);
    const int64_t num_prefill = count - num_decoded;
    ForwardBatch batch;
    for (int64_t i = 0; i < count; ++i) {
      batch.token_ids.push_back(ids[i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.slots.push_back(i);
      batch.logit_rows.push_back(static_cast<int32_t>(i));
      if (i < num_prefill) continue;
      batch.decode_seq_idx.push_back(0);
      batch.decode_kv_len.push_back(static_cast<int32_t>(i + 1));
    }
    batch.num_prefill_tokens = num_prefill;
    const auto q_len = static_cast<int32_t>(num_prefill);
    if (q_len > 0) batch.segments = {{.seq_idx = 0, .q_begin = 0, .q_len = q_len, .kv_len = q_len}};
    batch.page_table_stride = (count + kPageSize - 1) / kPageSize;
    for (int32_t page = 0; page < batch.page_table_stride; ++page) batch.page_table.push_back(page);
    return batch;
  }

  static std::vector<float> logits_of(Backend& backend, const ForwardBatch& batch) {
    const auto runner = backend.make_runner(8, kPromptLen, KvLayout{.format = KvFormat::kBF16}).value();
    const std::span<const float> logits = runner->forward(batch);
    const std::vector<float> first(logits.begin(), logits.end());
    const std::span<const float> again = runner->forward(batch);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), again.begin(), again.end())) << "other bits again";
    return first;
  }

  static EngineOptions options() {
    EngineOptions options;
    options.max_total_tokens = 16384;
    options.max_running_requests = 24;
    options.chunked_prefill_size = 96;
    options.context_length = 1024;
    options.decode_log_interval = 0;
    // A row whose mask is late is computed again, by other kernels, so results would depend on the time.
    options.mask_wait_share = std::numeric_limits<double>::infinity();
    return options;
  }

  // Runs requests of many kinds, all of which are queued before the first step.
  static std::vector<Finished> answers(Backend& backend, const EngineOptions& options, bool constraints) {
    constexpr int kNum = 12;
    const CheckedEngine engine(Engine::create(backend, options).value());
    const auto sink = std::make_shared<Collector>();
    std::vector<RequestId> ids;
    engine->pause();
    for (int i = 0; i < kNum; ++i) {
      GenerateRequest request = greedy_request(random_prompt(5 + 40 * i, i), 10 + i);
      if (i % 3 == 1) request.sampling.temperature = 0.8F;
      if (i % 4 == 1) request.sampling.repetition_penalty = 1.2F;
      request.sampling.seed = 7 + i;
      request.logprobs = {.enabled = i % 2 == 0, .start = i % 4 == 0 ? 1 : -1, .top_num = 2};
      if (constraints && i % 3 == 2) request.constraint = std::make_unique<testing::ChainConstraint>();
      request.sink = sink;
      ids.push_back(engine->submit(std::move(request)).value());
    }
    engine->resume();
    sink->wait_finished(kNum);
    std::vector<Finished> out;
    for (const RequestId id : ids) out.push_back(sink->result(id));
    for (const Finished& finished : out)
      EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.abort_text;
    return out;
  }

  std::unique_ptr<Backend> ranks_ = load(GetParam());
};

TEST_P(RanksTest, LogitsAreThoseOfOneRank) {
  // These are a prompt, a prompt with decode rows, few decode rows (for the kernels for few tokens) and many.
  for (const auto& [count, num_decoded] : {std::pair{kPromptLen, int64_t{0}},
                                           {kPromptLen, int64_t{20}},
                                           {int64_t{4}, int64_t{4}},
                                           {int64_t{100}, int64_t{100}}}) {
    SCOPED_TRACE(std::to_string(count) + " tokens, " + std::to_string(num_decoded) + " of them decoded");
    const ForwardBatch batch = batch_of(count, num_decoded);
    const double error = relative_error(logits_of(*ranks_, batch), logits_of(*backend_, batch));
    EXPECT_LE(error, kMaxError);
    std::printf("tp %d ep %d, %d tokens: %.2e\n", static_cast<int>(GetParam().tp),
                static_cast<int>(GetParam().ep), static_cast<int>(count), error);
  }
}

TEST_P(RanksTest, PlainKernelsGiveTheSameLogits) {
  const auto plain_ranks = load(GetParam(), KernelSet::kReference);
  const ForwardBatch batch = batch_of(60, 6);
  EXPECT_LE(relative_error(logits_of(*ranks_, batch), logits_of(*plain_ranks, batch)), kMaxError);
}

// Requests run one at a time, so that both loops compute the same batches.
TEST_P(RanksTest, TheOverlappedLoopChangesNoBitOfARequestAlone) {
  EngineOptions options = RanksTest::options();
  options.max_running_requests = 1;
  options.overlap_schedule = false;
  const std::vector<Finished> plain = answers(*ranks_, options, true);
  options.overlap_schedule = true;
  const std::vector<Finished> overlapped = answers(*ranks_, options, true);
  for (size_t i = 0; i < plain.size(); ++i) testing::expect_same(plain[i], overlapped[i]);
}

TEST_P(RanksTest, EqualBatchesGiveEqualBits) {
  EngineOptions options = RanksTest::options();
  options.overlap_schedule = false;
  const std::vector<Finished> once = answers(*ranks_, options, false);
  const std::vector<Finished> again = answers(*ranks_, options, false);
  for (size_t i = 0; i < once.size(); ++i) testing::expect_same(once[i], again[i]);
}

TEST_P(RanksTest, EveryRequestCompletesWhenPagesRunOut) {
  EngineOptions options = RanksTest::options();
  options.max_total_tokens = 64 * 10;
  options.schedule_conservativeness = 0.05;  // admits too many on purpose
  for (const Finished& finished : answers(*ranks_, options, true)) EXPECT_GT(finished.ids.size(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Splits, RanksTest, ::testing::ValuesIn(kSplits), [](const auto& of) {
  return "Tp" + std::to_string(of.param.tp) + "Ep" + std::to_string(of.param.ep);
});

}  // namespace
}  // namespace hadal
